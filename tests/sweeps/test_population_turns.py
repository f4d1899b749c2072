"""A population: what it draws, who copies whom after a round, and that its file has all of it."""

import numpy as np
import pytest
from hpos import hpo

from drl_cli.settings.space import Choice, Interval
from drl_cli.sweeps.population import Population

SPACE = {"algo.lr": Interval(1e-4, 1e-2, is_log=True), "algo.n_step": Choice(("1", "3", "5"))}


@pytest.fixture
def make(tmp_path):
    """A population in a folder of its own, whose members have these scores after the first round."""

    def make_it(scores=(), seed=0, resample=0.0):
        config = hpo("pbt", members=max(2, len(scores)), resample=resample)
        population = Population(tmp_path, SPACE, ["env=A"], config, seed=seed, round_steps=100)
        for i, (turn, score) in enumerate(zip(population.turns, scores, strict=False)):
            turn.state, turn.score, turn.env_steps = ("done" if score is not None else "failed"), score, 104 + i
        return population

    return make_it


@pytest.mark.parametrize(
    "domain",
    [
        Interval(1e-4, 1e-2, is_log=True),
        Interval(-1, 3),
        Interval(1, 64, is_log=True, is_int=True),
        Interval(2, 11, is_int=True, step=3),
        Choice(("a", "b", "c")),
    ],
)
def test_values_stay_in_their_space_and_get_everywhere(domain):
    rng = np.random.default_rng(0)
    drawn = [domain.draw(rng) for _ in range(300)]
    near = [domain.near(value, rng) for value in drawn]
    if isinstance(domain, Choice):
        assert set(drawn) == set(near) == set(domain.values)
        return
    for values in (drawn, near):
        assert all(domain.low <= value <= domain.high for value in values)
        if domain.is_int:
            assert set(values) <= set(range(int(domain.low), int(domain.high) + 1, domain.step))
    middle = (domain.low * domain.high) ** 0.5 if domain.is_log else (domain.low + domain.high) / 2
    assert 100 < sum(value < middle for value in drawn) < 200
    assert all(isinstance(value, int) == domain.is_int for value in (*drawn, *near))


@pytest.mark.parametrize(
    ("domain", "value", "moved"),
    [
        (Interval(1e-4, 1e-2, is_log=True), 1e-3, {8e-4, 1.2e-3}),
        (Interval(1e-4, 1e-2), 1e-2, {8e-3, 1e-2}),
        (Interval(-1, 1), 0.0, {-0.2, 0.2}),
        (Interval(1, 9, is_int=True), 2, {1, 3}),
        (Interval(10, 90, is_int=True, step=10), 50, {40, 60}),
        (Interval(2, 11, is_int=True, step=3), 11, {8, 11}),
        (Choice(("a", "b", "c")), "b", {"a", "c"}),
        (Choice(("a", "b", "c")), "c", {"b", "c"}),
    ],
)
def test_a_value_moves_to_either_side(domain, value, moved):
    rng = np.random.default_rng(0)
    found = {domain.near(value, rng) for _ in range(50)}
    assert sorted(found) == (sorted(moved) if isinstance(domain, Choice) else pytest.approx(sorted(moved)))


def test_the_worst_copy_the_best_and_change_what_they_copied(make):
    population = make([5, 1, 8, 3, 7, 2, 6, 4])
    before = [turn.values for turn in population.turns]
    population.next_round([True] * 8)
    assert population.goal == 200
    assert not population.is_ready
    assert [turn.source is not None for turn in population.turns] == [score <= 2 for score in (5, 1, 8, 3, 7, 2, 6, 4)]
    for member, turn in enumerate(population.turns):
        assert turn.start == 104 + (member if turn.source is None else turn.source)
        if turn.source is None:
            assert turn.values == before[member]
        else:
            assert turn.source in (2, 4)
            factor = turn.values["algo.lr"] / before[turn.source]["algo.lr"]
            assert (
                factor == pytest.approx(0.8) or factor == pytest.approx(1.2) or turn.values["algo.lr"] in (1e-4, 1e-2)
            )


def test_every_one_of_the_best_is_copied_by_someone(make):
    sources = set()
    for seed in range(8):
        population = make([5, 1, 8, 3, 7, 2, 6, 4], seed)
        population.next_round([True] * 8)
        sources |= {turn.source for turn in population.turns}
    assert sources == {None, 2, 4}


def test_values_are_drawn_anew_as_often_as_was_said(make):
    population = make([5, 1, 8, 3, 7, 2, 6, 4], resample=1.0)
    before = [turn.values["algo.lr"] for turn in population.turns]
    population.next_round([True] * 8)
    copied = [turn for turn in population.turns if turn.source is not None]
    ratios = [turn.values["algo.lr"] / before[turn.source] for turn in copied]
    assert all(abs(ratio - 0.8) > 1e-6 and abs(ratio - 1.2) > 1e-6 for ratio in ratios)


def test_what_happens_follows_from_the_seed_alone(make):
    def history(seed):
        population = make([5, 1, 8, 3], seed)
        population.next_round([True] * 4)
        return population.rounds

    assert history(3) == history(3)
    assert history(3) != history(4)
    population = make([1, 9], resample=1.0)
    for _ in range(2):
        population.next_round([True] * 2)
        for turn, score in zip(population.turns, (1, 9), strict=True):
            turn.state, turn.score = "done", score
    assert population.rounds[1][0].values != population.rounds[2][0].values  # each round draws for itself
    first, second = make(seed=3), make(seed=4)
    assert first.turns[0].values != first.turns[1].values
    assert first.turns[1].values != second.turns[0].values  # although their seeds are neighbours


def test_who_failed_copies_too_but_not_who_has_nothing_to_copy_into(make):
    population = make([5, None, None, 9])
    before = [turn.values for turn in population.turns]
    population.next_round([True, True, False, True])
    assert [turn.source for turn in population.turns] == [3, 3, None, None]
    assert population.turns[2].values == before[2]


def test_a_round_in_which_one_alone_was_done_goes_on_from_it(make):
    population = make([None, 2, None])
    population.next_round([True] * 3)
    assert [turn.source for turn in population.turns] == [1, None, 1]


def test_equal_scores_are_no_reason_to_copy(make):
    population = make([500, 500, 500, 500])
    population.next_round([True] * 4)
    assert [turn.source for turn in population.turns] == [None] * 4


def test_of_two_members_one_copies(make):
    population = make([1, 2])
    population.next_round([True] * 2)
    assert [turn.source for turn in population.turns] == [1, None]


def test_the_lineage_follows_the_weights(make):
    population = make([1, 2, 3])
    population.next_round([True] * 3)  # 0 copies 2
    for turn, score in zip(population.turns, (9, 5, 1), strict=True):
        turn.score = score
    population.next_round([True] * 3)  # 2 copies 0
    assert [member for member, _ in population.lineage(2)] == [2, 0, 2]
    assert [member for member, _ in population.lineage(1)] == [1, 1, 1]
    assert [turn for _, turn in population.lineage(0)] == [
        population.rounds[0][2], population.rounds[1][0], population.rounds[2][0]
    ]  # fmt: skip


def test_the_file_has_all_of_it(make):
    population = make([1, None, 3])
    population.next_round([True] * 3)
    again = Population.open(population.folder)
    assert {**vars(again)} == {**vars(population)}


def test_no_population_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"is no population: it has no readable population\.json"):
        Population.open(tmp_path)

"""Chain: when an update is recorded, compiled and run as a program, with an interpreter in place of the compiler."""

import logging
import os
import re
import shutil

import numpy as np
import pytest
import torch
from choices import some
from interpreted import chained_learn, without_compiler
from learning_cases import NAMES, Alternating, case_of

from drl_cli.algos.base import Counts
from drl_cli.api import Context
from drl_cli.chains import chain as chain_module
from drl_cli.chains.chain import MOST_VARIANTS, Chain
from drl_cli.chains.present import recording
from drl_cli.chains.program import Program
from drl_cli.chains.when import PaysOff, When

UNTRACEABLE = {"r2d2": "the result's size depends on values", "dreamer": "the updates are not compiled"}
"""R2D2's memory starts again where an episode begins, which depends on the batch. DreamerV3 unrolls too many steps."""


def learn(chain, learner, num, first=0):
    return [chain({"x": torch.full((3,), 1.0 + i)}, Counts(i, 0)) for i in range(first, first + num)]


def one_warning(learner, num, time="beside"):
    """Make updates with a chain that gives up; return the text of its only warning."""
    when = When(time)
    learn(Chain(learner.update, learner, when), learner, num)
    ((level, text),) = when.take_notes()
    assert level == logging.WARNING
    return text


@pytest.fixture
def instant(monkeypatch):
    return without_compiler(monkeypatch)


def eager(num):
    learner = Alternating()
    return [learner.update({"x": torch.full((3,), 1.0 + i)}, Counts(i, 0))[0]["w"] for i in range(num)], learner.w


def test_before_each_program_is_compiled_before_its_first_update(instant):
    learner, when = Alternating(), When("before")
    chain = Chain(learner.update, learner, when)
    results = learn(chain, learner, 6)
    expected, w = eager(6)
    assert [result[0]["w"].item() for result in results] == [value.item() for value in expected]
    assert all(result[1:] == (7, None) for result in results)
    assert torch.equal(learner.w, w)
    assert instant.made == 2
    assert learner.calls == [4]  # two records of each program, which were undone
    assert ([level for level, _ in when.take_notes()], when.take_notes()) == ([logging.INFO], ())


def test_beside_plain_updates_go_on_until_the_program_is_ready(instant):
    instant.delay = 2
    learner, when = Alternating(), When("beside")
    chain = Chain(learner.update, learner, when)
    learn(chain, learner, 6)  # three of each program: two records, and one while the compiler works
    assert ((learner.calls, instant.made), when.notes) == (([6], 2), [])
    learn(chain, learner, 14, 6)
    assert learner.calls[0] < 12
    assert torch.equal(learner.w, eager(20)[1])
    (note,) = when.take_notes()
    assert note[0] == logging.INFO
    assert re.fullmatch(r"compiled updates take over \(compiled in \d s, with 2 s of processor time\)", note[1])


def test_a_program_is_lent_as_a_function_once_it_is_compiled(instant):
    def update(columns, counts):
        return {"x": columns["x"].sum()}

    chain, columns = Chain(update, None, When("before")), {"x": torch.ones(3)}
    assert chain.bound(columns) is None
    chain(columns)
    assert float(chain.bound(columns)([torch.full((3,), 2.0)])["x"]) == 6.0
    assert chain.bound({"x": torch.ones(4)}) is None


class Drawing(Alternating):
    """Adds noise, and in every third update more noise."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def update(self, columns, counts):
        self.calls[0] += 1
        self.w.add_(columns["x"] * torch.randn(16, generator=self.generator)[:3])
        if counts.opt_steps % 3 == 2:
            self.w.add_(torch.randn(5, generator=self.generator)[:3])
        return self.w.clone(), counts.opt_steps % 3 == 2, {}


def test_many_updates_are_those_that_single_calls_make(instant, monkeypatch):
    sizes, one = [], Program.updates

    def updates(self, columns, counts):
        sizes.append(len(counts))
        return one(self, columns, counts)

    monkeypatch.setattr(Program, "updates", updates)
    plain, single, many = Drawing(), Drawing(), Drawing()
    chain, chain_of_many = (Chain(learner.update, learner, When("before")) for learner in (single, many))
    x = torch.arange(24.0).view(8, 3)
    for first in (0, 8, 16):
        counts = [Counts(first + i, 0) for i in range(8)]
        expected = [plain.update({"x": row}, count) for row, count in zip(x, counts, strict=True)]
        del sizes[:]
        by_one = [chain({"x": row}, count) for row, count in zip(x, counts, strict=True)]
        assert sizes == [1] * 8
        del sizes[:]
        at_once = chain_of_many.many({"x": x}, counts)
        assert sizes == {0: [1] * 8, 8: [1, 2, 1, 2, 1, 1], 16: [1, 1, 2, 1, 2, 1]}[first]
        for results in (by_one, at_once):
            assert [result[1:] for result in results] == [result[1:] for result in expected]
            assert all(torch.equal(a[0], b[0]) for a, b in zip(results, expected, strict=True))
    assert torch.equal(plain.w, many.w)
    assert torch.equal(plain.generator.get_state(), many.generator.get_state())


def test_many_updates_of_a_chain_that_gave_up_or_has_no_results(instant):
    w = torch.zeros(3)

    def update(columns, counts):
        w.add_(columns["x"])

    silent = Chain(update, w, When("before"))
    assert silent.many({"x": torch.ones(5, 3)}, [Counts(i, 0) for i in range(5)]) == [None] * 5
    assert w.tolist() == [5.0] * 3
    instant.problem = "no compiler"
    learner = Alternating()
    chain = Chain(learner.update, learner, When("before"))
    chain.many({"x": torch.ones(5, 3)}, [Counts(i, 0) for i in range(5)])
    assert torch.equal(learner.w, torch.full((3,), 3.0 - 2 * 2.0))


def test_many_updates_of_which_some_are_undone(instant):
    w = torch.zeros(3)

    def update(columns, counts):
        w.add_(columns["x"])
        recording().require(w.isfinite().all())
        return (w.clone(),)

    x = torch.ones(4, 3)
    x[2, 1] = torch.nan
    chain = Chain(update, w, When("before"), skipped=tuple)
    for total in (3.0, 6.0):
        results = chain.many({"x": x}, [Counts(i, 0) for i in range(4)])
        assert ([len(result) for result in results], w.tolist()) == ([1, 1, 0, 1], [total] * 3)


def test_a_replaced_tensor_is_noticed_before_many_updates(instant):
    learner, when = Drawing(), When("before")
    chain = Chain(learner.update, learner, when)
    x, counts = torch.ones(3, 3), [Counts(i, 0) for i in range(3)]
    chain.many({"x": x}, counts)
    learner.w = torch.zeros(3)
    chain.many({"x": x}, counts)
    assert learner.w.any()
    assert "'w' was replaced" in when.take_notes()[-1][1]


def test_nothing_is_recorded_before_it_may_start(instant):
    learner = Alternating()
    learn(Chain(learner.update, learner, When("beside", lambda: False)), learner, 10)
    assert (learner.calls, instant.made) == ([10], 0)


def test_a_rare_program_is_not_compiled(instant):
    class Periodic(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            self.w.add_(columns["x"])
            if (counts.opt_steps + 1) % 100 == 0:
                self.w.zero_()
            return (self.w.sum(),)

    for time in ("before", "beside"):
        learner, plain = Periodic(), Periodic()
        chain, made = Chain(learner.update, learner, When(time)), instant.made
        learn(chain, learner, 250)
        for i in range(250):
            plain.update({"x": torch.full((3,), 1.0 + i)}, Counts(i, 0))
        assert torch.equal(learner.w, plain.w)
        assert instant.made == made + 1
        assert learner.calls[0] <= 6


def test_other_sizes_and_strides_of_the_batch_have_programs_of_their_own(instant):
    w = torch.zeros(())
    chain = Chain(
        lambda columns, counts: (w.add_((columns["x"] * torch.arange(6.0)[: len(columns["x"])]).sum()),),
        w,
        When("before"),
    )
    for x in (torch.ones(2), torch.ones(3), torch.arange(6.0)[::2], torch.ones(3)):
        before = w.item()
        chain({"x": x})
        assert w.item() == before + (x * torch.arange(6.0)[: len(x)]).sum().item()
    assert instant.made == 3


def test_an_update_that_needs_values_runs_as_before_with_one_warning(instant):
    class Deciding(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            self.w.add_(columns["x"] if columns["x"].sum() > 0 else 0.0)
            return (self.w.sum(),)

    for time in ("before", "beside"):
        learner = Deciding()
        assert "test_chain.py" in one_warning(learner, 5, time)
        assert (learner.calls, learner.w.tolist()) == ([5], [15.0] * 3)


def test_a_failed_compilation_is_one_warning_and_changes_nothing(instant):
    instant.problem = "there is no compiler"
    for time in ("before", "beside"):
        learner = Alternating()
        assert "there is no compiler" in one_warning(learner, 12, time)
        assert torch.equal(learner.w, eager(12)[1])


def test_a_library_that_cannot_be_loaded_is_one_warning(monkeypatch, tmp_path):
    def library(self, wait):
        (tmp_path / "damaged.so").write_text("no library")
        return str(tmp_path / "damaged.so")

    instant = without_compiler(monkeypatch)
    monkeypatch.setattr(instant, "library", library)
    monkeypatch.setattr(chain_module, "Program", Program)
    for time in ("before", "beside"):
        learner = Alternating()
        assert "damaged.so cannot be loaded" in one_warning(learner, 12, time)
        assert torch.equal(learner.w, eager(12)[1])
        assert not (tmp_path / "damaged.so").exists()


def test_a_cache_of_another_user_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    learner = Alternating()
    assert "other users can change the folder" in one_warning(learner, 4, "before")
    assert torch.equal(learner.w, eager(4)[1])


def test_updates_that_keep_their_own_count_or_replace_a_tensor_are_not_compiled(instant):
    class Counting(Alternating):
        count = 0

        def update(self, columns, counts):
            self.count += 1
            self.w.add_(columns["x"] * self.count)
            return (self.w.sum(),)

    class Replacing(Alternating):
        def update(self, columns, counts):
            self.w = self.w + columns["x"]
            return (self.w.sum(),)

    for kind, total in ((Counting, 1 + 4 + 9 + 16 + 25), (Replacing, 15)):
        learner = kind()
        assert one_warning(learner, 5)
        assert learner.w.tolist() == [total] * 3


def test_an_update_that_counts_its_calls_is_not_compiled_even_if_nothing_differs_yet(instant):
    class Late(Alternating):
        def __init__(self):
            super().__init__()
            self.count = 0

        def update(self, columns, counts):
            self.count += 1
            self.w.add_(columns["x"] if self.count < 8 else -columns["x"])
            return (self.w.sum(),)

    learner = Late()
    assert "changes the attribute 'count'" in one_warning(learner, 10)
    assert learner.w.tolist() == [sum(range(1, 8)) - sum(range(8, 11))] * 3


def test_updates_that_always_differ_are_given_up(instant):
    class Numeric(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            self.w.add_(columns["x"] * (1.0 / (1 + counts.opt_steps)))
            return (self.w.sum(),)

    for time in ("before", "beside"):
        learner, plain = Numeric(), Numeric()
        assert f"more than {MOST_VARIANTS} ways" in one_warning(learner, 30, time)
        for i in range(30):
            plain.update({"x": torch.full((3,), 1.0 + i)}, Counts(i, 0))
        torch.testing.assert_close(learner.w, plain.w)


def test_an_update_whose_condition_fails_is_undone(instant):
    class Careful(Alternating):
        def update(self, columns, counts):
            if tape := recording():
                tape.require(columns["x"].isfinite().all())
            self.w.add_(columns["x"])
            return (self.w.sum(),)

    learner = Careful()
    chain = Chain(learner.update, learner, When("before"), lambda: "skipped")
    chain({"x": torch.ones(3)})
    assert (chain({"x": torch.tensor([1.0, float("nan"), 1.0])}), learner.w.tolist()) == ("skipped", [1.0] * 3)
    chain({"x": torch.ones(3)})
    assert learner.w.tolist() == [2.0] * 3


@pytest.mark.parametrize("time", ["before", "beside"])
@pytest.mark.parametrize("is_traceable", [True, False])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_update_is_undone_while_it_is_recorded_too(instant, time, is_traceable, bad):
    class Careful(Alternating):
        def update(self, columns, counts):
            if not is_traceable:
                float(columns["x"].sum())
            is_sound = columns["x"].isfinite().all()
            if tape := recording():
                tape.require(is_sound)
            elif not is_sound:
                return "skipped"
            self.w.add_(columns["x"])
            return (self.w.sum(),)

    learner = Careful()
    chain = Chain(learner.update, learner, When(time), lambda: "skipped")
    results = [chain({"x": torch.full((3,), float("nan") if i == bad else 1.0)}) for i in range(4)]
    assert [result == "skipped" for result in results] == [i == bad for i in range(4)]
    assert learner.w.tolist() == [3.0] * 3


def test_a_tensor_that_is_replaced_between_updates_ends_the_program(instant):
    class Reading(Alternating):
        factor = None

        def update(self, columns, counts):
            self.w.add_(columns["x"] * self.factor)
            return (self.w.sum(),)

    learner, when = Reading(), When("before")
    learner.factor = torch.tensor(1.0)
    chain = Chain(learner.update, learner, when)
    learn(chain, learner, 2)
    assert learner.w.tolist() == [3.0] * 3
    columns = {"x": torch.ones(3)}
    assert chain.bound(columns, Counts(0, 0)) is not None
    learner.factor = torch.tensor(10.0)
    assert chain.bound(columns, Counts(0, 0)) is None
    learn(chain, learner, 2)
    assert learner.w.tolist() == [33.0] * 3
    assert "the attribute 'factor' was replaced" in when.take_notes()[-1][1]


def test_reset_forgets_programs_because_tensors_were_replaced(instant):
    learner, when = Alternating(), When("before")
    chain = Chain(learner.update, learner, when)
    learn(chain, learner, 2)
    learner.w = torch.zeros(3)
    when.reset()
    learn(chain, learner, 2)
    assert torch.equal(learner.w, eager(2)[1])


def test_pays_off_waits_and_then_needs_a_long_rest():
    now = [0.0]
    short, long = (PaysOff(planned, lambda: now[0]) for planned in (1_000, 100_000))
    answers = []
    for second in range(40):
        now[0] = float(second)
        answers.append(([short() for _ in range(100)][-1], [long() for _ in range(100)][-1]))
    assert not any(short_may for short_may, _ in answers)
    assert [long_may for _, long_may in answers] == [False] * 20 + [True] * 20


def differences(name, num, when, skips=False):
    """Return the largest difference of each tensor after equal updates, relative to its change."""
    case, states = case_of(name), []
    for chain in (None, when):
        context = case.context(skips=skips)
        context = Context(**{**vars(context), "chain": chain})
        algorithm = case.algorithm(context=context)
        first = {key: tensor.clone() for key, tensor in algorithm.state().items()}
        run = algorithm.learn if chain is None else chained_learn(algorithm, chain)
        for i in range(num):
            algorithm.optimizer.schedule(i)
            run(case.batch(i), Counts(i, i))
        states.append(algorithm.state())
    eager_state, chain_state = states
    assert eager_state.keys() == chain_state.keys()
    for key, tensor in eager_state.items():
        if not tensor.is_floating_point():
            assert torch.equal(tensor, chain_state[key]), key
    floats = [key for key, tensor in eager_state.items() if tensor.is_floating_point()]
    return {
        key: float((chain_state[key] - eager_state[key]).norm() / ((eager_state[key] - first[key]).norm() + 1e-6))
        for key in floats
        if key in first
    }


FEW = ("dqn", "iqn", "mpo", "ppo", "r2d2", "sac", "td3")


@pytest.mark.slow
@pytest.mark.parametrize("name", some(NAMES, *FEW))
def test_every_algorithm_makes_the_same_updates_as_a_graph(instant, name):
    when = When("before")
    found, notes = differences(name, 6, when), when.take_notes()
    if name in UNTRACEABLE:
        assert UNTRACEABLE[name] in notes[0][1]
    else:
        assert [level for level, _ in notes] == [logging.INFO]
        assert instant.made > 0
    assert found["params"] < 1e-4
    assert max(found.values()) < 1e-3, found


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["iqn", "ppo", "sac"])
def test_algorithms_make_the_same_updates_compiled(name):
    when = When("before")
    found = differences(name, 20, when)
    assert [level for level, _ in when.take_notes()] == [logging.WARNING if name in UNTRACEABLE else logging.INFO]
    assert found["params"] < 1e-4, found


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_a_small_update_is_compiled_for_real_and_taken_from_the_cache_the_next_time(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for _ in range(2):
        learner, when = Alternating(), When("before")
        learn(Chain(learner.update, learner, when), learner, 3)
        assert torch.equal(learner.w, eager(3)[1])
        assert when.take_notes()[0][0] == logging.INFO
    assert len([*tmp_path.glob("*.so")]) == 2
    assert list((tmp_path / "tmp").iterdir()) == []
    np.testing.assert_array_equal(learner.calls, [4])

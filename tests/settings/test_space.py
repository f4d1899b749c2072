import numpy as np
import pytest

from drl_cli.errors import UsageError
from drl_cli.settings.space import Choice, Interval, corners, jobs, space, typed

LR = "algo.lr=tag(log,interval(1e-4,3e-3))"
SPACE = {"algo.lr": Interval(1e-4, 1e-2, is_log=True), "network.hidden": Choice(("[64]", "[32,32]"))}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=0,1", "mode=single"], [["seed=0", "mode=single"], ["seed=1", "mode=single"]]),
        (["seed=0,1", "x=2,3"], [[f"seed={i}", f"x={j}"] for i in (0, 1) for j in (2, 3)]),
        (["network.hidden=[64,64],[256]"], [["network.hidden=[64,64]"], ["network.hidden=[256]"]]),
        (["algo.lr=choice(0.1,0.2)"], [["algo.lr=0.1"], ["algo.lr=0.2"]]),
        (["seed=range(1,4)"], [["seed=1"], ["seed=2"], ["seed=3"]]),
        (["mode=glob(s*)"], [["mode=single"], ["mode=sync"]]),
        (["x='a b','c,d'"], [["x='a b'"], ["x='c,d'"]]),
        (["env.kwargs.g=5,6"], [["env.kwargs.g=5"], ["env.kwargs.g=6"]]),
        (["x=null,true"], [["x=null"], ["x=true"]]),
        (["worker.exploration=[{a:1},{b:2}]"], [["worker.exploration=[{a:1},{b:2}]"]]),
    ],
)
def test_the_jobs_of_a_grid(overrides, expected):
    assert jobs(overrides) == expected


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("seed=0,", "can't be read"),
        ("seed=range(3,1)", "no value"),
        ("algo.lr=interval(1,2)", "an interval is for a search"),
        ("algo.lr=glob(*)", "glob is for groups"),
        ("mode=glob(x*)", "no value"),
    ],
)
def test_what_is_no_grid(override, says):
    with pytest.raises(UsageError, match=says) as raised:
        jobs(["seed=0,1", override])
    assert override in str(raised.value)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("x=interval(0,1)", Interval(0, 1)),
        (LR, Interval(1e-4, 3e-3, is_log=True)),
        ("x=int(interval(1,8))", Interval(1, 8, is_int=True)),
        ("x=int(tag(log,interval(1,8)))", Interval(1, 8, is_log=True, is_int=True)),
        ("x=range(1,9,2)", Interval(1, 7, is_int=True, step=2)),
        ("x=choice([64,64],[256])", Choice(("[64,64]", "[256]"))),
    ],
)
def test_the_domain_of_a_key(text, domain):
    assert space(["seed=3", text]) == (["seed=3"], {text.partition("=")[0]: domain})


def test_every_end_of_a_space_is_a_corner():
    assert corners(SPACE) == [
        *[["algo.lr=0.0001", "network.hidden=[64]"], ["algo.lr=0.01", "network.hidden=[64]"]],
        *[["algo.lr=0.00388146", "network.hidden=[64]"], ["algo.lr=0.0001", "network.hidden=[32,32]"]],
    ]
    assert corners({"a": Interval(2, 8, is_int=True)}) == [["a=2"], ["a=8"]]


def test_values_as_overrides():
    values = {"a": 0.000123456789, "b": 3, "c": "[1,2]", "d": 1e-7}
    assert typed(values) == ["a=0.000123457", "b=3", "c=[1,2]", "d=1e-07"]


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
def test_values_stay_in_their_domain_and_cover_it(domain):
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
        (Interval(2, 11, is_int=True, step=3), 11, {8, 11}),
        (Choice(("a", "b", "c")), "b", {"a", "c"}),
    ],
)
def test_a_value_moves_in_both_directions(domain, value, moved):
    rng = np.random.default_rng(0)
    found = {domain.near(value, rng) for _ in range(50)}
    assert sorted(found) == (sorted(moved) if isinstance(domain, Choice) else pytest.approx(sorted(moved)))

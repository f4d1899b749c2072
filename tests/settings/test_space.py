"""The jobs of a command line with -m."""

import pytest

from drl_cli.errors import UsageError
from drl_cli.settings.space import jobs


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=0,1", "mode=single"], [["seed=0", "mode=single"], ["seed=1", "mode=single"]]),
        (["seed=0,1", "x=2,3"], [[f"seed={i}", f"x={j}"] for i in (0, 1) for j in (2, 3)]),
        (["env=my_mod:My-v0,ALE/Pong-v5"], [["env=my_mod:My-v0"], ["env=ALE/Pong-v5"]]),
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
        ("seed=choice(", "can't be read"),
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

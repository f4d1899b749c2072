import sys

import fake_envpool
import pytest

from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.envpool_tasks import find_task
from drl_cli.envs.make import read_spec
from drl_cli.types import ActionSpec, Column


def config(id, **kwargs):
    return EnvConfig("test", id, kwargs, None, 1.0, "none", False, False, "envpool")


@pytest.fixture
def library(monkeypatch):
    fake_envpool.install(monkeypatch)


def test_spec_of_an_envpool_task(library):
    spec = read_spec(config("FakeCounter-v0"))
    assert (spec.obs, spec.action) == (Column((3,), "float32"), ActionSpec("box", 1, "Box(1,)"))


def test_arguments_may_select_another_id(library):
    task = find_task(config("FakeCounter-v0", base_length=9))
    assert (task.id, task.options) == ("FakeCounterLong-v0", {})
    task = find_task(config("FakeCounter-v0", base_length=4))
    assert (task.id, task.options) == ("FakeCounter-v0", {"base_length": 4})
    assert find_task(config("FakeCounter-v0")).id == "FakeCounter-v0"


@pytest.mark.parametrize(
    ("id", "kwargs", "match"),
    [
        ("FakeCountr-v0", {}, "EnvPool has no 'FakeCountr-v0'. Did you mean FakeCounter-v0.* env.backend=gymnasium"),
        ("Pendulum-v1", {}, "EnvPool has no 'Pendulum-v1'. env.backend=gymnasium"),
        ("drl_cli.envs.probes:Counter-v0", {}, "EnvPool has no 'drl_cli.envs.probes:Counter-v0'. Did you mean FakeC"),
        ("FakeCounter-v0", {"spread": 2}, "env.kwargs.spread: EnvPool's FakeCounter-v0 has no .*base_length, fault"),
        ("FakeCounter-v0", {"num_envs": 2}, "env.kwargs.num_envs: EnvPool's FakeCounter-v0 has no such option"),
        ("FakeCounter-v0", {"base_length": "x"}, "EnvPool does not make FakeCounter-v0 with .*TypeError"),
        ("FakeChoices-v0", {}, "FakeChoices-v0 has Discrete.3. actions, Gymnasium's, which evaluations play, Box"),
        ("FakeGame-v0", {}, "has 2 players"),
        ("FakeOnly-v0", {}, "only EnvPool has 'FakeOnly-v0', and evaluations play Gymnasium's environment"),
    ],
)
def test_tasks_that_are_refused(library, id, kwargs, match):
    with pytest.raises(EnvError, match=match):
        read_spec(config(id, **kwargs))


def test_without_envpool_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtra, match=r"env.backend=envpool needs EnvPool:  pip install 'drl-cli\[envpool\]'"):
        read_spec(config("LunarLander-v3"))
    read_spec(config("LunarLander-v3"), trains=False)  # what has been trained can be evaluated anywhere

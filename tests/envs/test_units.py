import json

import gymnasium
import numpy as np
import pytest
from graphs import make_config

from drl_cli.envs.make import read_spec
from drl_cli.envs.units import Units


def units(*overrides):
    config = make_config(*overrides)
    return Units(config.env, read_spec(config.env))


def refuse(constant):
    pytest.fail(f"{constant} is no json")


def test_a_tree_of_every_kind():
    signature = units(
        "env=everything:Everything-v0", "+env.kwargs.masked=true", "+env.kwargs.discrete=true"
    ).signature()
    signature = json.loads(json.dumps(signature), parse_constant=refuse)
    inputs = {part["name"]: part for part in signature["inputs"]}
    assert list(inputs) == ["obs.camera", "obs.inner.0", "obs.inner.1", "obs.inner.2", "obs.who", "action_mask"]
    assert inputs["obs.inner.0"] | {"path": ["inner", 0], "start": -2, "choices": [4]} == inputs["obs.inner.0"]
    assert inputs["obs.inner.1"]["start"] == [0, 5]
    assert (inputs["obs.who"]["low"], inputs["obs.who"]["high"]) == (None, [1.0, None])
    assert [inputs[name]["dtype"] for name in inputs] == ["uint8", "int64", "int64", "bool", "float32", "bool"]
    assert inputs["action_mask"] | {"path": [], "shape": [13]} == inputs["action_mask"]
    assert [part["name"] for part in signature["outputs"]] == ["action.move", "action.turn.0", "action.turn.1"]
    assert signature["actions"] == {"move": None, "turn": [None, None]}


def test_boxes_without_bounds():
    signature = json.loads(json.dumps(units("env=everything:Unbounded-v0").signature()), parse_constant=refuse)
    (action,) = signature["outputs"]
    assert (action["low"], action["high"], action["dtype"]) == (
        [None, pytest.approx(-0.1), -1],
        [None, None, 2],
        "float64",
    )
    (obs,) = signature["inputs"]
    assert (obs["low"], obs["high"]) == (-1, 1)


def test_batches_equal_those_of_vector_environments():
    found = units("env=everything:Everything-v0")
    env = gymnasium.make_vec("everything:Everything-v0", 3, vectorization_mode="sync")
    env.reset(seed=0)
    rows = [found.observations.sample() for _ in range(3)]
    assert env.observation_space.contains(found.joined(rows))
    actions = env.action_space.sample()
    for one, action in enumerate(found.apart(actions, 3)):
        assert np.array_equal(action["turn"][1], actions["turn"][1][one])
        assert found.actions.contains(action)

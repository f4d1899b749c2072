"""Recorded steps become what a worker makes of them: the inverse map of actions, and observations in rows."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from recorded_envs import env_config

from drl_cli.envs.actions import ActionMap, action_spec
from drl_cli.envs.config import ACTIONS_OF, SPACES_ONLY, EnvError, EnvFault
from drl_cli.envs.make import Env, build, read_spec
from drl_cli.envs.observations import ObsMap, obs_spec
from drl_cli.envs.recorded import StepMap, inferred_space
from drl_cli.envs.trees import parts_of, space_from_json, space_to_json
from drl_cli.types import EnvSpec, leaves

INF = np.inf
PLANE = Box(-1, 1, (2,), np.float32)
ACTIONS = [
    Box(-1, 1, (3,), np.float32),
    Box(np.array([[-2, 0], [5, -1]]), np.array([[2, 3], [7, 1]]), dtype=np.float64),
    Box(0.0, 10.0, (), np.float32),
    Box(np.array([-INF, 0, -1, -3]), np.array([INF, INF, 2, -3]), dtype=np.float32),
    Discrete(4, start=-2),
    MultiDiscrete([[3, 2], [2, 4]], start=[[1, 2], [3, 4]]),
    MultiBinary(3),
    Dict(a=Box(-2, 2, (2,)), b=Tuple((Box(0, 1, ()), Box(-1, 1, (1, 2))))),
    Tuple((Discrete(3, start=2), Dict(x=MultiDiscrete([2, 5]), y=MultiBinary(2)))),
]


def policy_actions(space, rows, rng):
    spec = action_spec("x", space)
    if spec.kind == "box":
        return rng.uniform(-1, 1, (rows, spec.size)).astype(np.float32)
    draws = np.stack([rng.integers(n, size=rows) for n in spec.choices], 1)
    return draws[:, 0] if spec.kind == "discrete" else draws


def stacked(values):
    parts = [parts_of(value) for value in values]
    return {path: np.stack([each[path] for each in parts]) for path in parts[0]}


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_the_inverse_of_the_action_map(space):
    actions = policy_actions(space, 50, np.random.default_rng(0))
    if isinstance(space, Box) and (flat := space.low.ravel() == space.high.ravel()).any():
        actions[:, flat] = 0  # a dimension without width
    there = ActionMap(space)
    if isinstance(space, Box) and not np.isfinite(space.high).all():
        actions[:, 1] = abs(actions[:, 1])  # inside the only bound
    back, clamped = there.inverse(stacked(there.convert(actions)))
    np.testing.assert_allclose(back, actions, atol=1e-6)
    column = action_spec("x", space).column
    assert (back.shape[1:], back.dtype.name, clamped) == (column.shape, column.dtype, 0)
    raw, given = StepMap.of_spaces("x", PLANE, space).raw_actions(actions), stacked(there.convert(actions))
    assert raw.keys() == given.keys()
    for path in raw:
        np.testing.assert_array_equal(raw[path], given[path])


def test_values_outside_a_box_are_clamped_and_counted():
    space = Box(np.array([0, -INF, -1]), np.array([10, INF, INF]), dtype=np.float32)
    given = np.array([[12.0, 99, -3], [10.00001, -99, 5], [-1, 0, -1]])
    actions, clamped = ActionMap(space).inverse({"": given})
    np.testing.assert_allclose(actions, [[1, 99, -1], [1, -99, 5], [-1, 0, -1]])
    assert clamped == 3, "10.00001 is a rounding error"
    parts = Dict(a=space, b=PLANE)
    assert ActionMap(parts).inverse({"a": given, "b": np.full((3, 2), 2.0)})[1] == 9


@pytest.mark.parametrize(
    ("space", "given", "text"),
    [
        (Discrete(3, start=1), [1, 4], r"action 4 is outside Discrete\(3, start=1\)"),
        (Discrete(3, start=1), [1, 0], "action 0 is outside"),
        (Discrete(3), [0.5], "action 0.5 is outside"),
        (MultiDiscrete([2, 3]), [[1, 3]], "action 3 is outside"),
        (MultiBinary(2), [[1, 2]], "action 2 is outside"),
        (Box(-1, 1, (2,)), [[1.0]], r"action has shape \(1,\), expected \(2,\)"),
        (Discrete(2), [[1]], r"action has shape \(1,\), expected \(\)"),
    ],
)
def test_what_is_no_action_of_the_space(space, given, text):
    with pytest.raises(EnvFault, match=text):
        ActionMap(space).inverse({"": np.array(given)})


OBSERVATIONS = [
    *[Box(-INF, INF, (3,), np.float64), Box(0, 255, (4, 4, 3), np.uint8), Box(0, 1, (2, 2), np.bool_)],
    *[Box(-5, 5, (2,), np.int64), Discrete(5, start=-2)],
    MultiDiscrete([[3, 2], [4, 9]], start=[[1, 2], [3, 4]]),
    MultiBinary(4),
    Dict(eye=Box(0, 255, (4, 4), np.uint8), arm=Tuple((Box(-1, 1, ()), Discrete(3, start=7)))),
    Dict(goal=PLANE, action_mask=MultiBinary(4)),
]


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_rows_of_observations_are_those_of_the_environment(space):
    spec = EnvSpec("x", obs_spec("x", space, action := action_spec("x", Discrete(4)), {}), action)
    space.seed(0)
    values = [space.sample() for _ in range(20)]
    rows, read = StepMap(space, Discrete(4), spec).obs(stacked(values)), ObsMap(space, spec)
    for path, column in leaves(spec.obs).items():
        expected = np.stack([read(value, {})[path] for value in values]).astype(column.dtype)
        np.testing.assert_array_equal(rows[path], expected)
        assert rows[path].dtype == column.dtype
    raw = StepMap(space, Discrete(4), spec).raw_obs(rows)
    for path, part in stacked(values).items():
        assert (raw[path].dtype, raw[path].shape) == (part.dtype, part.shape)
        np.testing.assert_allclose(raw[path], part, rtol=1e-6)


def test_masks_of_components():
    actions = MultiDiscrete([2, 3])
    steps = StepMap.of_spaces("x", Discrete(4, start=1), actions, has_mask=True)
    assert steps.obs_paths == ["obs", "action_mask"]
    masks = np.array([[0, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
    rows = steps.obs({"obs": np.array([1, 2, 4]), "action_mask": masks})
    np.testing.assert_array_equal(rows["obs"], [0, 1, 3])
    assert rows["action_mask"].tolist() == [[0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("space", "given", "text"),
    [
        (Discrete(3, start=1), [1, 0], "observation is outside its space"),
        (MultiDiscrete([2, 3]), [[1, 3]], "observation is outside its space"),
        (PLANE, [[1.0]], r"observation has shape \(1,\), expected \(2,\)"),
        (Dict(a=PLANE), [[1.0]], r"observation 'a' has shape \(1,\), expected \(2,\)"),
    ],
)
def test_what_is_no_observation_of_the_space(space, given, text):
    path = "a" if isinstance(space, Dict) else ""
    with pytest.raises(EnvFault, match=text):
        StepMap.of_spaces("x", space, PLANE).obs({path: np.array(given)})


@pytest.mark.parametrize("space", [*ACTIONS, *OBSERVATIONS], ids=str)
def test_spaces_as_json(space):
    text = space_to_json(space)
    assert space_from_json(text) == space
    json.loads(text)
    if not isinstance(space, MultiBinary):
        minari = pytest.importorskip("minari.serialization", reason="needs drl-cli[minari]")
        assert minari.deserialize_space(text) == space
        assert space_from_json(minari.serialize_space(space)) == space


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"type": "Box"}', '{"type": "Graph"}', '{"type": "Discrete", "n": "x"}']
)
def test_texts_without_a_space(text):
    with pytest.raises(EnvError):
        space_from_json(text)


def test_a_space_that_cant_be_recorded():
    with pytest.raises(EnvError, match="can't be recorded"):
        space_to_json(Dict(a=Text(5)))


def bounds(values):
    return {path: (str(part.dtype), part.shape[1:], part.min(0), part.max(0)) for path, part in values.items()}


@pytest.mark.parametrize(
    ("values", "is_action", "space"),
    [
        (np.array([[0.5, -1.0]], np.float32), True, Box(-1, 1, (2,), np.float32)),
        (np.array([[3.0, -1], [-2, 0]]), True, Box(np.array([-2, -1]), np.array([3, 0]), dtype=np.float32)),
        (np.array([[3.0, -1]]), False, Box(-INF, INF, (2,), np.float32)),
        (np.array([2, 4]), True, Discrete(5)),
        (np.array([-1, 4]), False, Discrete(6, start=-1)),
        (np.array([[2, 0], [0, 3]]), True, MultiDiscrete([3, 4])),
        (np.array([[True, False]]), False, MultiBinary((2,))),
        (np.zeros((1, 2, 2), np.uint8), False, Box(0, 255, (2, 2), np.uint8)),
    ],
)
def test_spaces_that_fit_the_values(values, is_action, space):
    assert inferred_space(bounds({"": values}), is_action) == space
    nested = {"a.b": values, "c": np.zeros((2, 1))}
    c = Box(-1, 1, (1,)) if is_action else Box(-INF, INF, (1,))
    assert inferred_space(bounds(nested), is_action) == Dict(a=Dict(b=space), c=c)


def test_differences_of_spaces():
    steps = StepMap.of_spaces("Mine-v0", PLANE, Box(-1, 1, (1,)))
    assert steps.differences(Box(-9, 9, (2,), np.float64), Box(-1, 1, (1,), np.float64)) == []
    assert [line[:25] for line in steps.differences(Box(-1, 1, (3,)), Box(-2, 2, (1,)))] == [
        "its observations are Box(",
        "its actions are Box(-2.0,",
    ]
    assert len(StepMap.of_spaces("x", PLANE, Discrete(3)).differences(PLANE, Discrete(3, start=1))) == 1
    with_mask = StepMap.of_spaces("x", PLANE, Discrete(3), has_mask=True)
    assert with_mask.differences(PLANE, Discrete(3)) == []
    assert with_mask.differences(PLANE, Text(3)) != []
    nested = StepMap.of_spaces("x", PLANE, Dict(a=PLANE, b=PLANE))
    for other in (Dict(a=PLANE), PLANE, Dict(a=PLANE, b=Box(-2, 2, (2,)))):
        assert len(nested.differences(PLANE, other)) == 1


BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    "actions", [BOX, spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.Discrete(4, start=1)], ids=str
)
def test_an_episode_has_samples_of_its_spaces(actions):
    kwargs = {"observations": space_to_json(BOX), "actions": space_to_json(actions), "has_mask": actions != BOX}
    config = env_config(id=SPACES_ONLY, **kwargs)
    spec = read_spec(config, trains=False)
    assert (spec.action.choices != ()) == (actions != BOX)
    env = build(config)
    assert (env.observation_space, env.action_space) == (BOX, actions)
    first, again = (env.reset(seed=7)[0] for _ in range(2))
    assert (first == again).all()
    ends = [env.step(actions.sample())[1:4] for _ in range(100)]
    assert ends == [(0.0, False, False)] * 99 + [(0.0, False, True)]
    masked = Env(config, spec)
    parts = masked.reset(seed=0)
    assert ("action_mask" in parts) == (actions != BOX)
    assert all(part.all() for path, part in parts.items() if path == "action_mask")


def test_the_actions_of_a_dataset_are_clamped_and_not_scaled():
    box = spaces.Box(-3.0, 3.0, (1,))
    wrapper = {"_name_": ACTIONS_OF, "actions": space_to_json(box)}
    env = build(replace(env_config(id="Pendulum-v1"), wrappers=(wrapper,)))
    assert env.action_space == box
    sent = []
    inner = env.env.step
    env.env.step = lambda action: sent.append(action) or inner(action)
    env.reset(seed=0)
    for value in (-3.0, 0.5, 2.5):
        env.step(np.array([value], np.float32))
    assert np.concatenate(sent).tolist() == [-2.0, 0.5, 2.0]
    assert isinstance(env, gymnasium.ActionWrapper)

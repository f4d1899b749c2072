import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

from drl_cli.envs.config import EnvConfig, EnvError
from drl_cli.envs.make import Env, read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.types import ActionSpec, Column, FrameStack, flat_columns, leaves, map_parts, random_obs, tree

PLANE = Box(-1.0, 1.0, (1,), np.float32)


class Any(gymnasium.Env):
    """Samples observations from its space, keeps the actions, and checks that they are in its action space."""

    def __init__(self, obs=PLANE, action=PLANE, change=lambda obs, count: obs):
        self.observation_space, self.action_space, self.change = obs, action, change
        self.actions, self.count = [], 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(action)
        self.count += 1
        return self._obs(), 1.0, False, self.count == 5, {}

    def _obs(self):
        self.obs = self.observation_space.sample()
        return self.change(self.obs, self.count)


gymnasium.register("TestAny-v0", Any)


def config(**kwargs):
    return EnvConfig("test", "TestAny-v0", kwargs, None, 1.0, "auto", False, False)


def spec(**kwargs):
    return read_spec(config(**kwargs))


@pytest.mark.parametrize(
    ("space", "columns"),
    [
        (Box(0, 255, (4, 4, 3), np.uint8), Column((4, 4, 3), "uint8")),
        (Box(-1, 1, (2,), np.float64), Column((2,), "float32")),
        (Box(-np.inf, np.inf, (2, 3), np.float32), Column((2, 3), "float32")),
        (Box(-5, 5, (2,), np.int64), Column((2,), "float32")),
        (Box(0, 1, (), np.float32), Column((), "float32")),
        (Box(0, 1, (10, 10, 4), np.bool_), Column((10, 10, 4), "bool")),
        (MultiBinary([2, 3]), Column((2, 3), "bool")),
        (Discrete(5, start=-2), Column((), "int32", (5,))),
        (MultiDiscrete([[3, 2], [4, 9]], start=[[1, 2], [3, 4]]), Column((2, 2), "int32", (3, 2, 4, 9))),
        (Dict(only=PLANE), {"only": Column((1,), "float32")}),
        (
            Dict(
                camera=Box(0, 255, (4, 4), np.uint8),
                arm=Dict(angles=Box(-3, 3, (2,), np.float64), grip=Tuple((Discrete(2), MultiBinary(3)))),
            ),
            {
                "arm.angles": Column((2,), "float32"),
                "arm.grip.0": Column((), "int32", (2,)),
                "arm.grip.1": Column((3,), "bool"),
                "camera": Column((4, 4), "uint8"),
            },
        ),
        (Tuple((PLANE, Tuple((Discrete(3),)))), {"0": Column((1,), "float32"), "1.0": Column((), "int32", (3,))}),
    ],
)
def test_observations_become_columns(space, columns):
    """The batch returns the values of the space in the same order, with choices counted from 0."""
    assert spec(obs=space).obs == columns
    envs = EnvBatch(config(obs=space), spec(obs=space), [1, 2])
    for _ in range(7):
        step = envs.step(np.zeros((2, 1), np.float32))
        for i, env in enumerate(envs.envs):
            assert same(envs.obs, i, env.raw.unwrapped.obs, space)
        parts = step.next_obs if isinstance(columns, dict) else {"": step.next_obs}
        assert list(parts) == list(leaves(spec(obs=space).obs))
        for path, column in leaves(columns).items():
            part = parts[path]
            assert (part.shape, part.dtype) == ((2, *column.shape), column.dtype)
            assert not column.choices or (part.min() >= 0 and (part < np.reshape(column.choices, column.shape)).all())


def same(obs, i, raw, space, path=""):
    """Return whether row i of the observations equals an environment's own observation."""
    if isinstance(space, Dict | Tuple):
        inner = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return all(same(obs, i, raw[key], part, f"{path}.{key}" if path else str(key)) for key, part in inner)
    part = obs[path] if path else obs
    return np.array_equal(part[i], np.asarray(raw - getattr(space, "start", 0)).astype(part.dtype))


class Strange(spaces.Space):
    """An unknown kind of space."""

    def __repr__(self):
        return "Strange()"


@pytest.mark.parametrize(
    ("space", "match"),
    [
        (Text(5), r"observations of Text\(.*not handled; Box, .* are. Wrap it: env.wrappers="),
        *[(Sequence(PLANE), r"observations of Sequence\("), (Graph(PLANE, None), r"observations of Graph\(")],
        *[(OneOf((PLANE, PLANE)), r"observations of OneOf\("), (Strange(), r"observations of Strange\(\)")],
        (Dict(a=PLANE, b=Tuple((PLANE, Text(5)))), r"in its observations, at 'b.1', Text\("),
        (Dict({"a.b": PLANE}), "the key 'a.b' in its observations; keys must have a name without a dot"),
        (Dict({"": PLANE}), "the key '' in its observations"),
        (Dict(a=Dict()), "at 'a', an empty Dict"),
        (Tuple(()), "observations of an empty Tuple"),
    ],
)
def test_observations_that_are_refused(space, match):
    with pytest.raises(EnvError, match=f"^env: TestAny-v0 has .*{match}"):
        spec(obs=space)


@pytest.mark.parametrize(
    ("space", "kind", "size", "choices", "given", "expected"),
    [
        (Discrete(4, start=-2), "discrete", 4, (4,), [3], 1),
        (MultiDiscrete([3, 2], start=[1, 7]), "multidiscrete", 5, (3, 2), [[2, 0]], [3, 7]),
        (MultiDiscrete([[3, 2], [2, 4]]), "multidiscrete", 11, (3, 2, 2, 4), [[2, 0, 1, 3]], [[2, 0], [1, 3]]),
        (MultiBinary(3), "multidiscrete", 6, (2, 2, 2), [[1, 0, 1]], [1, 0, 1]),
        (Box(0.0, 10.0, (2, 1), np.float64), "box", 2, (), [[-1, 0.5]], [[0.0], [7.5]]),
        (Box(0.0, 10.0, (), np.float32), "box", 1, (), [[0.5]], 7.5),
        (
            Dict(a=Box(0.0, 2.0, (2,)), b=Tuple((Box(-4.0, 4.0, (1, 1)), Box(-1.0, 1.0, ())))),
            *("box", 4, (), [[0.5, -1, 0.25, 0.1]], {"a": [1.5, 0.0], "b": ([[1.0]], 0.1)}),
        ),
        (
            Tuple((Discrete(3, start=5), Dict(c=MultiBinary(2), d=MultiDiscrete([4, 5])))),
            *("multidiscrete", 16, (3, 2, 2, 4, 5), [[2, 0, 1, 3, 4]], (7, {"c": [0, 1], "d": [3, 4]})),
        ),
    ],
)
def test_actions_are_converted_to_the_space(space, kind, size, choices, given, expected):
    found = spec(action=space).action
    assert (found.kind, found.size, found.choices) == (kind, size, choices)
    assert "\n" not in found.text  # error messages have it in their first line
    dtype = np.float32 if kind == "box" else np.int64
    assert found.column.shape == np.shape(given)[1:]
    assert found.column.dtype == np.dtype(dtype).name
    env = Env(config(action=space), spec(action=space))
    env.reset(0)
    env.step(np.array(given, dtype)[0])
    (taken,) = env.raw.unwrapped.actions
    check_nested(taken, expected)
    both = env.to_env(np.array([given[0], given[0]], dtype))
    assert len(both) == 2
    check_nested(both[1], expected)


def check_nested(given, expected):
    if isinstance(expected, dict):
        assert given.keys() == expected.keys()
        for key in expected:
            check_nested(given[key], expected[key])
    elif isinstance(expected, tuple):
        assert isinstance(given, tuple)
        for one, other in zip(given, expected, strict=True):
            check_nested(one, other)
    else:
        np.testing.assert_allclose(given, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "space", [Dict(a=PLANE, b=Discrete(2)), Text(3), Tuple(()), Tuple((MultiBinary(2), PLANE)), Dict(a=Sequence(PLANE))]
)
def test_actions_that_are_refused(space):
    with pytest.raises(
        EnvError, match=r"^env: TestAny-v0 has .* actions, which are not handled; Box, Discrete, .* are"
    ):
        spec(action=space)
    with pytest.raises(EnvError) as caught:
        spec(action=space)
    assert str(space) in str(caught.value)


def test_dimensions_without_bounds_get_unscaled_actions():
    low, high = np.array([-np.inf, 0.0, -1.0, -4.0]), np.array([np.inf, np.inf, 1.0, 4.0])
    space = Box(low, high, dtype=np.float64)
    found = spec(action=space)
    assert found.action == ActionSpec("box", 4, "Box(4,)", is_free=True)
    message = "TestAny-v0: 2 dimensions of its actions have no bounds; the policy's values go in as they are"
    assert found.notes == (message,)
    env = Env(config(action=space), found)
    given = np.array([[2.7, 2.7, 2.7, 0.5], [-0.3, -0.3, -0.3, -3.0]], np.float32)
    expected = [[2.7, 2.7, 1.0, 2.0], [-0.3, 0.0, -0.3, -4.0]]
    np.testing.assert_allclose(env.to_env(given), expected, rtol=1e-6)
    assert env.to_env(given)[0, 0] == np.float32(2.7)
    assert spec(action=Box(-1.0, 1.0, (3,))).notes == ()


FAULTS = Dict(arm=Dict(angles=Box(-9, 9, (2,), np.float32)), mode=Discrete(3, start=4))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"arm": {"angles": np.zeros(3)}, "mode": 4}, "observation 'arm.angles' has shape (3,), expected (2,)"),
        ({"arm": {"angles": np.array([0, np.nan])}, "mode": 4}, "observation 'arm.angles'[1] is nan"),
        ({"arm": {}, "mode": 4}, "observation has no 'arm.angles'"),
        (np.zeros(2), "observation has no 'arm'"),
        ({"arm": {"angles": np.zeros(2)}, "mode": 3}, "observation 'mode' is outside its space"),
        ({"arm": {"angles": np.zeros(2)}, "mode": 7}, "observation 'mode' is outside its space"),
        ({"arm": {"angles": np.zeros(2)}, "mode": None}, "step raised TypeError"),
    ],
)
def test_faults_name_the_part(changed, message):
    kwargs = {"obs": FAULTS, "change": lambda obs, count: changed if count == 3 else obs}
    envs, before = EnvBatch(config(**kwargs), spec(**kwargs), [1, 2], 4), None
    for _ in range(3):
        before = map_parts(np.copy, envs.obs)
        step = envs.step(np.zeros((2, 1), np.float32))
    assert not step.valid.any()
    for path, part in step.next_obs.items():
        np.testing.assert_array_equal(part, before[path])
    first, second = envs.take_news()[1]
    assert first.startswith(f"env 0: {message}")
    assert second.startswith(f"env 1: {message}")


def test_every_image_part_has_its_own_stack():
    def change(obs, count):
        grey, colour = (np.zeros(shape, np.uint8) for shape in ((6, 5, 3), (4, 6, 5)))
        for j in range(3):
            grey[..., j] = 10 + count - 2 + j
        for j in range(4):
            colour[j] = 50 + count - 3 + j
        return {"grey": grey, "inner": (colour, np.full((6, 5), 7 + count, np.uint8)), "v": obs["v"]}

    images = [Box(0, 255, shape, np.uint8) for shape in ((6, 5, 3), (4, 6, 5), (6, 5))]
    found = spec(obs=Dict(grey=images[0], inner=Tuple(images[1:]), v=Box(0, 255, (3,), np.uint8)), change=change)
    assert found.frame_stacks == {"grey": FrameStack(-1, 3), "inner.0": FrameStack(0, 4), "inner.1": FrameStack(-1, 1)}


def test_flat_columns_and_tree_are_inverse():
    columns = {"a.b": Column((2,), "float32"), "a.c": Column((), "int32", (4,)), "action_mask": Column((3,), "bool")}
    obs = random_obs(columns, 50, np.random.default_rng(0))
    assert set(obs["a.c"].tolist()) == {0, 1, 2, 3}
    assert obs["action_mask"].all()
    flat = {**flat_columns("obs", obs), "observed": np.zeros(50), **flat_columns("next_obs", obs)}
    assert [name for name in flat if name.startswith("obs.")] == ["obs.a.b", "obs.a.c", "obs.action_mask"]
    back = tree(flat, "obs")
    assert back.keys() == obs.keys()
    assert all(back[path] is part for path, part in obs.items())
    plain = random_obs(Column((2, 2), "uint8"), 5, np.random.default_rng(0))
    assert tree(flat_columns("obs", plain), "obs") is plain
    assert plain.shape == (5, 2, 2)

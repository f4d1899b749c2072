import re
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from drl_cli.envs.config import EnvConfig, EnvError, EnvFault
from drl_cli.envs.make import build, read_spec
from drl_cli.envs.probes import Frames
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.types import Column, FrameStack


class Plus(gymnasium.ObservationWrapper):
    """Adds one to every observation."""

    def observation(self, obs):
        return obs + 1


class Times(gymnasium.ObservationWrapper):
    """Doubles every observation and concatenates it with itself."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = Box(-np.inf, np.inf, (6,), np.float32)

    def observation(self, obs):
        return np.concatenate([2 * obs, 2 * obs])


class Raises(gymnasium.Wrapper):
    def __init__(self, env):
        raise KeyError("no\nkey")


def nothing(env):
    return None


def config(*wrappers, backend="gymnasium", id="drl_cli.envs.probes:Counter-v0"):
    return EnvConfig("test", id, {}, 4, 0.5, "auto", False, False, backend, wrappers)


def named(*names):
    return config(*(f"{__name__}:{name}" for name in names))


@pytest.mark.parametrize(("names", "first"), [(("Plus", "Times"), 2.0), (("Times", "Plus"), 1.0)])
@pytest.mark.parametrize("evaluates", [False, True])
def test_the_first_wrapper_is_the_innermost(names, first, evaluates):
    made = named(*names).for_evaluation() if evaluates else named(*names)
    found = read_spec(made, trains=not evaluates)
    assert found.obs == Column((6,), "float32")
    envs = EnvBatch(made, found, [0])
    assert envs.obs.tolist() == [[first] * 6]


def test_wrappers_of_gymnasium():
    made = config("gymnasium.wrappers:FlattenObservation", id="drl_cli.envs.probes:Tree-v0")
    assert read_spec(made).obs == Column((6 * 4 * 2 + 8 + 1000 + 10**6 + 8 + 4 + 3,), "float32")


def test_a_wrapper_with_arguments():
    stacked = {"_name_": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3}
    assert read_spec(config(stacked, f"{__name__}:Plus")).obs == Column((3, 3), "float32")
    with pytest.raises(EnvFault, match=r"FrameStackObservation raised TypeError: .* 'size'"):
        build(config({**stacked, "size": 3}))
    with pytest.raises(
        EnvError, match=r"'' is not of the form my_mod:MyWrapper, or {_name_: my_mod:MyWrapper, arg: 4}"
    ):
        build(config({"name": "gymnasium.wrappers:FlattenObservation"}))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:W", "env.wrappers: can't import 'no_such_module': No module named 'no_such_module'"),
        (f"{__name__}:Pluss", f"env.wrappers: {__name__} has no 'Pluss'. Did you mean Plus?"),
        (f"{__name__}:__doc__", f"env.wrappers: {__name__} has no '__doc__'."),
        (
            "gymnasium.wrappers.FlattenObservation",
            "env.wrappers: 'gymnasium.wrappers.FlattenObservation' is not of the",
        ),
        ("module:", "env.wrappers: 'module:' is not of the form my_mod:MyWrapper"),
    ],
)
def test_wrong_paths(path, message):
    with pytest.raises(EnvError, match=f"^{re.escape(message)}"):
        read_spec(config(path))


@pytest.mark.parametrize(
    ("name", "message"), [("Raises", "raised KeyError: 'no\\nkey'"), ("nothing", "gave NoneType, not a gymnasium.Env")]
)
def test_wrappers_that_fail(name, message):
    with pytest.raises(EnvFault, match=re.escape(f"env.wrappers: {__name__}:{name} {message}")):
        build(named(name))


def test_a_wrapper_without_its_argument_is_shown_with_it():
    path = "gymnasium.wrappers:FrameStackObservation"
    with pytest.raises(EnvFault, match=re.escape(f"; say env.wrappers=[{{_name_: {path}, stack_size: ...}}]")):
        read_spec(config(path))


CHANGES = [
    ("env.wrappers", {"wrappers": (f"{__name__}:Plus",)}),
    ("env.action_repeat=2", {"action_repeat": 2}),
    ("env.frame_stack=3", {"frame_stack": 3}),
]


@pytest.mark.parametrize(("key", "change"), CHANGES)
def test_envpools_environments_can_not_be_wrapped(monkeypatch, key, change):
    import fake_envpool

    fake_envpool.install(monkeypatch)
    with pytest.raises(EnvError, match=rf"{key}: EnvPool's environments can't be wrapped; say env.backend"):
        read_spec(replace(config(backend="envpool", id="FakeCounter-v0"), **change))


@pytest.mark.parametrize(("key", "change"), CHANGES)
def test_games_of_ale_pys_vector_environment_can_not_be_wrapped(key, change):
    pytest.importorskip("ale_py", minversion="0.12.1", reason="needs the extra atari:  pip install 'drl-cli[atari]'")
    with pytest.raises(EnvError, match=rf"{key}: ale-py's environments can't be wrapped; say env.backend"):
        read_spec(replace(config(backend="ale", id="ALE/Pong-v5"), **change))


class Lives(gymnasium.Wrapper):
    """A life is lost in the second step of each episode."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "life_lost": obs[2] == 2}


def played(env, steps):
    """Return the count of steps, the reward and the end of each step. Counter's reward is its count of steps."""
    env.reset(seed=0)
    found = [env.step(np.zeros(1, np.float32)) for _ in range(steps)]
    return [(int(obs[2]), reward, terminated, truncated) for obs, reward, terminated, truncated, _ in found]


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_action_is_repeated_until_the_episode_ends(evaluates):
    made = EnvConfig("test", "drl_cli.envs.probes:Counter-v0", {"base_length": 5}, None, 1.0, "auto", False, False)
    made = replace(made, action_repeat=2)
    env = build(made.for_evaluation() if evaluates else made)
    assert played(env, 3) == [(2, 1 + 2, False, False), (4, 3 + 4, False, False), (5, 5, True, False)]
    assert read_spec(made).is_limited


def test_the_time_limit_counts_steps_of_the_environment():
    env = build(replace(config(), max_episode_steps=3, action_repeat=2, kwargs={"base_length": 9}))
    assert played(env, 2) == [(2, 1 + 2, False, False), (3, 3, False, True)]


def test_a_repeated_action_ends_when_a_life_is_lost():
    from drl_cli.envs.wrap import ActionRepeat

    inner = build(replace(config(), max_episode_steps=None, kwargs={"base_length": 9}))
    assert played(ActionRepeat(Lives(inner), 4), 2) == [(2, 1 + 2, False, False), (6, 3 + 4 + 5 + 6, False, False)]


def test_wrappers_see_repeated_actions():
    env = build(replace(named("Plus"), max_episode_steps=None, action_repeat=3, kwargs={"base_length": 9}))
    assert played(env, 1) == [(3 + 1, 1 + 2 + 3, False, False)]


@pytest.mark.parametrize(("modes", "renders"), [(["human"], False), (["human", "rgb_array"], True), (None, False)])
def test_a_video_needs_the_render_mode_rgb_array(modes, renders):
    assert spec(shape=(2,), modes=modes).renders == renders


class Images(gymnasium.Env):
    """Images that change in one of several ways, as one array that is changed in place."""

    def __init__(self, shape=(6, 5, 4), change="new", dtype=np.uint8, length=7, modes=()):
        self.observation_space, self.action_space = Box(0, 255, shape, dtype), Discrete(2)
        self.change, self.length, self.metadata = change, length, {"render_modes": modes}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.obs = self.np_random.integers(256, size=self.observation_space.shape).astype(np.uint8)
        return self.obs, {}

    def step(self, action):
        self.count += 1
        if self.change == "new":
            self.obs[:] = self.np_random.integers(256, size=self.obs.shape)
        elif self.change == "shift":
            self.obs[..., :-1] = self.obs[..., 1:].copy()
            self.obs[..., -1] = self.np_random.integers(256, size=self.obs.shape[:-1])
        elif self.change == "shift rgb":
            self.obs[..., :-3] = self.obs[..., 3:].copy()
            self.obs[..., -3:] = self.np_random.integers(256, size=(*self.obs.shape[:-1], 3))
        elif self.change == "once" and self.count == 3:
            self.obs += 1
        return self.obs.astype(self.observation_space.dtype), 0.0, self.count == self.length, False, {}


gymnasium.register("TestImages-v0", Images)


def spec(id="TestImages-v0", how="auto", **kwargs):
    return read_spec(EnvConfig("test", id, kwargs, None, 1.0, how, False, False))


@pytest.mark.parametrize(
    ("kwargs", "stack"),
    [
        ({"change": "new"}, FrameStack(-1, 1)),
        ({"change": "nothing"}, FrameStack(-1, 1)),  # what never changes proves nothing
        ({"change": "once"}, FrameStack(-1, 1)),
        ({"change": "shift"}, FrameStack(-1, 4)),
        ({"change": "shift", "length": 1}, FrameStack(-1, 4)),
        ({"change": "shift", "shape": (6, 5, 3)}, FrameStack(-1, 3)),
        ({"change": "shift rgb", "shape": (6, 5, 9)}, FrameStack(-1, 3)),
        ({"change": "new", "shape": (6, 5)}, FrameStack(-1, 1)),
        ({"change": "new", "shape": (6,)}, None),
        ({"change": "shift", "dtype": np.float32}, None),
    ],
)
def test_stacks(kwargs, stack):
    assert spec(**kwargs).frame_stacks == ({} if stack is None else {"": stack})
    assert spec(how="none", **kwargs).frame_stacks == {}


@pytest.mark.parametrize(
    ("kwargs", "shape", "stack"),
    [
        ({"k": 1}, (12, 12, 3), FrameStack(-1, 3)),  # channels last
        ({"k": 1, "axis": 0}, (3, 12, 12), FrameStack(0, 3)),
    ],
)
def test_the_stack_of_the_key(kwargs, shape, stack):
    made = replace(config(id="drl_cli.envs.probes:Frames-v0"), kwargs={"size": 12, **kwargs}, frame_stack=3)
    found = read_spec(made)
    assert (found.obs, found.frame_stacks) == (Column(shape, "uint8"), {"": stack})
    single, stacked = build(replace(made, frame_stack=1)), build(made)
    frames = [single.reset(seed=4)[0]] * 3
    obs = stacked.reset(seed=4)[0]
    for action in (None, 1, 2):  # at first, the frames are copies of the first one
        if action is not None:
            frames, obs = [*frames[1:], single.step(action)[0]], stacked.step(action)[0]
        np.testing.assert_array_equal(obs, np.concatenate(frames, stack.axis))
        assert stacked.observation_space.contains(obs)


class Same(gymnasium.Env):
    """Steps count in one array that the environment returns again and again."""

    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, shape=(2,), dtype=np.float32):
        self.observation_space = Box(0, 9, shape, dtype)
        self.obs = np.zeros(shape, dtype)

    def reset(self, *, seed=None, options=None):
        self.obs[:] = 1
        return self.obs, {}

    def step(self, action):
        self.obs += 1
        return self.obs, 0.0, False, False, {}


gymnasium.register("TestSame-v0", Same)


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({"shape": (2,)}, (6,)),
        ({"shape": (5, 4)}, (5, 12)),
        ({"shape": (5, 4), "dtype": np.uint8}, (3, 5, 4)),
        ({"shape": (2, 5, 4, 3), "dtype": np.uint8}, (6, 5, 4, 3)),
    ],
)
def test_the_last_observations_are_joined_the_oldest_first(kwargs, shape):
    made = replace(config(id="TestSame-v0"), kwargs=kwargs, frame_stack=3, max_episode_steps=None)
    env = build(made)
    assert read_spec(made).obs.shape == env.observation_space.shape == shape
    env.reset()
    env.step(np.zeros(1))
    obs = env.step(np.zeros(1))[0]
    assert sorted(np.unique(obs)) == [1, 2, 3]
    assert (obs.flat[0], obs.flat[-1]) == (1, 3)
    assert np.unique(env.reset()[0]) == [1]


def test_what_can_not_be_stacked():
    made = replace(config(id="drl_cli.envs.probes:Tree-v0"), frame_stack=2)
    with pytest.raises(
        EnvError, match=r"env.frame_stack=2: only observations of a Box can be stacked, not those of Dict"
    ):
        build(made)
    with pytest.raises(EnvError, match=r"the game stacks 4 frames itself; say env.kwargs.stack=2"):
        build(replace(made, id="drl_cli.envs.probes:Frames-v0", wrappers=(f"{__name__}:Game",)))


class Game(gymnasium.Wrapper):
    frame_stack = FrameStack(0, 4)

    @property
    def unwrapped(self):
        return self


def test_stack_of_gymnasiums_wrapper():
    def make():
        env = gymnasium.wrappers.FrameStackObservation(Frames(k=1, size=12), 4)
        return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[..., 0], Box(0, 255, (4, 12, 12), np.uint8))

    gymnasium.register("TestStacked-v0", make)
    assert spec("TestStacked-v0").frame_stacks == {"": FrameStack(0, 4)}

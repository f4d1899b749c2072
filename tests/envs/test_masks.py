import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from drl_cli.envs.config import EnvConfig, EnvError
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.types import Column

MASKED = "drl_cli.envs.probes:Masked-v0"
GOAL = Box(0, 1, (2,), np.float32)


class Told(gymnasium.Env):
    """Returns the given masks one after the other, in `info` (except None), or in its observations."""

    def __init__(self, masks, action=None, part=None, alone=False):
        self.masks, self.action_space, self.part = masks, action or Discrete(3), part
        parts = {"action_mask": part} if alone else {"action_mask": part, "goal": GOAL}
        self.observation_space = Dict(parts) if part else GOAL
        self.count = -1

    def reset(self, *, seed=None, options=None):
        self.count = -1
        return self._told()

    def step(self, action):
        obs, info = self._told()
        return obs, 0.0, False, False, info

    def _told(self):
        self.count += 1
        mask, goal = self.masks[min(self.count, len(self.masks) - 1)], np.zeros(2, np.float32)
        if self.part:
            return {"action_mask": mask, "goal": goal}, {}
        return goal, {} if mask is None else {"action_mask": mask}


gymnasium.register("TestTold-v0", Told)


def config(id, **kwargs):
    return EnvConfig("test", id, kwargs, None, 1.0, "auto", False, False)


def told(*masks, **kwargs):
    made = config("TestTold-v0", masks=masks, **kwargs)
    return EnvBatch(made, read_spec(made), [0], 3)


@pytest.mark.parametrize("components", [False, True])
@pytest.mark.parametrize("part", [False, True])
def test_observations_include_masks(part, components):
    """Actions from the mask are never illegal, and the best action is always legal."""
    made = config(MASKED, part=part, components=components)
    found, size = read_spec(made), 8 if components else 4
    name = "goal" if part else "obs"
    assert found.obs == {name: Column((size,), "float32"), "action_mask": Column((size,), "bool")}
    assert list(found.obs)[-1] == "action_mask"
    envs, rng = EnvBatch(made, found, range(5)), np.random.default_rng(0)
    for _ in range(20):
        obs, mask = (envs.obs[path].reshape(5, -1, 4) for path in (name, "action_mask"))
        assert mask.dtype == np.bool_
        assert (mask.sum(-1) == 2).all()
        assert (mask & (obs > 0)).sum() == 5 * (1 + components)
        goal, random = obs.argmax(-1), (mask * rng.random(mask.shape)).argmax(-1)
        action = random if rng.random() < 0.5 else goal
        assert (action >= 0).all()
        reward = envs.step(action if components else action[:, 0]).reward
        assert (reward >= 0).all()
        if action is goal:
            assert (reward == 1).all()


def test_a_mask_without_legal_choices_allows_all_choices_of_the_component():
    envs = told(np.array([0, 0, 0]), np.array([0, 1, 0], np.int8))
    assert envs.obs["action_mask"].tolist() == [[True] * 3]
    envs.step(np.zeros(1, np.int64))
    assert envs.obs["action_mask"].tolist() == [[False, True, False]]
    masks = [(np.array([0, 0, 0]), np.array([0, 1])), (np.array([0, 0, 1]), np.array([0, 0]))]
    envs = told(*masks, action=MultiDiscrete([3, 2]))  # a tuple, as gymnasium's own `sample` takes them
    assert envs.obs["action_mask"].tolist() == [[True, True, True, False, True]]
    envs.step(np.zeros((1, 2), np.int64))
    assert envs.obs["action_mask"].tolist() == [[False, False, True, True, True]]


@pytest.mark.parametrize(
    "part", [MultiBinary(3), Box(0, 1, (3,), np.int8), Box(0.0, 1.0, (3,)), MultiDiscrete([2] * 3)]
)
def test_a_mask_may_have_any_kind_of_space(part):
    envs = told(np.array([1, 0, 1], part.dtype), part=part)
    assert envs.obs["action_mask"].tolist() == [[True, False, True]]
    assert envs.obs["action_mask"].dtype == np.bool_


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([np.ones(3), np.ones(4)], "observation 'action_mask' has shape (4,), expected (3,)"),
        ([np.ones(3), None], "info has no action_mask, and at the first reset it had one"),
    ],
)
def test_a_missing_or_misshapen_mask_is_a_fault(masks, message):
    envs = told(*masks)
    step = envs.step(np.zeros(1, np.int64))
    assert not step.valid.any()
    (fault,) = envs.take_news()[1]
    assert fault.startswith(f"env 0: {message}; environment rebuilt")


def test_masks_that_are_ignored_or_refused():
    box = Box(-1, 1, (3,), np.float32)
    assert told(np.ones(3), action=box).spec.obs == Column((2,), "float32")  # of no use with continuous actions
    with pytest.raises(EnvError, match=r"has an action_mask and Box\(3,\) actions; masks are for choices"):
        told(np.ones(3), action=box, part=MultiBinary(3))
    with pytest.raises(EnvError, match=r"an action_mask of shape \(4,\); Discrete\(3\) actions need \(3,\)"):
        told(np.ones(4), part=MultiBinary(4))
    assert told(None).spec.obs == Column((2,), "float32")
    with pytest.raises(EnvError, match="has no observations besides its action_mask"):
        told(np.ones(3), part=MultiBinary(3), alone=True)


def test_taxi():
    """Taxi has a discrete observation, and a mask in `info`."""
    found = read_spec(config("Taxi-v4"))
    assert found.obs == {"obs": Column((), "int32", (500,)), "action_mask": Column((6,), "bool")}
    envs = EnvBatch(config("Taxi-v4"), found, [1, 2, 3])
    for env, mask in zip(envs.envs, envs.obs["action_mask"], strict=True):
        assert mask.tolist() == env.raw.unwrapped.action_mask(env.raw.unwrapped.s).astype(bool).tolist()
        assert not mask.all()
    assert envs.obs["obs"].tolist() == [env.raw.unwrapped.s for env in envs.envs]

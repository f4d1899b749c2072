from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from recorded_envs import env_config

from drl_cli.envs.config import ACTIONS_OF, SPACES_ONLY
from drl_cli.envs.make import Env, build, read_spec
from drl_cli.envs.trees import space_to_json

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

"""Play episodes with a policy that takes observations and gives actions in the environment's own units."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.standalone import Caller
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.faults import as_fault
from drl_cli.envs.make import Env
from drl_cli.types import MASK, Array, EnvSpec

Watch = Callable[[Any, Any, Any, Array], None]  # Any: batches of observations, masks and actions


def play_together(policy: Caller, trained: TrainedPolicy, seeds: Sequence[int], watch: Watch | None = None) -> Array:
    """Play one episode per seed, all at the same time. Return their undiscounted returns `[episodes]`.

    `policy` is `trained` or its exported form. `watch` is called in every step with the observations, masks, actions,
    and a bool array `[episodes]` that is true for episodes that have not ended.
    """
    games = [Game(trained.env, trained.spec, seed) for seed in seeds]
    policy.reset()
    returns = np.zeros(len(games))
    for _ in range(trained.config.manage.max_episode_steps):
        running = np.array([not game.has_ended for game in games])
        if not running.any():
            break
        obs, masks = trained.units.joined([game.obs for game in games]), _masks([game.info for game in games])
        actions = policy(obs, masks, [game.reward for game in games])
        if watch is not None:
            watch(obs, masks, actions, running)
        for i, action in enumerate(trained.units.apart(actions, len(games))):
            if running[i]:
                games[i].step(action)
                returns[i] += games[i].reward
    for game in games:
        game.raw.close()
    return returns


class Game:
    """One episode, with its last observation, info and reward. Raise EnvFault if the environment raises."""

    def __init__(self, config: EnvConfig, spec: EnvSpec, seed: int) -> None:
        self.id, self.raw = config.id, Env(config, spec).raw
        self.reward, self.has_ended = 0.0, False
        try:
            self.obs, self.info = self.raw.reset(seed=seed)
        except Exception as error:
            raise as_fault("reset", error) from error

    def step(self, action: Any) -> None:
        try:
            self.obs, reward, terminated, truncated, self.info = self.raw.step(action)
        except Exception as error:
            raise as_fault("step", error) from error
        self.reward, self.has_ended = float(reward), bool(terminated or truncated)


def _masks(infos: Sequence[Any]) -> Any:
    """Return the stacked legal-action masks in `infos`, or None if there are none."""
    if MASK not in infos[0]:
        return None
    masks = [info[MASK] for info in infos]
    return tuple(map(np.stack, zip(*masks, strict=True))) if isinstance(masks[0], tuple) else np.stack(masks)

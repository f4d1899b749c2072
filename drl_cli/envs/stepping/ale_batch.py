"""Step E Atari games of one vector environment of ale-py together, with the same interface as `EnvBatch`."""

from collections.abc import Sequence

import numpy as np

from drl_cli.envs.actions import ActionMap
from drl_cli.envs.atari import Atari, make_vector
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import build
from drl_cli.envs.stepping.pooled import PooledEnvs
from drl_cli.envs.stepping.step import Step
from drl_cli.types import Array, EnvSpec, Episode


class AleBatch(PooledEnvs):
    """Steps E games and resets them when an episode ends; `obs` `[E, stack, 84, 84]` is the next observation to act on.

    Equal seeds of the console, no-op frames and actions give the observations, rewards and ends of `Atari`. The only
    difference is that `max_frames` does not count the no-op frames at the start of an episode.

    By default, the vector environment resets a game in the step after the last step of its episode. This class resets
    such games at once, so that every step of the vector environment is a step of every game. EnvFault is raised if the
    vector environment raises an error.
    """

    library = "ale-py"

    def __init__(
        self, config: EnvConfig, spec: EnvSpec, seeds: Sequence[int], max_rebuilds: int = 0, num_threads: int = 1
    ) -> None:
        super().__init__(spec, seeds, max_rebuilds)
        game = build(config).unwrapped
        assert isinstance(game, Atari)  # `check_game` refuses all other environments
        self.game, self.max_episode_steps = game, config.max_episode_steps
        self.to_env = ActionMap(game.action_space).convert
        self.num_threads = num_threads
        self.pool = make_vector(game, len(seeds), num_threads)
        self._lives = np.zeros(len(seeds), np.int32)
        self._begin(self.seeds)

    def _begin(self, seeds: Sequence[int]) -> None:
        self._reset(np.ones(len(seeds), np.bool_), np.array(seeds, np.int64))

    def _step(self, actions: Array) -> Step:
        next_obs, reward, is_over, truncated, info = self._call("step", np.array(self.to_env(actions), np.int64))
        self._returns += reward
        self._lengths += 1
        self._fill(next_obs)
        if self.max_episode_steps is not None:
            truncated = truncated | (self._lengths >= self.max_episode_steps)
        lives, before = info["lives"], self._lives
        has_lost = (lives > 0) & (lives < before) & self.game.episodic_life
        self.obs, self._lives = next_obs, lives
        ended = is_over | truncated
        self.begun = ended.nonzero()[0].tolist()
        self.episodes += [Episode(i, float(self._returns[i]), int(self._lengths[i])) for i in self.begun]
        if self.begun:
            self._reset(ended)
        return Step(reward.astype(np.float32), next_obs, is_over | has_lost, truncated, np.ones_like(is_over))

    def _reset(self, which: Array, seeds: Array | None = None) -> None:
        """Begin episodes in the games of the mask `which`, with these seeds or with the next random numbers."""
        self.obs, self._lives = self.obs.copy(), self._lives.copy()  # the last `Step` refers to the old array
        self._returns[which], self._lengths[which] = 0.0, 0
        while which.any():
            obs, info = self._call("reset", seed=seeds, options={"reset_mask": which})
            self.obs[which], self._lives[which] = obs[which], info["lives"][which]
            which = which & (info["episode_frame_number"] == 0) & (self.game.noop_max > 0)
            seeds = None
        self._fill(self.obs)

    def _fill(self, obs: Array) -> None:
        """Replace the black frames before an episode's first frame by copies of the first frame."""
        stack = self.game.frame_stack.k
        for i in (self._lengths < stack - 1).nonzero()[0]:
            first = stack - 1 - self._lengths[i]
            obs[i, :first] = obs[i, first]

"""Base of the batches that a library steps as a whole (EnvPool, ale-py's vector environment)."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvFault
from drl_cli.envs.stepping.step import EnvsBase, Step
from drl_cli.types import Array, Column, EnvSpec, State
from drl_cli.utils.seeding import integers


class PooledEnvs(EnvsBase):
    """E environments of one `pool` of a library. `library` is the name of the library for messages.

    The state omits the running episodes, because the library can't save them. After `load_state`, all environments
    begin new episodes.

    `calls` is not used, because a signal can't interrupt the pool. A worker whose pool hangs is replaced.
    """

    library: str
    obs: Array
    pool: Any  # Any: the libraries have no types

    def __init__(self, spec: EnvSpec, seeds: Sequence[int], max_rebuilds: int) -> None:
        super().__init__(seeds, max_rebuilds)
        assert isinstance(spec.obs, Column)  # `read_spec` refuses all other spaces
        self.obs = np.zeros((len(seeds), *spec.obs.shape), spec.obs.dtype)
        self._returns, self._lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        self._renewed, self._is_loaded = 0, False

    def step(self, actions: Array) -> Step:
        """Step every environment and return new arrays. Replace `self.obs` by a new array."""
        if self._is_loaded:  # the first step after `load_state` is not `valid` in any environment
            none, zeros = np.zeros(len(self.seeds), np.bool_), np.zeros(len(self.seeds), np.float32)
            self._is_loaded, self.begun = False, list(range(len(self.seeds)))
            return Step(zeros, self.obs.copy(), none, none.copy(), none.copy())
        return self._step(actions)

    def state(self) -> State:
        """Return a state that `EnvBatch` can load, too. It omits running episodes."""
        size = len(self.seeds)
        return self._shared_state() | {
            "returns": np.zeros(size),
            "lengths": np.zeros(size, np.int64),
            "renewed": np.full(size, self._renewed),
            "missed": np.array([], np.int64),
        }

    def load_state(self, state: State) -> list[str]:
        """Begin new episodes in all environments, with seeds not used before. Return a line that reports this.

        The next step is not `valid` in any environment. Raise ValueError if the state has another number of
        environments.
        """
        self._load_shared_state(state)
        self._renewed = int(state["renewed"].max()) + 1
        self._begin([integers(seed, "env", 1, self._renewed)[0] for seed in self.seeds])
        self._is_loaded = True
        return [f"envs 0 to {len(self.seeds) - 1}: {self.library} can't continue episodes; they begin others"]

    def close(self) -> None:
        self.pool.close()

    @abstractmethod
    def _begin(self, seeds: Sequence[int]) -> None:
        """Begin episodes in all environments with these seeds."""

    @abstractmethod
    def _step(self, actions: Array) -> Step:
        """Step every environment, and reset those whose episode has ended."""

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a method of the pool. Raise EnvFault if the method raises."""
        try:
            return getattr(self.pool, method)(*args, **kwargs)
        except Exception as error:
            raise EnvFault(f"{self.library}'s {method} raised {type(error).__name__}: {error}") from error

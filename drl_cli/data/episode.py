"""An episode to be recorded, and the counts of a recording."""

from dataclasses import dataclass, field

import numpy as np

from drl_cli.types import Array, Columns


@dataclass(frozen=True)
class Episode:
    """Steps in the units of the environment: `obs` `[T+1, ...]` and `action` `[T, ...]` by dotted path.

    A mask from `info` is a part of `obs`, as in an EnvSpec. `reward`, `terminated` and `truncated` are `[T]`. Without
    `is_whole`, the steps are only a piece of an episode: its beginning or its end is missing.
    """

    obs: Columns
    action: Columns
    reward: Array
    terminated: Array
    truncated: Array
    seed: int | None = None
    is_whole: bool = True


@dataclass
class Written:
    """Counts of a recording: steps, episodes, the return of each whole episode, and the numbers of the others.

    `ended_by` is the exception of the signal that ended the recording early.
    """

    steps: int = 0
    episodes: int = 0
    terminations: int = 0
    returns: list[float] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    ended_by: BaseException | None = None

    def add(self, episode: Episode) -> None:
        if episode.is_whole:
            self.returns.append(float(episode.reward.sum(dtype=np.float64)))
        else:
            self.pieces.append(self.episodes)
        self.steps += len(episode.reward)
        self.episodes += 1
        self.terminations += int(episode.terminated.sum())

    def statistics(self) -> dict[str, float | list[int]]:
        """Return the counts by name. The mean, deviation, minimum and maximum are those of whole episodes, if any."""
        counts = {"steps": self.steps, "episodes": self.episodes, "terminations": self.terminations}
        names = ("mean", "std", "min", "max") if self.returns else ()
        returns = {f"return_{name}": float(getattr(np, name)(self.returns)) for name in names}
        return {**counts, "pieces": self.pieces, **returns}

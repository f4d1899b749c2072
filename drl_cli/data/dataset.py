"""Datasets: facts and steps in order, in the units of a policy; several joined, or the best episodes of one."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from drl_cli.errors import UsageError
from drl_cli.types import MASK, Array, Columns, EnvSpec, leaves

if TYPE_CHECKING:
    from drl_cli.envs.trees import Space


SCORE = "normalized_score"
"""The name of normalised scores in records of evaluations."""


class DatasetError(UsageError):
    """A dataset can't be used: it is missing, damaged, empty, or does not fit the environment."""


@dataclass(frozen=True)
class Facts:
    """Facts about a dataset.

    `source` is what the user typed. `identity` is a checksum of the contents: if it changes, the dataset has changed.
    `env` is the id of the environment, if known. `returns` are the undiscounted returns `[episodes]`. `is_whole`
    `[episodes]` is false for an episode whose beginning or end is missing. `reference` has the returns of a random
    policy and of an expert for normalised scores, if known.
    """

    source: str
    identity: str
    env: str | None
    steps: int
    episodes: int
    terminations: int
    truncations: int
    returns: Array
    is_whole: Array
    reference: tuple[float, float] | None = None

    @property
    def whole_returns(self) -> Array:
        return self.returns[self.is_whole]


def normalised(score: float, reference: Sequence[float]) -> float:
    """Return the normalised score of a return: 0 for the return of a random policy, 100 for that of an expert."""
    random, expert = reference
    return 100 * (score - random) / (expert - random)


def reference_problem(returns: Sequence[float]) -> str | None:
    """Return why these are not the returns of a random policy and of an expert, or None."""
    if len(returns) == 2 and -math.inf < returns[0] < returns[1] < math.inf:
        return None
    return f"reference={[*returns]}: say [random,expert], the returns of a random policy and, larger, of an expert"


class Dataset(ABC):
    """Recorded steps in order of time, episode after episode.

    `ends` has, for each episode, the index after its last step, int64 `[episodes]`. `clamped` counts action values
    that were outside the action space, in all steps read so far. `spaces` are those of observations and actions, in the
    units of the recording.
    """

    facts: Facts
    spaces: "tuple[Space, Space]"
    spec: EnvSpec
    ends: Array
    clamped = 0

    @abstractmethod
    def read(self, first: int, last: int) -> Columns:
        """Return the steps first..last-1 as new arrays `[steps, ...]`, in the form in which a worker makes them.

        The columns are obs, action, reward, next_obs, terminated, truncated; observations with parts are
        `obs.<path>`. Box actions are in [-1, 1]. If the recording ends within an episode, its last step is truncated.
        """


BINS = 20
"""The range [-1, 1] of a box action is divided into this number of equal parts."""
PART_STEPS = 1 << 16


def coverage(dataset: Dataset) -> float:
    """Return the part of the action space that occurs in a dataset, from 0 to 1.

    For choices, this is the share of the choices that occur. For a box, this is the share of the BINS that occur. With
    several components or dimensions, the result is the mean of their shares.
    """
    action = dataset.spec.action
    sizes = np.array(action.choices or [BINS] * action.size)
    occurs = np.zeros((len(sizes), sizes.max()), np.bool_)
    for first in range(0, dataset.facts.steps, PART_STEPS):
        actions = dataset.read(first, min(first + PART_STEPS, dataset.facts.steps))["action"]
        for row, column in zip(occurs, _bins(actions, action.kind == "box").T, strict=True):
            row[column] = True
    return float((occurs.sum(1) / sizes).mean())


def _bins(actions: Array, is_box: bool) -> Array:
    columns = actions.reshape(len(actions), -1)
    return np.clip((columns + 1) / 2 * BINS, 0, BINS - 1).astype(np.int64) if is_box else columns


def describe(dataset: Dataset) -> dict[str, object]:
    facts = dataset.facts
    return {
        "source": facts.source,
        "identity": facts.identity,
        "env": facts.env,
        "steps": facts.steps,
        "episodes": facts.episodes,
    }


def spaces_of(dataset: Dataset) -> dict[str, object]:
    """Return the spaces of a dataset for spaces.json. They are the arguments of SpacesOnly."""
    from drl_cli.envs.trees import inner, space_to_json

    observations, actions = dataset.spaces
    has_mask = MASK in leaves(dataset.spec.obs) and MASK not in (inner(observations) or {})
    return {"observations": space_to_json(observations), "actions": space_to_json(actions), "has_mask": has_mask}


class JoinedDataset(Dataset):
    """The steps of several datasets with equal spaces, in the order given.

    The environment and the reference returns are those that all datasets have in common, or None.
    """

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets, self.spec, self.spaces = datasets, datasets[0].spec, datasets[0].spaces
        facts = [dataset.facts for dataset in datasets]
        self.starts = np.cumsum([0, *(each.steps for each in facts)])
        self.ends = np.concatenate([one.ends + start for one, start in zip(datasets, self.starts, strict=False)])
        self.facts = replace(
            facts[0],
            source=f"[{','.join(each.source for each in facts)}]",
            identity=hashlib.sha256("".join(each.identity for each in facts).encode()).hexdigest(),
            env=facts[0].env if len({each.env for each in facts}) == 1 else None,
            steps=int(self.starts[-1]),
            episodes=sum(each.episodes for each in facts),
            terminations=sum(each.terminations for each in facts),
            truncations=sum(each.truncations for each in facts),
            returns=np.concatenate([each.returns for each in facts]),
            is_whole=np.concatenate([each.is_whole for each in facts]),
            reference=facts[0].reference if len({each.reference for each in facts}) == 1 else None,
        )

    @property
    def clamped(self) -> int:  # type: ignore[override]
        return sum(dataset.clamped for dataset in self.datasets)

    def read(self, first: int, last: int) -> Columns:
        found = [
            dataset.read(max(first - start, 0), min(last - start, dataset.facts.steps))
            for dataset, start in zip(self.datasets, self.starts.tolist(), strict=False)
            if first < start + dataset.facts.steps and last > start
        ]
        if len(found) == 1:
            return found[0]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


class BestEpisodes(Dataset):
    """The `share` of a dataset's episodes with the largest returns, at least one, in the order of the dataset.

    Pieces of episodes come after all whole episodes.
    """

    def __init__(self, dataset: Dataset, share: float) -> None:
        self.dataset, self.spec, self.spaces = dataset, dataset.spec, dataset.spaces
        returns, is_whole = dataset.facts.returns, dataset.facts.is_whole
        best = np.argsort(np.where(is_whole, -returns, np.inf), kind="stable")[: max(1, ceil(share * len(returns)))]
        chosen = np.sort(best)
        first = np.append(0, dataset.ends[:-1])[chosen]
        self.ends = np.cumsum(dataset.ends[chosen] - first)
        self.steps = np.concatenate([np.arange(*pair) for pair in zip(first, dataset.ends[chosen], strict=True)])
        lasts = [dataset.read(int(end) - 1, int(end)) for end in dataset.ends[chosen]]
        self.facts = replace(
            dataset.facts,
            steps=int(self.ends[-1]),
            episodes=len(chosen),
            terminations=sum(int(last["terminated"][0]) for last in lasts),
            truncations=sum(int(last["truncated"][0]) for last in lasts),
            returns=returns[chosen],
            is_whole=is_whole[chosen],
        )

    @property
    def clamped(self) -> int:  # type: ignore[override]
        return self.dataset.clamped

    def read(self, first: int, last: int) -> Columns:
        steps: Array = self.steps[first:last]
        cuts = np.flatnonzero(np.diff(steps) != 1) + 1
        parts = [self.dataset.read(int(run[0]), int(run[-1]) + 1) for run in np.split(steps, cuts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Calls `read(start, stop)`, which must depend on nothing else, before its result is needed.

    At most one call runs at a time, and one result is kept in memory. Reading spends its time in the operating system
    and in numpy, which run beside the trainer.
    """

    def __init__(self, read: Callable[[int, int], T]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(1, "read ahead")
        self._next: tuple[tuple[int, int], Future[T]] | None = None

    def begin(self, start: int, stop: int) -> None:
        """Begin to read this part. `take` must have returned the part before."""
        assert self._next is None, "one part at a time"
        self._next = (start, stop), self._thread.submit(self._read, start, stop)

    def take(self, start: int, stop: int) -> T:
        """Return `read(start, stop)`, and raise its errors. A part that was begun and is not this one is dropped."""
        begun, self._next = self._next, None
        if begun is None:
            return self._read(start, stop)
        part, future = begun
        if part == (start, stop):
            return future.result()
        future.exception()  # wait: a dataset is read by one thread at a time
        return self._read(start, stop)

    def close(self) -> None:
        self._next = None
        self._thread.shutdown(cancel_futures=True)

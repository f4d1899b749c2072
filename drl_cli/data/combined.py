"""Datasets made of other datasets: several, one after the other, and the episodes with the largest returns."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from drl_cli.data.dataset import Dataset
from drl_cli.types import Array, Columns


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

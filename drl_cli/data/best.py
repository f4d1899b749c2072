"""BestEpisodes: the episodes of a dataset with the largest returns (10% BC, Chen et al. 2021, arXiv 2106.01345)."""

from dataclasses import replace
from math import ceil

import numpy as np

from drl_cli.data.dataset import Dataset
from drl_cli.types import Array, Columns


class BestEpisodes(Dataset):
    """The `share` of a dataset's episodes with the largest returns, at least one, in the order of the dataset."""

    def __init__(self, dataset: Dataset, share: float) -> None:
        self.dataset, self.spec = dataset, dataset.spec
        returns = dataset.facts.returns
        best = np.argsort(-returns, kind="stable")[: max(1, ceil(share * len(returns)))]
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
        )

    @property
    def clamped(self) -> int:  # type: ignore[override]
        return self.dataset.clamped

    def read(self, first: int, last: int) -> Columns:
        steps: Array = self.steps[first:last]
        cuts = np.flatnonzero(np.diff(steps) != 1) + 1
        parts = [self.dataset.read(int(run[0]), int(run[-1]) + 1) for run in np.split(steps, cuts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

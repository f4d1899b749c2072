"""BatchNormalizer: the trainer's side of normalisation, which decides when new statistics count."""

import functools

import numpy as np

from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles.normalization import Layout, Statistics, normalize
from drl_cli.types import Array, State, column_name
from drl_cli.utils.lazy import torch
from drl_cli.utils.moments import RunningMoments


class BatchNormalizer:
    """Normalises batches by `statistics`, which change only when newer ones are adopted."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.before = RunningMoments.empty(layout.size)
        self.shards: dict[int, RunningMoments] = {}
        self.statistics = Statistics.of(layout, self.before)
        self.version = 0

    def load(self, vector: Array) -> Array:
        """Start from the statistics of a saved vector and count on from them; returns the policy's part."""
        params, self.statistics = Statistics.split(self.layout, vector)
        self.before = self.statistics.moments()
        return params

    def receive(self, header: BatchTrainingData, is_on_policy: bool) -> None:
        """Take the newest moments of one shard, and adopt them at once.

        On-policy rows go on by the statistics of the version that acted: theirs are adopted with the next version.
        """
        if header.version > self.version:  # published by another trainer, or just now by this one
            self.version = header.version
            self.adopt()
        if header.moments is not None:
            self.shards[header.shard] = header.moments
        if not is_on_policy:
            self.adopt()

    def adopt(self) -> None:
        """Normalise by all that was received, from now on."""
        if self.shards:
            newest = (self.shards[shard] for shard in sorted(self.shards))
            self.statistics = Statistics.of(self.layout, functools.reduce(RunningMoments.merge, newest, self.before))

    def state(self) -> State:
        """Everything, to go on exactly; `shards.<i>` are the moments that shard i told last."""
        return {
            "before": self.before.packed(),
            "statistics": self.statistics.join(np.zeros(0, np.float32)),
            "version": np.array(self.version),
            **{f"shards.{shard}": self.shards[shard].packed() for shard in sorted(self.shards)},
        }

    def load_state(self, state: State) -> None:
        """Go on from `state()` of the same layout."""
        self.before = RunningMoments.unpacked(state["before"])
        _, self.statistics = Statistics.split(self.layout, state["statistics"].copy())
        self.version = int(state["version"])
        shards = [name.removeprefix("shards.") for name in state if name.startswith("shards.")]
        self.shards = {int(shard): RunningMoments.unpacked(state[f"shards.{shard}"]) for shard in shards}

    def __call__(self, batches: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """The columns of `obs`, `next_obs` `[..., *shape]` and `reward` normalised; what was given stays raw."""
        changed = dict(batches)
        for path, both in self.statistics.obs.items():
            for name in batches.keys() & {column_name("obs", path), column_name("next_obs", path)}:
                raw = batches[name].float()
                mean, scale = (torch.from_numpy(values.copy()).to(raw.device) for values in both)
                changed[name] = normalize(raw, mean, scale, self.statistics.bound)
        if self.layout.reward and "reward" in batches:
            changed["reward"] = batches["reward"] / self.statistics.reward
        return changed

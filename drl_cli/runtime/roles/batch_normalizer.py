"""BatchNormalizer: normalises the trainer's batches, and decides when new statistics are used."""

import functools

import numpy as np

from drl_cli.replay.builders import RETURN
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles.normalization import Layout, Statistics, normalize
from drl_cli.types import Array, State, column_name, nested, within
from drl_cli.utils.lazy import torch
from drl_cli.utils.moments import RunningMoments


class BatchNormalizer:
    """Normalises batches by fixed `statistics` until `adopt` replaces them.

    On-policy rows must be normalised by the statistics of the policy that acted. With `is_on_policy`, new moments are
    therefore used only from the next parameter version on. `before` are the moments of a loaded policy. `shards` has
    the newest moments of each replay shard of this run.
    """

    def __init__(self, layout: Layout, is_on_policy: bool = False) -> None:
        self.layout, self.is_on_policy = layout, is_on_policy
        self.before = RunningMoments.empty(layout.size)
        self.shards: dict[int, RunningMoments] = {}
        self.statistics = Statistics.of(layout, self.before)
        self.version = 0

    def load(self, vector: Array) -> Array:
        """Start from the statistics in a parameter vector. Return the policy's parameters, the rest of the vector."""
        params, self.statistics = Statistics.split(self.layout, vector)
        self.before = self.statistics.moments()
        return params

    def receive(self, header: BatchTrainingData) -> None:
        """Store a shard's newest moments. Use them at once or, on-policy, from the next parameter version."""
        if header.version > self.version:  # a new version has been published
            self.version = header.version
            self.adopt()
        if header.moments is not None:
            self.shards[header.shard] = header.moments
        if not self.is_on_policy:
            self.adopt()

    def adopt(self) -> None:
        """Compute new statistics from all received moments."""
        if self.shards:
            newest = (self.shards[shard] for shard in sorted(self.shards))
            self.statistics = Statistics.of(self.layout, functools.reduce(RunningMoments.merge, newest, self.before))

    def state(self) -> State:
        """Return the whole state. `shards.<i>` has the newest moments of shard i."""
        shards = {str(shard): self.shards[shard].packed() for shard in sorted(self.shards)}
        return {
            "before": self.before.packed(),
            "statistics": self.statistics.join(np.zeros(0, np.float32)),
            "version": np.array(self.version),
            **nested("shards", shards),
        }

    def load_state(self, state: State) -> None:
        self.before = RunningMoments.unpacked(state["before"])
        _, self.statistics = Statistics.split(self.layout, state["statistics"].copy())
        self.version = int(state["version"])
        shards = within(state, "shards")
        self.shards = {int(shard): RunningMoments.unpacked(vector) for shard, vector in shards.items()}

    def __call__(self, batches: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """Return a copy of `batches` with normalised `obs` and `next_obs` `[..., *shape]`, `reward` and `mc_return`."""
        changed = dict(batches)
        for path, mean_and_scale in self.statistics.obs.items():
            for name in batches.keys() & {column_name("obs", path), column_name("next_obs", path)}:
                raw = batches[name].float()
                mean, scale = (torch.from_numpy(values.copy()).to(raw.device) for values in mean_and_scale)
                changed[name] = normalize(raw, mean, scale, self.statistics.bound)
        if self.layout.reward:
            for name in batches.keys() & {"reward", RETURN}:
                changed[name] = batches[name] / self.statistics.reward
        return changed

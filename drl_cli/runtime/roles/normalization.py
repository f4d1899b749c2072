"""Normalisation of observations and rewards: statistics, and the policy and the trainer's batches that use them.

Replay stores raw rows. The trajectory manager computes the moments of inserted rows, and the trainer normalises its
batches by these moments. The statistics are appended to the parameter vector, so that workers normalise in the same
way.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeVar

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.algos.function_policy import FunctionPolicy, acting_parts
from drl_cli.algos.function_policy import in_torch as torch_form
from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.config.config import Config
from drl_cli.convert.program import Program, numpy_policy
from drl_cli.replay.builders import RETURN
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.types import (
    Array,
    Columns,
    EnvSpec,
    Obs,
    PreviousStep,
    State,
    column_name,
    flat_columns,
    leaves,
    nested,
    tree,
    within,
)
from drl_cli.utils.lazy import torch
from drl_cli.utils.moments import RunningMoments

log = logging.getLogger(__name__)

EPS = 1e-8
"""Added to the variance of observations before the square root."""
CLIP = 10.0
"""Normalised observations are clipped to [-CLIP, CLIP]."""

Values = TypeVar("Values", Array, "torch.Tensor")


@dataclass(frozen=True)
class Layout:
    """What a run normalises: the observation parts with these paths and shapes, and optionally rewards."""

    obs: Mapping[str, tuple[int, ...]]
    reward: bool

    @cached_property
    def sizes(self) -> list[int]:
        return [int(np.prod(shape)) for shape in self.obs.values()]

    @cached_property
    def size(self) -> int:
        return sum(self.sizes) + self.reward

    def moments(self, columns: Columns) -> RunningMoments:
        valid = columns.get("valid", slice(None))  # leave out the padding of sequences
        names = [column_name("obs", path) for path in self.obs]
        obs = [columns[name][valid] for name in names]
        parts = [part.reshape(len(part), size) for part, size in zip(obs, self.sizes, strict=True)]
        if self.reward:
            parts.append(columns["reward"][valid].reshape(-1, 1))
        return RunningMoments.of(np.concatenate(parts, -1).astype(np.float64))


def make_layout(config: Config, spec: EnvSpec) -> Layout | None:
    """Return what this run normalises, or None if it normalises nothing."""
    env = config.env
    floats = {path: column.shape for path, column in leaves(spec.obs).items() if column.dtype == "float32"}
    layout = Layout(floats if env.normalize_obs else {}, env.normalize_reward)
    return layout if layout.size else None


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation, float32 `[layout.size]`, of `count` rows. Without rows, nothing is normalised."""

    layout: Layout
    count: int
    mean: Array
    std: Array

    @classmethod
    def of(cls, layout: Layout, moments: RunningMoments) -> "Statistics":
        std = np.sqrt(moments.squares / max(1, moments.count)).astype(np.float32)
        mean = moments.mean.astype(np.float32)
        return cls(layout, moments.count, mean, std)

    @classmethod
    def split(cls, layout: Layout, vector: Array) -> "tuple[Array, Statistics]":
        """Split a vector from `join` into parameters and statistics. Raise ValueError if the vector is too short."""
        length = 1 + 2 * layout.size
        if vector.ndim != 1 or len(vector) < length:
            raise ValueError(f"parameter vector has shape {vector.shape}, the statistics alone need ({length},)")
        params, count, mean, std = np.split(vector, [-length, 1 - length, -layout.size])
        return params, cls(layout, int(count[0]), mean, std)

    def join(self, params: Array) -> Array:
        """Return the policy's parameters followed by count, mean and standard deviation."""
        return np.concatenate([params, np.array([self.count], np.float32), self.mean, self.std])

    def moments(self) -> RunningMoments:
        mean, std = self.mean.astype(np.float64), self.std.astype(np.float64)
        return RunningMoments(self.count, mean, self.count * np.square(std))

    @cached_property
    def obs(self) -> dict[str, tuple[Array, Array]]:
        """The mean and scale of each observation part, by path."""
        scale = np.sqrt(np.square(self.std) + np.float32(EPS)) if self.count else np.ones_like(self.std)
        ends = np.cumsum(self.layout.sizes)
        parts = zip(self.layout.obs.items(), np.split(self.mean, ends), np.split(scale, ends), strict=False)
        return {path: (mean.reshape(shape), scale.reshape(shape)) for (path, shape), mean, scale in parts}

    @cached_property
    def reward(self) -> float:
        """The divisor of rewards: their root mean square, or 1 if all rewards so far are 0.

        The standard deviation would be tiny if almost all rewards are equal, as -1 per step.
        """
        return math.hypot(float(self.mean[-1]), float(self.std[-1])) or 1.0

    @cached_property
    def bound(self) -> float:
        """The clipping bound of normalised observations, which is infinite without rows."""
        return CLIP if self.count else float("inf")


def normalize(obs: Values, mean: Values, scale: Values, bound: float) -> Values:
    """Return (obs - mean) / scale clipped to +-bound, with bit-equal results in NumPy and torch."""
    return ((obs - mean) / scale).clip(-bound, bound)


class NormalizedPolicy(Policy):
    """Wraps a policy and normalises its observations. The parameter vector must end with the statistics."""

    def __init__(self, policy: Policy, layout: Layout) -> None:
        self.policy, self.layout = policy, layout
        self.statistics = Statistics.of(layout, RunningMoments.empty(layout.size))

    def load(self, params: Array) -> None:
        policy_params, self.statistics = Statistics.split(self.layout, params)
        self.policy.load(policy_params)

    def explore(self, values: Mapping[str, Any]) -> None:
        self.policy.explore(values)

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        return self.policy.act(self._normalized(obs), last)

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        return self.policy.random(self._normalized(obs), last)

    def priorities(self, rows: Columns) -> Array:
        normal: dict[str, Any] = {name: self._normalized(rows[name]) for name in ("obs", "next_obs")}  # Any: Obs
        reward = rows["reward"] / np.float32(self.statistics.reward) if self.layout.reward else rows["reward"]
        return self.policy.priorities({**rows, **normal, "reward": reward})

    def reanalyze(self, obs: Obs) -> Columns:
        return self.policy.reanalyze(self._normalized(obs))

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        return self.policy.greedy(self._normalized(obs), last)

    def state(self) -> State:
        return self.policy.state()

    def load_state(self, state: State) -> None:
        self.policy.load_state(state)

    def _normalized(self, obs: Obs) -> Obs:
        if not self.layout.obs:
            return obs
        parts, bound = flat_columns("obs", obs), self.statistics.bound
        for path, (mean, scale) in self.statistics.obs.items():
            name = column_name("obs", path)
            parts[name] = normalize(parts[name].astype(np.float32, copy=False), mean, scale, bound)
        return tree(parts, "obs")


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
            self.statistics = Statistics.of(self.layout, reduce(RunningMoments.merge, newest, self.before))

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
        for path, mean_and_scale in self.statistics.obs.items() if self.layout.obs else ():
            for name in batches.keys() & {column_name("obs", path), column_name("next_obs", path)}:
                raw = batches[name].float()
                mean, scale = (torch.from_numpy(values.copy()).to(raw.device) for values in mean_and_scale)
                changed[name] = normalize(raw, mean, scale, self.statistics.bound)
        if self.layout.reward:
            for name in batches.keys() & {"reward", RETURN}:
                changed[name] = batches[name] / self.statistics.reward
        return changed


def numpy_program(config: Config, spec: EnvSpec) -> tuple[Program | None, str]:
    """Convert the policy of a user's algorithm, so that workers and evaluations import no torch.

    Return the program and "numpy", or None and "torch" with the reason, or None and "" if nothing is to be converted.
    """
    module = load_algorithm(config.algo.name)
    if config.algo.name in algorithms() or not issubclass(module.Policy, TorchPolicy):
        return None, ""
    if issubclass(module.Policy, FunctionPolicy):
        policy = module.Policy
        if acting_parts(policy.algorithm, config.algo, config.network, spec) is not None:
            return None, "numpy"
    from drl_cli.convert.convert import convert  # imports torch

    images = config.worker.envs > 1  # torch's convolutions of many images are faster
    try:
        options = (config.algo, config.network, spec, module.EXPLORATION)
        return convert(module.Policy, *options, refused=("convolution",) * images), "numpy"
    except Exception as error:  # of the user's code, too, which then raises it again in torch
        log.info("the policy stays in torch", exc_info=True)
        return None, f"torch ({(str(error) or type(error).__name__).splitlines()[0]})"


def make_policy(
    config: Config, spec: EnvSpec, seed: int, program: Program | None = None, in_torch: bool = False
) -> Policy:
    """Create the algorithm's policy for workers and evaluators, with normalisation if configured.

    With a program, which `numpy_program` returned, the policy runs the program and imports no torch. With `in_torch`,
    it acts by torch modules, also if its networks have numpy forms.
    """
    kind = load_algorithm(config.algo.name).Policy
    kind = torch_form(kind) if in_torch else kind
    if program is not None:
        assert issubclass(kind, TorchPolicy)
        kind = numpy_policy(kind, program)
    policy = kind(config.algo, config.network, spec, seed)
    layout = make_layout(config, spec)
    return policy if layout is None else NormalizedPolicy(policy, layout)

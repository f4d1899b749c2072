"""Trainer: owns the algorithm; updates when it is given batches, publishes versioned parameters."""

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drl_cli.algos.base import Algorithm, Update
from drl_cli.runtime.batch_normalizer import BatchNormalizer
from drl_cli.runtime.errors import Diverged
from drl_cli.runtime.handles import node_address
from drl_cli.runtime.messages import BatchTrainingData, LoadParams, UpdatePriority
from drl_cli.types import Array, Columns
from drl_cli.utils.group import Group, Learner
from drl_cli.utils.lazy import torch
from drl_cli.utils.torch_ops import keep_freed_memory


@dataclass(frozen=True)
class TrainReport:
    """What one train call did: metrics are means over its updates.

    `num_batches` were served, `dropped` transitions were not, being too old; `replay` is the table's own report.
    """

    opt_steps: int
    num_updates: int
    metrics: Mapping[str, float]
    seconds: float
    num_batches: int
    dropped: int
    replay: Mapping[str, float]


class Trainer:
    """It never pulls, paces, logs or evaluates."""

    def __init__(
        self,
        build: Callable[[Learner], Algorithm],
        device: str,
        precision: str,
        threads: int,
        group: Group,
        normalizer: BatchNormalizer | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision({"float32": "highest"}[precision])
        # Batches from shared memory are read-only, and torch warns although nothing here writes to them.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        keep_freed_memory()
        self.device, self.group = choose_device(device), group
        self.algorithm = build(Learner(self.device, group))
        self.normalizer = normalizer
        self.opt_steps = 0

    def listen(self) -> tuple[str, int]:
        """Where the other trainers find this one."""
        host = node_address()
        return host, self.group.listen(host)

    def join(self, address: tuple[str, int]) -> None:
        """Meet the other trainers; raises PeerLost when they do not come."""
        self.group.join(*address, self.device)

    def ping(self) -> int:
        """Answer, with the id of this process."""
        return os.getpid()

    def load_policy(self, vector: Array) -> None:
        """Start from a published vector; raises ValueError naming both sizes when it does not fit."""
        self.algorithm.load_policy(self.normalizer.load(vector) if self.normalizer else vector)

    def train(self, header: BatchTrainingData, columns: Columns) -> tuple[TrainReport, UpdatePriority | None]:
        """One update per batch of columns `[U, B, ...]`; returns the report and, where replay wants them, priorities.

        Raises ValueError when it wants them and the algorithm has none.
        """
        started = time.perf_counter()
        batches = {name: self._to_device(column) for name, column in columns.items()}
        if self.normalizer is not None:
            self.normalizer.receive(header, is_on_policy="log_prob" in columns)
            batches = self.normalizer(batches)
        updates = [
            self.algorithm.update({name: batch[i] for name, batch in batches.items()})
            for i in range(header.num_batches)
        ]
        means = self._means(updates, columns)
        num_updates = sum(update.steps for update in updates)
        self.opt_steps += num_updates
        priorities = None if header.sequence is None else _priorities(header.trainer, header.sequence, updates)
        seconds = time.perf_counter() - started
        served = (header.num_batches, header.dropped, header.stats)
        return TrainReport(self.opt_steps, num_updates, means, seconds, *served), priorities

    def _to_device(self, column: Array) -> "torch.Tensor":
        tensor = torch.from_numpy(column)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def publish(self, version: int, env_steps: int) -> tuple[LoadParams, Array]:
        """The policy's parameters after all updates requested so far, as one flat float32 vector."""
        exploration = dict(self.algorithm.exploration(env_steps))
        load = LoadParams(version, self.opt_steps, env_steps, exploration=exploration)
        params = self.algorithm.policy_params()
        if self.normalizer is None:
            return load, params
        self.normalizer.adopt()
        return load, self.normalizer.statistics.join(params)

    def _means(self, updates: Sequence[Update], columns: Columns) -> dict[str, float]:
        """Metrics averaged over updates and trainers, fetched at once; raises Diverged where one is not finite."""
        if not updates:
            return {}
        names = list(updates[0].metrics)
        values = torch.stack([torch.stack([update.metrics[name] for name in names]) for update in updates])
        self.group.mean_(values)
        values = values.cpu()
        self._check(names, values.numpy(), columns)
        return dict(zip(names, values.mean(0).tolist(), strict=True))

    def _check(self, names: list[str], values: Array, columns: Columns) -> None:
        bad = np.argwhere(~np.isfinite(values))
        if len(bad) == 0:
            return
        update, metric = (int(i) for i in bad[0])
        value = values[update, metric]
        culprit = "the batch was finite"
        if self.normalizer is not None and not np.isfinite(self.normalizer.statistics.mean).all():
            culprit = "some observation or reward was not finite, and so nor is what all are normalised by"
        for name, column in columns.items():
            if column.dtype.kind == "f" and not np.isfinite(column[update]).all():
                culprit = f"first bad value: {name}"
                break
        kind = "NaN" if math.isnan(value) else "infinite"
        what = names[metric].replace("_", " ")
        raise Diverged(f"training diverged at update {self.opt_steps + update + 1}: {what} is {kind}; {culprit}")


def _priorities(trainer: int, sequence: Array, updates: Sequence[Update]) -> UpdatePriority:
    given = [update.priorities for update in updates if update.priorities is not None]
    if len(given) < len(updates):
        raise ValueError("replay=prioritized needs priorities, and this algorithm gives none; say replay=uniform")
    return UpdatePriority(trainer, sequence, torch.stack(given).cpu().numpy())


def choose_device(name: str) -> "torch.device":
    """The torch device for auto, cpu or cuda; raises ValueError when cuda is asked for and absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch finds no CUDA device here")
    return torch.device(name)

"""Epochs: the gradient steps of an update that learns from a rollout in several epochs of minibatches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drl_cli.algos.algorithm import Algorithm
from drl_cli.algos.base import Batch, Metrics, Update
from drl_cli.algos.rollout import EncodedRollouts, steps
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer import NotFinite
from drl_cli.utils.lazy import Tensor, torch

Loss = Callable[[Nets, Tensor, Batch, Sequence[Tensor]], tuple[Tensor, Metrics]]


class Minibatches:
    """Makes gradient steps with minibatches of rollouts. Steps are replayed or compiled if possible.

    `loss(nets, x, rows, masks)` returns the loss of a minibatch (a scalar), and metrics. `nets` are the networks, as
    for Gradients. `x` `[M, F]` are the encoder's features of `obs`. `rows` has the columns `[M, ...]`: `action`,
    `log_prob` if the policy stores it, `action_mask` if actions can be illegal, and those that the algorithm adds to
    the rollout. The column `weight`, if present, multiplies the loss of each row. `masks` are the dropout masks of the
    network `dropout`. The steps change no part in `fixed`, and no reward module. The generator that shuffles the rows
    has the run's seed plus `shuffle`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        loss: Loss,
        fixed: Sequence[str] = (),
        dropout: str = "critic",
        shuffle: int = 1,
    ) -> None:
        self.algorithm, self.loss, self.context = algorithm, loss, algorithm.context
        params, self.rate = algorithm.params, algorithm.network.dropout
        self.shuffle = params.generator("shuffle", algorithm.seed + shuffle, on_cpu=True)
        if self.rate:
            self.mlp: Any = params.modules[dropout]
            self.generator = params.generator("dropout", algorithm.seed + 2)
        learned = [name for name in params.slices if name not in (*fixed, "reward")]
        self.gradients = Gradients(params, self._loss, self.context, *learned)
        self.step = self.context.chained(self._step, algorithm)

    def rollout(self, batch: Batch) -> EncodedRollouts:
        return EncodedRollouts(batch, self.algorithm.encoder, self.context.group, self.algorithm.config.seq_len)

    def of(self, rollout: EncodedRollouts) -> list[Metrics]:
        """Make a gradient step with each minibatch of the rollout, in random order. Return the metrics of each step.

        The metrics of a step are {} if it was skipped, because its loss or gradient was not finite.
        """
        if self.rate:
            rollout.rows["dropout"] = self.context.rand(rollout.num, self.mlp.dropout_size, self.generator)
        # Rows of a minibatch, summed over all trainers. If minibatch_size is None, they are all rows of the rollout.
        size = self.algorithm.config.minibatch_size or rollout.num * self.context.group.size
        return [self.step(minibatch) for minibatch in rollout.minibatches(self.shuffle, size)]

    def _step(self, minibatch: Batch) -> Metrics:
        rows, optimizer = self._rows(minibatch), self.algorithm.optimizer
        masks = self.mlp.masks(rows["dropout"], self.rate) if self.rate else ()
        loss, metrics = self.gradients(rows, masks)
        try:
            optimizer.step(loss, parts=self.gradients.parts)
        except NotFinite:
            return {}
        return dict(metrics)

    def _rows(self, minibatch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the columns with one row for each transition. `batch` replaces observations that are to be encoded."""
        if not self.algorithm.encoder.is_trainable:
            return dict(minibatch)
        rows = steps(minibatch, self.context)
        del rows["obs"], rows["next_obs"]
        return {**rows, "batch": minibatch}

    def _loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        encoder = self.algorithm.encoder
        x = encoder.on(nets)(rows["batch"]).learned if encoder.is_trainable else rows["obs"]
        return self.loss(nets, x, rows, masks)


class Epochs:
    """The epochs of one update, and the metrics of their steps."""

    def __init__(self, minibatches: Minibatches, rollout: EncodedRollouts) -> None:
        self.minibatches, self.rollout = minibatches, rollout
        self.done: list[Metrics] = []  # of each step that was not skipped
        self.last: list[Metrics] = []  # the same of the last epoch with such a step
        self.skipped = 0

    def run(self) -> None:
        results = self.minibatches.of(self.rollout)
        epoch = [metrics for metrics in results if metrics]
        self.done += epoch
        self.skipped += len(results) - len(epoch)
        self.last = epoch or self.last

    def mean(self, name: str) -> Tensor:
        """Return the mean of a metric over the steps of the last epoch and over all trainers; NaN without a step."""
        mean = mean_of(self.last, name) if self.last else torch.full((), torch.nan)
        self.minibatches.context.group.mean_(mean)
        return mean

    def update(self, metrics: Mapping[str, Tensor]) -> Update:
        """Return the result of the update: these metrics, and the means over all steps. {} if all were skipped."""
        if not self.done:
            return Update({}, steps=0, skipped=self.skipped)
        means = {name: mean_of(self.done, name) for name in self.done[0]}
        return Update({**means, **metrics}, steps=len(self.done), skipped=self.skipped)


def mean_of(metrics: Sequence[Metrics], name: str) -> Tensor:
    return torch.stack([step[name] for step in metrics]).mean()

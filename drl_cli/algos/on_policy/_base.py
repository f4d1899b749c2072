"""OnPolicy: the base class of algorithms that learn from each rollout in several epochs of minibatches."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.algos.steps import steps
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer import NotFinite
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count

Metrics = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(LearnerConfig):
    """Options of all algorithms that learn from rollouts."""

    n_step: Literal[1]
    epochs: Count
    minibatch_size: Count | None
    seq_len: Count


class OnPolicy(Learner):
    """Splits each rollout into several epochs of minibatches. A subclass defines `prepare` and `loss`.

    `prepare` is called once for each rollout, and `loss` for each minibatch. `loss` gets the columns `[M, ...]` of a
    minibatch of M transitions: `action`, `log_prob` if the policy computes it, and the columns that `prepare` and
    `before_epoch` add. A legal-action mask is the column `action_mask`. The column `weight`, if present, multiplies the
    loss of each transition.
    """

    is_one_step = False
    config: Any  # a Config derived from OnPolicyConfig
    fixed: tuple[str, ...] = ()
    """The names of networks and tensors that the gradient steps of minibatches do not change."""
    dropout_part = "critic"
    """The name of the network whose hidden layers have dropout."""
    shuffle_seed_offset = 1
    """The generator that shuffles the transitions has the run's seed plus this number."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        super().__init__(config, network, spec, seed, context)
        self.shuffle = self.params.generator("shuffle", seed + self.shuffle_seed_offset, on_cpu=True)
        if network.dropout:
            self.dropout_generator = self.params.generator("dropout", seed + 2)
        learned = [name for name in self.params.slices if name not in self.fixed]
        self.gradients = Gradients(self.params, self.loss, self.context, *learned)
        self.fast_step = self.context.chained(self.step, self)  # `step`, replayed or compiled if possible

    @abstractmethod
    def prepare(self, batch: Batch, rollout: EncodedRollouts) -> Metrics:
        """Add columns `[N, ...]` for all epochs, such as value targets, to `rollout.rows`; return metrics."""

    @abstractmethod
    def loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        """Return the loss of a minibatch (a scalar), and metrics.

        `nets` are the networks, `rows` the columns `[M, ...]`, and `masks` the dropout masks of `dropout_part`.
        """

    def before_epoch(self, rollout: EncodedRollouts) -> None:
        """Add columns `[N, ...]` that differ between epochs to `rollout.rows`. The default adds noise for dropout."""
        if self.network.dropout:
            size: int = self.params.modules[self.dropout_part].dropout_size  # type: ignore[assignment]
            rollout.rows["dropout"] = self.context.rand(rollout.num, size, self.dropout_generator)

    def is_enough(self, epoch: Sequence[Metrics]) -> bool:
        """Return True to skip the remaining epochs of the update. `epoch` has the metrics of each gradient step."""
        return False

    def after_epochs(self, batch: Batch, epoch: Sequence[Metrics]) -> Metrics:
        """Finish an update that made a step; return more metrics. `epoch` has the metrics of the last epoch's steps."""
        return {}

    def update(self, batch: Batch, counts: Counts) -> Update:
        config, group = self.config, self.context.group
        rollout = EncodedRollouts(batch, self.encoder, group, config.seq_len)
        metrics = self.prepare(batch, rollout)
        # Rows of a minibatch, summed over all trainers. If minibatch_size is None, they are all rows of the rollout.
        size = config.minibatch_size or rollout.num * group.size
        done: list[Metrics] = []  # the metrics of each step that was not skipped
        last_epoch: list[Metrics] = []  # the same for the last epoch with a step that was not skipped
        skipped = 0
        for _ in range(config.epochs):
            self.before_epoch(rollout)
            results = [self.fast_step(minibatch) for minibatch in rollout.minibatches(self.shuffle, size)]
            epoch = [result for result in results if result]  # a skipped step returns {}
            done += epoch
            skipped += len(results) - len(epoch)
            if epoch:
                last_epoch = epoch
                if self.is_enough(epoch):
                    break
        if not done:
            return Update({}, steps=0, skipped=skipped)
        means = {name: mean_of(done, name) for name in done[0]}
        metrics = means | metrics | self.after_epochs(batch, last_epoch)
        return Update(metrics, steps=len(done), skipped=skipped)

    def step(self, minibatch: Batch) -> Metrics:
        """Make one gradient step with a minibatch `[M, ...]`; return its metrics.

        If a loss or gradient is not finite, skip the step and return {}.
        """
        rows = self.rows(minibatch)
        loss, metrics = self.gradients(rows, self.dropout_masks(rows))
        try:
            self.optimizer.step(loss, parts=self.gradients.parts)
        except NotFinite:
            return {}
        return dict(metrics)

    def rows(self, batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the columns of a minibatch for `loss`, with one row for each transition.

        With a trainable encoder, the column `batch`, which is the minibatch itself, replaces `obs` and `next_obs`, and
        `features` encodes its observations. Otherwise, the column `obs` already has the features.
        """
        if not self.encoder.is_trainable:
            return dict(batch)
        rows = steps(batch, self.context)
        del rows["obs"], rows["next_obs"]
        return {**rows, "batch": batch}

    def features(self, nets: Nets, rows: Batch) -> Tensor:
        """Return the encoder's outputs `[M, F]` for a minibatch's observations, with a gradient for the encoder."""
        features: Tensor = self.see(nets, rows).learned if self.encoder.is_trainable else rows["obs"]
        return features

    def dropout_masks(self, rows: Batch) -> Sequence[Tensor]:
        """Return the dropout masks of the network `dropout_part` for these rows; return () without dropout."""
        if not self.network.dropout:
            return ()
        mlp: Any = self.params.modules[self.dropout_part]
        masks: Sequence[Tensor] = mlp.masks(rows["dropout"], self.network.dropout)
        return masks


def mean_of(metrics: Sequence[Metrics], name: str) -> Tensor:
    """Return the mean of the metric `name` over several gradient steps."""
    return torch.stack([step[name] for step in metrics]).mean()

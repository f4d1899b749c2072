"""Learner: the base class of most built-in algorithms. All networks of an algorithm share one encoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import AlgoConfig, Algorithm, Batch, Counts, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder, View, action_mask, at_steps, flat_steps
from drl_cli.optim.gradients import Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.replay.stacks import unjoined
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Positive

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.networks.mlp_module import MLP, Critics


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(AlgoConfig):
    """Options of the built-in algorithms. The default values are in the yaml file of each algorithm."""

    lr: Positive


class Learner(Algorithm):
    """The base of algorithms that learn from loss functions, see `drl_cli.optim.gradients.Gradients`.

    `setup` makes the networks and calls `build`. A loss function gets the columns that the method `rows` returns. It
    calls `see` for the features of the observations:

        def loss(self, nets, rows, noise):
            view = self.see(nets, rows)
            q = nets.critic(view.learned, rows["action"])   # `learned`: this loss trains the encoder, too
            action = nets.actor(view.obs).tanh()            # `obs`: this loss does not
    """

    optimizer_class = Optimizer
    has_own_weights = True
    """Whether the generator `self.init` draws the initial weights. If False, torch's default generator draws them.

    Older algorithms keep False, so that a seed gives the same run as in earlier versions.
    """

    averages_in_loss = False
    """Whether a loss function averages values over all trainers. torch.compile cannot compile such a function."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        if network.memory != "none" or (self.averages_in_loss and context.group.size > 1):
            # torch.compile cannot compile an LSTM, a GRU or an average over trainers.
            context = replace(context, compiles=False)
        self.config, self.network, self.context, self.seed = config, network, context, seed
        self.init = torch.Generator().manual_seed(seed)
        self.encoder = Encoder.build(network, spec, self.init)
        self.no_grad = torch.no_grad()  # made once, because making it takes as long as a small matrix product
        self.setup(config, spec)

    @abstractmethod
    def setup(self, config: Any, spec: EnvSpec) -> None:
        """Make the networks, and call `build`."""

    def learn(self, batch: Batch, counts: Counts) -> Update:
        with self.no_grad:
            return super().learn(n_step_sequences(batch, self.config.n_step), counts)

    def mlp(self, outputs: int, ensemble: int = 1, last: float = 1.0) -> MLP:
        """Return an ensemble of new MLPs from the encoder's features `[B, F]` to `[B, outputs]` each.

        The initial weights of the last layer are multiplied by `last`.
        """
        from drl_cli.networks.mlp_module import MLP  # imports torch

        generator = self.init if self.has_own_weights else None
        return MLP(self.encoder.size, outputs, self.network, ensemble, last, generator=generator)

    def critics(self, outputs: int, actions: int, ensemble: int = 1, norms: bool = False) -> Critics:
        """Return an ensemble of new critics: MLPs from features `[B, F]` and actions `[B, actions]` to `[B, outputs]`.

        With `norms`, the critics have layer norm even if `network.layer_norm` is False.
        """
        from drl_cli.networks.mlp_module import Critics  # imports torch

        generator = self.init if self.has_own_weights else None
        network = replace(self.network, layer_norm=True) if norms else self.network
        return Critics(self.encoder.size + actions, outputs, network, ensemble, generator=generator)

    def build(
        self,
        policy: Sequence[str],
        lr: float | Part,
        lrs: Mapping[str, float | Part] | None = None,
        targets: Sequence[str] = (),
        **parts: int | nn.Module,
    ) -> None:
        """Make the parameters, the target networks of `targets`, and the optimizer.

        `policy` names the parts that the policy needs besides the encoder. `lr` is the learning rate of all parts that
        `lrs` does not name. The encoder has a target network, too, if `targets` is not empty.
        """
        self.params = Params(self.context, **self.encoder.parts, **parts)
        self.policy_parts = (*self.encoder.parts, *policy)
        for name in (*self.encoder.parts, *targets) if targets else ():
            self.params.target(name)
        self.has_target_encoder = bool(targets) and self.encoder.is_trainable
        lrs = dict.fromkeys(self.params.slices, lr) | dict(lrs or {})
        self.optimizer = self.optimizer_class(self.params, lrs, self.context)

    def rows(self, batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the columns that a loss function needs: the columns that `steps` returns, without the observations.

        The column `batch` is the whole batch, from which `see` computes the features of the observations. `mask_now`
        and `mask_next` are the legal-action masks of obs and next_obs, or None.
        """
        rows = steps(batch, self.context)
        masks = {"mask_now": action_mask(rows.pop("obs")), "mask_next": action_mask(rows.pop("next_obs"))}
        return {**rows, **masks, "batch": batch}

    def see(self, nets: Nets, rows: Batch) -> View:
        """Return the features of the observations in `rows`."""
        return self.encoder.on(nets)(rows["batch"], self.context.burn_in)

    def see_target(self, nets: Nets, rows: Batch, view: View) -> View:
        """Return the features that the target encoder computes, or `view` if the encoder has no target network."""
        if not self.has_target_encoder:
            return view
        return self.encoder.on(nets.target)(rows["batch"], self.context.burn_in, learns=False)

    def finish(self, loss: Tensor, found: Mapping[str, Tensor], batch: Batch) -> Update:
        """Make a gradient step of all parts, and move the target networks by `config.tau`.

        `found` has the metrics and the column `td_error` `[N]`, which becomes the priorities.
        """
        self.optimizer.step(loss)
        self.params.follow(self.config.tau)
        metrics = dict(found)
        return Update(metrics, by_step(metrics.pop("td_error"), batch))

    def masks(self, mlp: MLP, rows: int, generator: torch.Generator) -> Sequence[Tensor]:
        """Return new dropout masks for one forward pass of `mlp` with `rows` rows; return () without dropout."""
        if not self.network.dropout:
            return ()
        return mlp.masks(self.context.rand(rows, mlp.dropout_size, generator), self.network.dropout)

    def critic_masks(self, critic: MLP, rows: int, generator: torch.Generator) -> dict[str, Sequence[Tensor]]:
        """Return new dropout masks of the critics, `masks`, and of their target networks, `target_masks`."""
        return {name: self.masks(critic, rows, generator) for name in ("masks", "target_masks")}


def steps(batch: Batch, context: AlgoContext) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
    """Return the rows `[N, ...]` to learn from: the batch's rows, or all steps of sequences after the burn-in.

    For sequences, the column `valid_weight` `[N]` is added: 0 for padding, and the same positive number for every
    valid step. The mean of `valid_weight` over the rows of all trainers is 1. The column `weight` is
    `valid_weight`, multiplied by the importance weight if the batch has one.
    """
    if "valid" not in batch:
        return unjoined(batch)  # joins no image stacks, because a loss function reads only their features
    rows = flat_steps(batch, context.burn_in)
    mean = rows["valid_weight"].mean()
    context.group.mean_(mean)
    return rows | {"weight": rows["weight"] / mean, "valid_weight": rows["valid_weight"] / mean}


def by_step(values: Tensor, batch: Batch) -> Tensor:
    """Return `values` `[N]`, reshaped to `[B, T]` if the batch contains sequences."""
    return values.view(len(batch["valid"]), -1) if "valid" in batch else values


def n_step_sequences(batch: Batch, n_step: int) -> Batch:
    """Replace the 1-step rewards, discounts and next observations of sequences `[B, L, ...]` by n-step values.

    The new column `last`, int64 `[B, L]`, has the index of the last of the n steps. Return the batch unchanged if it
    has no sequences or if `n_step` is 1.
    """
    if n_step == 1 or "valid" not in batch:
        return batch
    reward, discount, last = n_step_windows(batch["reward"], batch["discount"], batch["valid"], n_step)
    rows = torch.arange(len(last), device=last.device).unsqueeze(1)
    next_obs = at_steps(batch["next_obs"], rows, last)
    return {**batch, "reward": reward, "discount": discount, "next_obs": next_obs, "last": last}

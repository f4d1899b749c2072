"""Learner: the base class of most built-in algorithms. The networks of such an algorithm share one encoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import AlgoConfig, Algorithm, Batch, Counts, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.steps import n_step_sequences, per_sequence, steps
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder, View, action_mask
from drl_cli.optim.gradients import Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Positive

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.networks.mlp_module import MLP


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(AlgoConfig):
    """The options of AlgoConfig, and the learning rate `lr`."""

    lr: Positive


class Learner(Algorithm):
    """The base class of algorithms that minimise loss functions and whose networks share one encoder.

    A subclass defines `setup`, which makes the networks and passes them to `build`, and one or more loss functions.
    `drl_cli.optim.gradients.Gradients` computes the gradient of a loss function. A loss function gets the networks
    `nets`, the result `rows` of `self.rows(batch)`, and the random numbers `noise`, which `update` has drawn. It calls
    `see` to compute the features of `obs`:

        def loss(self, nets, rows, noise):
            view = self.see(nets, rows)
            q = nets.critic(view.learned, rows["action"])   # features with a gradient: the loss trains the encoder
            action = nets.actor(view.obs).tanh()            # the same features without a gradient
    """

    optimizer_class = Optimizer
    makes_n_steps = True
    has_own_weights = True
    """Whether the generator `self.init` draws the initial weights. If False, torch's default generator draws them, so
    that a seed gives the same run as in earlier versions of drl-cli.
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
        self.no_grad = torch.no_grad()  # made only once, because this takes as long as a small matrix product
        self.setup(config, spec)

    @abstractmethod
    def setup(self, config: Any, spec: EnvSpec) -> None:
        """Make the networks and pass them to `build`. The constructor calls this method at its end."""

    def learn(self, batch: Batch, counts: Counts) -> Update:
        with self.no_grad:
            n_step_batch = n_step_sequences(batch, self.config.n_step)
            return super().learn(n_step_batch, counts)

    def mlp(self, outputs: int, ensemble: int = 1, last: float = 1.0) -> MLP:
        """Return a new MLP whose inputs are the encoder's features `[B, F]` and whose outputs are `[B, outputs]`.

        With `ensemble` = N > 1, return an ensemble of N MLPs with outputs `[N, B, outputs]`. The initial weights of the
        last layer are multiplied by `last`.
        """
        from drl_cli.networks.mlp_module import MLP  # imports torch

        generator = self.init if self.has_own_weights else None
        return MLP(self.encoder.size, outputs, self.network, ensemble=ensemble, last=last, generator=generator)

    def build(
        self,
        policy: Sequence[str],
        lr: float | Part,
        lrs: Mapping[str, float | Part] | None = None,
        targets: Sequence[str] = (),
        **parts: int | nn.Module,
    ) -> None:
        """Make the parameters, the target networks and the optimizer from the networks `parts`.

        Each of the `parts` is a module, or the size of a parameter vector without a module. `policy` lists the parts
        that the policy needs besides the encoder, and `targets` the parts that get a target network. If there are
        targets, the encoder gets a target network, too. `lrs` has learning rates by part, and `lr` is the learning rate
        of all other parts.
        """
        encoder_parts = self.encoder.parts
        self.params = Params(self.context, **encoder_parts, **parts)
        self.policy_parts = (*encoder_parts, *policy)
        if targets:
            for name in (*encoder_parts, *targets):
                self.params.target(name)
        self.has_target_encoder = bool(targets) and self.encoder.is_trainable
        all_lrs: dict[str, float | Part] = dict.fromkeys(self.params.slices, lr)
        all_lrs.update(lrs or {})
        self.optimizer = self.optimizer_class(self.params, all_lrs, self.context)

    def rows(self, batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the columns `[N, ...]` that a loss function reads, one row for each transition or sequence step.

        The loss functions call this number of rows B, as if every batch had transitions.
        The columns `obs` and `next_obs` are left out. Instead, `mask_now` and `mask_next` are their legal-action masks,
        or None, and `rows["batch"]` is the batch itself. The method `see` computes the features of its observations.
        """
        rows = steps(batch, self.context)
        masks = {"mask_now": action_mask(rows.pop("obs")), "mask_next": action_mask(rows.pop("next_obs"))}
        return {**rows, **masks, "batch": batch}

    def see(self, nets: Nets, rows: Batch) -> View:
        """Return the features of `obs` and of `next_obs`, `[N, F]` each, computed with the encoder in `nets`."""
        encoder = self.encoder.on(nets)
        return encoder(rows["batch"], self.context.burn_in)

    def see_target(self, nets: Nets, rows: Batch, view: View) -> View:
        """Return the same features as `see`, computed by the target network of the encoder.

        Return `view`, the result of `see`, if the encoder has no target network.
        """
        if not self.has_target_encoder:
            return view
        target_encoder = self.encoder.on(nets.target)
        return target_encoder(rows["batch"], self.context.burn_in, learns=False)

    def finish(self, loss: Tensor, found: Mapping[str, Tensor], batch: Batch) -> Update:
        """Make one optimizer step with the present gradients, and move the target networks by the fraction `tau`.

        Return the result of the update. `loss` is the loss `[]` of these gradients. `found` has the metrics, and the
        column `td_error` `[N]`, which becomes the new priorities.
        """
        self.optimizer.step(loss)
        self.params.follow(self.config.tau)
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        return Update(metrics, priorities=per_sequence(td_error, batch))

    def masks(self, mlp: MLP, rows: int, generator: torch.Generator) -> Sequence[Tensor]:
        """Draw dropout masks for one forward pass of `mlp` with `rows` rows. Return () without dropout."""
        if not self.network.dropout:
            return ()
        uniform = self.context.rand(rows, mlp.dropout_size, generator)
        return mlp.masks(uniform, self.network.dropout)

    def critic_masks(self, critic: MLP, rows: int, generator: torch.Generator) -> dict[str, Sequence[Tensor]]:
        """Draw dropout masks for the critics (`masks`) and for their target networks (`target_masks`)."""
        return {name: self.masks(critic, rows, generator) for name in ("masks", "target_masks")}

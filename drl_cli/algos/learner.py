"""Learner: the base of the built-in algorithms. Their networks share one encoder, and they learn from losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import AlgoConfig, Algorithm, Batch, Counts, Update
from drl_cli.algos.stacks import unjoined
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder, View, action_mask, at_steps, flat_steps
from drl_cli.networks.mlp import FlatMLP, Shapes, mlp_shapes, num_params
from drl_cli.optim.gradients import Nets
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Positive

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.networks.mlp_module import MLP, Critics


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(AlgoConfig):
    """Options that every NetworkAlgorithm has."""

    lr: Positive


@dataclass(frozen=True)
class Head:
    """Parameter shapes of `ensemble` equally shaped MLPs; the last layer's initial weights are multiplied by `last`."""

    shapes: Shapes
    ensemble: int = 1
    last: float = 1.0


class Learner(Algorithm):
    """The base of algorithms that learn from losses, see `drl_cli.optim.gradients.Gradients`.

    `setup` makes the networks and calls `build`. A loss function gets `rows` from the method `rows`, and calls `see`
    for the features of the observations:

        def loss(self, nets, rows, noise):
            view = self.see(nets, rows)
            q = nets.critic(view.learned, rows["action"])   # `learned`: this loss trains the encoder, too
            action = nets.actor(view.obs).tanh()            # `obs`: this loss does not
    """

    optimizer_class = Optimizer

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
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
        """Return new MLPs whose inputs are the encoder's features."""
        from drl_cli.networks import mlp_module, modules  # they import torch

        with modules.seeded(self.init):
            return mlp_module.MLP(self.encoder.size, outputs, self.network, ensemble, last)

    def critics(self, outputs: int, actions: int, ensemble: int = 1) -> Critics:
        """Return new critics: MLPs whose inputs are the encoder's features and an action of this size."""
        from drl_cli.networks import mlp_module, modules  # they import torch

        with modules.seeded(self.init):
            return mlp_module.Critics(self.encoder.size + actions, outputs, self.network, ensemble)

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
        """Return the columns of `steps` without observations, the legal-action masks, and the batch for `see`.

        The masks are `mask_now` and `mask_next`, those of obs and next_obs, or None.
        """
        rows = steps(batch, self.context)
        masks = {"mask_now": action_mask(rows.pop("obs")), "mask_next": action_mask(rows.pop("next_obs"))}
        return {**rows, **masks, "batch": batch}

    def see(self, nets: Nets, rows: Batch) -> View:
        """Return the features of a loss function's rows."""
        return self.encoder.on(nets)(rows["batch"], self.context.burn_in)

    def see_target(self, nets: Nets, rows: Batch, view: View) -> View:
        """Return the features of the target encoder, or `view` if there is none."""
        if not self.has_target_encoder:
            return view
        return self.encoder.on(nets.target)(rows["batch"], self.context.burn_in, learns=False)

    def masks(self, mlp: MLP, rows: int, generator: torch.Generator) -> Sequence[Tensor]:
        """Return new dropout masks for a pass of `mlp` over this many rows; an empty tuple without dropout."""
        if not self.network.dropout:
            return ()
        return mlp.masks(self.context.rand(rows, mlp.dropout_size, generator), self.network.dropout)


def steps(batch: Batch, context: Context) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
    """Return the rows to learn from: the batch's rows, or for sequences all steps after the burn-in.

    For sequences, a column `valid_weight` `[N]` is added: 0 for padding, and the same positive number for every
    valid step. The mean of `valid_weight` over the rows of all trainers is 1. The column `weight` is
    `valid_weight`, multiplied by the importance weight if the batch has one.
    """
    if "valid" not in batch:
        return unjoined(batch)  # algorithms read features in place of stacks
    rows = flat_steps(batch, context.burn_in)
    context.group.mean_(mean := rows["valid_weight"].mean())
    return rows | {"weight": rows["weight"] / mean, "valid_weight": rows["valid_weight"] / mean}


def by_step(values: Tensor, batch: Batch) -> Tensor:
    """Return `values` `[N]`, reshaped to `[B, T]` if the batch contains sequences."""
    return values.view(len(batch["valid"]), -1) if "valid" in batch else values


class NetworkAlgorithm(Algorithm):
    """The base of algorithms that compute the gradients of their MLPs by hand.

    A subclass builds its heads in `setup` and writes their gradients in `gradients`. With trainer.compile=true
    and an encoder without parameters, torch.compile compiles `gradients`, so `gradients` must not draw random numbers.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        self.network, self.context, self.n_step = network, context, config.n_step
        self.seed, self.init = seed, torch.Generator().manual_seed(seed)
        self.encoder = Encoder.build(network, spec, self.init)
        self.target_encoder = self.encoder
        self.no_grad = torch.no_grad()  # made once, because making it takes as long as a small matrix product
        self.setup(config, spec)
        if not self.encoder.is_trainable:  # else only the encoder's modules are compiled, on GPUs
            self.gradients = context.compiled(self.gradients)  # type: ignore[method-assign]

    @abstractmethod
    def setup(self, config: Any, spec: EnvSpec) -> None:
        """Build the heads and everything else that the algorithm needs."""

    @abstractmethod
    def gradients(self, rows: Batch) -> Any:
        """Write the gradients of one update; `rows` also contains the update's noise and dropout masks."""

    def learn(self, batch: Batch, counts: Counts) -> Update:
        with self.no_grad:
            return super().learn(n_step_sequences(batch, self.n_step), counts)

    def head(self, outputs: int, inputs: int = 0, ensemble: int = 1, last: float = 1.0) -> Head:
        """Return a head whose inputs are the encoder's features and `inputs` further values."""
        shapes = mlp_shapes(self.encoder.size + inputs, self.network.hidden, outputs, self.network.layer_norm)
        return Head(shapes, ensemble, last)

    def build(
        self,
        parts: Mapping[str, Head | int],
        policy: tuple[str, ...],
        lr: float,
        lrs: Mapping[str, float] | None = None,
        modules: Mapping[str, Any] | None = None,
    ) -> dict[str, FlatMLP]:
        """Make the parameters and the optimizer, and return the heads by name.

        A part is a head, or an integer, which is the number of values of a part without a network. `policy` names the
        parts that the policy needs. `lr` is the learning rate of all parts that `lrs` does not name.
        `modules` are further parts, as torch modules.
        """
        sizes = {n: p if isinstance(p, int) else num_params(p.shapes, p.ensemble) for n, p in parts.items()}
        self.params = Params(self.context, **self.encoder.parts, **sizes, **(modules or {}))
        self.policy_parts = (*self.encoder.parts, *policy)
        self.optimizer = Optimizer(self.params, dict.fromkeys(self.params.slices, lr) | dict(lrs or {}), self.context)
        if self.network.dropout:
            self.drops = self.params.generator("dropout", self.seed + 2)
        heads = {}
        for name, head in parts.items():
            if isinstance(head, Head):
                part = self.params[name]
                heads[name] = FlatMLP(head.shapes, self.network.activation, part, head.ensemble, self.context.products)
                heads[name].init(self.network.init, self.init, head.last)
        return heads

    def target_of(self, name: str, head: FlatMLP) -> FlatMLP:
        """Make target networks of the encoder and of the head `name`; return the target head."""
        self.target_encoder = self.encoder.target(self.params)
        return head.on(self.params.target(name).part)

    def masks(self, head: FlatMLP, rows: Tensor, times: int = 1, is_mine: Tensor | None = None) -> Sequence[Tensor]:
        """Return dropout masks for `head.forward` on `times * len(rows)` rows; an empty tuple without dropout.

        If trainers can have different numbers of rows, `is_mine`, bool `[all rows]`, has to mark this trainer's rows in
        the minibatch of all trainers.
        """
        if not self.network.dropout:
            return ()
        size, device = head.dropout_size, self.context.device
        if is_mine is None:
            uniform = self.context.rand(times * len(rows), size, self.drops)
        else:
            uniform = torch.rand(len(is_mine), size, generator=self.drops, device=device)[is_mine.to(device)]
        return head.masks(uniform, self.network.dropout)

    def see(
        self, batch: Batch, head: FlatMLP | None = None, times: int = 1
    ) -> tuple[View, dict[str, Any]]:  # Any: a tensor, or a dict of tensors
        """Encode a batch; return the encoder's View, and the rows from `steps` with features in the column `obs`.

        New columns: `mask_now` and `mask_next` are the legal-action masks of obs and next_obs, or None. If
        `head` is given, `drop` contains its dropout masks for `times` inputs per row.
        """
        view, rows = self.encoder(batch, self.context.burn_in), self.steps(batch)
        rows["mask_now"], rows["mask_next"] = action_mask(rows["obs"]), action_mask(rows["next_obs"])
        rows["obs"] = view.obs
        if head is not None:
            rows["drop"] = self.masks(head, view.obs, times)
        return view, rows

    def see_target(self, batch: Batch, view: View) -> View:
        """Return the target encoder's View of a batch, or `view` if the encoder has no parameters."""
        return self.target_encoder(batch, self.context.burn_in, learns=False) if self.encoder.is_trainable else view

    def step(self, view: View | None, d_obs: Tensor | None, *losses: Tensor, parts: Sequence[str] = ()) -> None:
        """Backpropagate `d_obs` (d loss/d features of obs) through the encoder, and make one optimizer step of `parts`.

        Raise NotFinite if trainer.on_nonfinite=skip and a loss or gradient is not finite.
        """
        if view is not None:
            view.backward(d_obs)
        self.optimizer.step(*losses, parts=parts)

    def steps(self, batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the rows to learn from; see the function `steps`."""
        return steps(batch, self.context)

    def by_step(self, values: Tensor, batch: Batch) -> Tensor:
        """See the function `by_step`."""
        return by_step(values, batch)


def n_step_sequences(batch: Batch, n_step: int) -> Batch:
    """Replace the rewards, discounts and next observations of sequences `[B, L, ...]` by n-step values.

    The new column `last`, int64 `[B, L]`, is the index of the last of the n steps. A batch without sequences, or with
    `n_step` = 1, is returned unchanged.
    """
    if n_step == 1 or "valid" not in batch:
        return batch
    reward, discount, last = n_step_windows(batch["reward"], batch["discount"], batch["valid"], n_step)
    rows = torch.arange(len(last), device=last.device).unsqueeze(1)
    next_obs = at_steps(batch["next_obs"], rows, last)
    return {**batch, "reward": reward, "discount": discount, "next_obs": next_obs, "last": last}

"""NetworkAlgorithm: the base of algorithms whose networks are MLPs (heads) on the features of one encoder."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import AlgoConfig, Algorithm, Batch, Counts, Update
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder, View, action_mask, at_steps, flat_steps
from drl_cli.networks.mlp import MLP, Shapes, mlp_shapes, num_params
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Positive


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(AlgoConfig):
    """Options that every NetworkAlgorithm has."""

    lr: Positive


@dataclass(frozen=True)
class Head:
    """The parameter shapes of an MLP, or of an `ensemble` of MLPs; the last layer's weights start times `last`."""

    shapes: Shapes
    ensemble: int = 1
    last: float = 1.0


class NetworkAlgorithm(Algorithm):
    """Makes the encoder, the heads, their parameters and the optimizer.

    Subclasses build their heads in `setup` and write gradients in `gradients`, which is compiled with
    trainer.compile=true. `gradients` therefore only computes with tensors: it draws no random numbers.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        self.network, self.context, self.n_step = network, context, config.n_step
        self.seed, self.init = seed, torch.Generator().manual_seed(seed)
        self.encoder = Encoder.build(network, spec, self.init)
        self.target_encoder = self.encoder
        self.no_grad = torch.no_grad()  # one object for all updates: making it takes as long as a small product
        self.setup(config, spec)
        if not self.encoder.is_trainable:  # a trainable encoder's modules are compiled instead
            self.gradients = context.compiled(self.gradients)  # type: ignore[method-assign]

    @abstractmethod
    def setup(self, config: Any, spec: EnvSpec) -> None:
        """Build the heads and everything else that the algorithm needs."""

    @abstractmethod
    def gradients(self, rows: Batch) -> Any:
        """Write the gradients of a step; the rows also contain the step's noise and dropout masks."""

    def learn(self, batch: Batch, counts: Counts) -> Update:
        with self.no_grad:
            return super().learn(n_step_sequences(batch, self.n_step), counts)

    def head(self, outputs: int, inputs: int = 0, ensemble: int = 1, last: float = 1.0) -> Head:
        """Return a head whose inputs are the encoder's features and `inputs` more values."""
        shapes = mlp_shapes(self.encoder.size + inputs, self.network.hidden, outputs, self.network.layer_norm)
        return Head(shapes, ensemble, last)

    def build(
        self,
        parts: Mapping[str, Head | int],
        policy: tuple[str, ...],
        lr: float,
        lrs: Mapping[str, float] | None = None,
    ) -> dict[str, MLP]:
        """Make the parameters and the optimizer, and return the heads by name.

        Parts are heads, or numbers of plain values. `policy` names the parts that the policy needs. `lr` is the
        learning rate of all parts that `lrs` does not name.
        """
        sizes = {n: p if isinstance(p, int) else num_params(p.shapes, p.ensemble) for n, p in parts.items()}
        self.params = Params(self.context, **self.encoder.parts, **sizes)
        self.policy_parts = (*self.encoder.parts, *policy)
        self.optimizer = Optimizer(self.params, dict.fromkeys(self.params.slices, lr) | dict(lrs or {}), self.context)
        if self.network.dropout:
            self.drops = self.params.generator("dropout", self.seed + 2)
        heads = {}
        for name, head in parts.items():
            if isinstance(head, Head):
                part = self.params[name]
                heads[name] = MLP(head.shapes, self.network.activation, part, head.ensemble, self.context.products)
                heads[name].init(self.network.init, self.init, head.last)
        return heads

    def target_of(self, name: str, head: MLP) -> MLP:
        """Make the target networks of a head and of the encoder; return the target head."""
        self.target_encoder = self.encoder.target(self.params)
        return head.on(self.params.target(name).part)

    def masks(self, head: MLP, rows: Tensor, times: int = 1, is_mine: Tensor | None = None) -> Sequence[Tensor]:
        """Return dropout masks for `head.forward` on `times` times these rows; empty without dropout.

        Every trainer has equally many rows, or shares a minibatch of which `is_mine`, bool `[all rows]`, marks its
        rows.
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
        self, batch: Batch, head: MLP | None = None, times: int = 1
    ) -> tuple[View, dict[str, Any]]:  # Any: as in Batch
        """Return the encoder's view of a batch, and the batch's `steps` with features as `obs`.

        The columns `mask_now` and `mask_next` have the legal-action masks of obs and next_obs, or None. `drop` has the
        dropout masks of a head that learns from `times` times these rows.
        """
        view, rows = self.encoder(batch, self.context.burn_in), self.steps(batch)
        rows["mask_now"], rows["mask_next"] = action_mask(rows["obs"]), action_mask(rows["next_obs"])
        rows["obs"] = view.obs
        if head is not None:
            rows["drop"] = self.masks(head, view.obs, times)
        return view, rows

    def see_target(self, batch: Batch, view: View) -> View:
        """Return the target encoder's view of a batch; the encoder's own `view` if there is nothing to train."""
        return self.target_encoder(batch, self.context.burn_in, learns=False) if self.encoder.is_trainable else view

    def step(self, view: View | None, d_obs: Tensor | None, *losses: Tensor) -> None:
        """Change the parameters by the written gradients; the view continues d loss/d obs into the encoder first.

        Raise NotFinite if the context skips updates and a loss or gradient is not finite.
        """
        if view is not None:
            view.backward(d_obs)
        self.optimizer.step(*losses)

    def steps(self, batch: Batch) -> dict[str, Any]:  # Any: as in Batch
        """Return the rows to learn from: those of the batch, or the learned steps of its sequences.

        For sequences there is a column `valid_weight` `[N]`: 0 for padding, one positive number for all valid steps,
        with mean 1 over the rows of all trainers. `weight` includes the importance weight, if any.
        """
        if "valid" not in batch:
            return dict(batch)
        rows = flat_steps(batch, self.context.burn_in)
        share = rows["valid_weight"].mean()
        self.context.group.mean_(share)
        return rows | {"weight": rows["weight"] / share, "valid_weight": rows["valid_weight"] / share}

    def by_step(self, values: Tensor, batch: Batch) -> Tensor:
        """Return the values `[N]` of the learned rows; for sequences as `[B, T]`."""
        return values.view(len(batch["valid"]), -1) if "valid" in batch else values


def n_step_sequences(batch: Batch, n_step: int) -> Batch:
    """Return sequences `[B, L, ...]` with n-step rewards, discounts and next observations, and unchanged otherwise.

    A new column `last`, int64 `[B, L]`, has the index of the last step of each step's window.
    """
    if n_step == 1 or "valid" not in batch:
        return batch
    reward, discount, last = n_step_windows(batch["reward"], batch["discount"], batch["valid"], n_step)
    rows = torch.arange(len(last), device=last.device).unsqueeze(1)
    next_obs = at_steps(batch["next_obs"], rows, last)
    return {**batch, "reward": reward, "discount": discount, "next_obs": next_obs, "last": last}

"""NetworkAlgorithm: algorithms whose networks are plain MLPs, the heads, behind one encoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import AlgoConfig, Algorithm, Batch, Counts, Update
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder, View, action_mask, at_steps, flat_steps
from drl_cli.networks.mlp import MLP, Shapes, mlp_shapes, num_params
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Positive

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(AlgoConfig):
    """What the Config of every NetworkAlgorithm has."""

    lr: Positive


@dataclass(frozen=True)
class Head:
    """An MLP of these shapes, or an `ensemble` of them; the last layer begins `last` times as large as usual."""

    shapes: Shapes
    ensemble: int = 1
    last: float = 1.0


class NetworkAlgorithm(Algorithm):
    """Makes encoder, heads, their parameters and the optimizer; what is learned from them is the subclass's.

    That builds its heads in `setup`, and writes their gradients in `gradients`, which is compiled where the run wants
    it: a function of tensors alone, which draws no random numbers.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        self.network, self.context, self.n_step = network, context, config.n_step
        self.seed, self.init = seed, torch.Generator().manual_seed(seed)
        self.encoder = Encoder(network, spec, self.init)
        self.target_encoder = self.encoder
        self.no_grad = torch.no_grad()  # one for all updates: making it costs as much as a small product
        self.setup(config, spec)
        if not self.encoder.is_trainable:  # else its modules are compiled, and this would be cut to pieces by autograd
            self.gradients = context.compiled(self.gradients)  # type: ignore[method-assign]

    @abstractmethod
    def setup(self, config: Any, spec: EnvSpec) -> None:
        """Build the heads, and whatever else the algorithm is made of."""

    @abstractmethod
    def gradients(self, rows: Batch) -> Any:
        """Write the gradients of a step from its rows; noise and masks are among them."""

    def learn(self, batch: Batch, counts: Counts) -> Update:
        with self.no_grad:
            return super().learn(n_step_sequences(batch, self.n_step), counts)

    def head(self, outputs: int, inputs: int = 0, ensemble: int = 1, last: float = 1.0) -> Head:
        """A head on the encoder's features, and on so many `inputs` besides."""
        shapes = mlp_shapes(self.encoder.size + inputs, self.network.hidden, outputs, self.network.layer_norm)
        return Head(shapes, ensemble, last)

    def build(
        self,
        parts: Mapping[str, Head | int],
        policy: tuple[str, ...],
        lr: float,
        lrs: Mapping[str, float] | None = None,
    ) -> dict[str, MLP]:
        """The heads by name; other `parts` are so many plain values, `policy` those that the policy needs.

        All learn with the rate `lr`, but for those that have one in `lrs`.
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
        """A copy of a head; the target encoder comes with it, and both follow theirs by `Params.follow`."""
        self.target_encoder = self.encoder.target(self.params)
        return head.on(self.params.target(name).part)

    def masks(self, head: MLP, rows: Tensor, times: int = 1, is_mine: Tensor | None = None) -> Sequence[Tensor]:
        """Dropout's masks for `head.forward` of so many times these rows; none where the run has no dropout.

        Every trainer has as many rows, or those that `is_mine`, bool `[all rows]`, says of a minibatch that they share.
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
        """The features of a batch, through which the encoder learns, and its `steps` with features as `obs`.

        For a head that learns from so many times these rows, its `masks` are with them as `drop`.
        The columns `mask_now` and `mask_next` say which actions are allowed; None without such masks.
        """
        view, rows = self.encoder(batch, self.context.burn_in), self.steps(batch)
        rows["mask_now"], rows["mask_next"] = action_mask(rows["obs"]), action_mask(rows["next_obs"])
        rows["obs"] = view.obs
        if head is not None:
            rows["drop"] = self.masks(head, view.obs, times)
        return view, rows

    def see_target(self, batch: Batch, view: View) -> View:
        """What the target encoder sees in a batch, given the view by the encoder itself."""
        return self.target_encoder(batch, self.context.burn_in, learns=False) if self.encoder.is_trainable else view

    def step(self, view: View | None, d_obs: Tensor | None, *losses: Tensor) -> None:
        """Change the parameters by the gradients that are written, and by what the view's encoder makes of `d_obs`.

        Raises NotFinite where one of the losses is not.
        """
        if view is not None:
            view.backward(d_obs)
        self.optimizer.step(*losses)

    def steps(self, batch: Batch) -> dict[str, Any]:  # Any: as in Batch
        """The rows that are learned from: those of the batch, or the learned steps of its sequences.

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
        """Values of the learned rows `[N]` as they are for rows, as `[B, T]` for sequences."""
        return values.view(len(batch["valid"]), -1) if "valid" in batch else values


def n_step_sequences(batch: Batch, n_step: int) -> Batch:
    """Sequences `[B, L, ...]` with n-step rewards, discounts and next observations; everything else as it is.

    The next observation of a step is that after its window's `last` step, int64 `[B, L]`, one more column.
    """
    if n_step == 1 or "valid" not in batch:
        return batch
    reward, discount, last = n_step_windows(batch["reward"], batch["discount"], batch["valid"], n_step)
    rows = torch.arange(len(last), device=last.device).unsqueeze(1)
    next_obs = at_steps(batch["next_obs"], rows, last)
    return {**batch, "reward": reward, "discount": discount, "next_obs": next_obs, "last": last}

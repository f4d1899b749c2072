"""Reward modules: an intrinsic reward as a separate module, which an on-policy algorithm adds as a second stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from drl_cli.algos.base import Batch
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.rollout import Rollouts
from drl_cli.errors import Refused
from drl_cli.losses.returns import gae
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.group import ProcessGroup
from drl_cli.optim.optimizer import Optimizer
from drl_cli.replay.stacks import like, unjoined
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.outside import import_object

if TYPE_CHECKING:
    from torch import nn

PART = "reward"
"""The name of the module's part in the algorithm's Params."""
BUILT_IN = {name: f"drl_cli.algos.on_policy.rewards.{name}:Module" for name in ("rnd", "icm")}
"""The import paths of the reward modules of this package, by name."""


class Reward:
    """The base of a reward module, beside torch.nn.Module: `class RND(drl.Reward, nn.Module)`.

    `__init__(self, network, spec)` makes the networks. `gamma` is the discount of the stream, which goes on over the
    ends of episodes. `coef` multiplies the stream's advantages before they are added to the advantages of the
    environment's rewards. `lr` and `minibatch_size` (rows of all trainers) are used to train the module.
    """

    gamma: float = 0.99
    coef: float = 1.0
    lr: float = 1e-3
    minibatch_size: int = 256

    def bonus(self, batch: Batch) -> Tensor:
        """Return the reward of each row of a batch, `[B]`, before it is divided by its running standard deviation."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of each row, `[B]`, which trains the module. By default this is the bonus."""
        return self.bonus(batch)

    def observe(self, batch: Batch, group: ProcessGroup) -> None:
        """Add a batch to the module's statistics, averaged over `group`, before the bonus of the batch is computed."""

    def keep(self) -> None:
        """Keep what `observe` added for the last batch, because the batch's update was not skipped."""


class RewardStream:
    """The rewards of a reward module, with a running normaliser. All its state is in Params.

    The module is a part `reward` of the algorithm's Params (`modules`), and the algorithm has a critic of the stream.
    """

    def __init__(self, module: Any, context: AlgoContext) -> None:  # Any: a Reward that is a torch module
        self.module, self.context = module, context
        module.register_buffer("moments", torch.zeros(3))  # number of batches, mean and mean square of the bonus
        self.modules: dict[str, nn.Module] = {PART: module}
        self._moments: Tensor = module.moments

    @classmethod
    def build(cls, context: AlgoContext, network: NetworkConfig, spec: EnvSpec, seed: int) -> RewardStream | None:
        """Return the stream of the module that `reward=` names, or None. Raise Refused if it is no reward module."""
        config = context.reward
        if config.name == "none":
            return None
        kind = import_object(BUILT_IN.get(config.name, config.name))
        if not (isinstance(kind, type) and issubclass(kind, Reward) and issubclass(kind, torch.nn.Module)):
            raise Refused(f"reward={config.name}: derive the class from drl.Reward and torch.nn.Module")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = cast(Any, kind)(network, spec, *([config] if config.name in BUILT_IN else []))
        given = {"coef": config.coef, "gamma": config.gamma, "lr": config.lr, "minibatch_size": config.minibatch_size}
        for name, value in given.items():
            if value is not None:
                setattr(module, name, value)
        return cls(module, context)

    def rewards(self, batch: Batch) -> Tensor:
        """Return the rewards `[B]`: the bonus, divided by the standard deviation of all bonuses of the run so far."""
        with torch.no_grad():
            self.module.observe(batch, self.context.group)
            bonus: Tensor = self.module.bonus(batch)
        if bonus.shape != batch["reward"].shape:
            shapes = tuple(bonus.shape), tuple(batch["reward"].shape)
            raise Refused(f"reward={self.context.reward.name}: bonus has shape {shapes[0]}, needed is {shapes[1]}")
        self.context.group.mean_(now := torch.stack([torch.ones_like(bonus[0]), bonus.mean(), bonus.square().mean()]))
        self._moments = self.module.moments + now  # kept by `learn`, because a skipped update has to change nothing
        count, mean, square = self._moments
        deviation = (square / count - (mean / count).square()).clamp_min(0).sqrt()
        rewards: Tensor = bonus / (deviation + 1e-8)
        return rewards

    def batch(self, batch: Batch, rewards: Tensor) -> Batch:
        """Return the batch with the stream's rewards `[B]` and discounts: an episode's end does not end the stream."""
        columns = {"reward": rewards, "discount": torch.full_like(rewards, self.module.gamma)}
        return like(batch, {**unjoined(batch), **columns})

    def advantages(
        self, rewards: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float
    ) -> tuple[Tensor, Tensor]:
        """Return the stream's advantages times `coef`, and the targets of the stream's critic, `[B]` each.

        Add the advantages to those of the environment's rewards. `value` and `next_value` `[B]` are of the stream's
        critic, without a gradient. A piece of the rollout that ends bootstraps from V(next_obs).
        """
        discount = torch.full_like(rewards, self.module.gamma)
        advantage = gae(rewards, discount, value, next_value, cut, lambda_)
        return self.module.coef * advantage, advantage + value

    def keep(self) -> None:
        """Add the bonuses of the last batch to the normaliser."""
        self.module.moments.copy_(self._moments)
        self.module.keep()

    def learn(self, batch: Batch, optimizer: Optimizer) -> Tensor:
        """Train the module with one pass over the batch in minibatches, keep its bonuses, and return the mean loss."""
        self.keep()
        losses = []
        with torch.enable_grad():
            rollouts = Rollouts(batch, self.context.group)
            for rows in rollouts.minibatches(optimizer.params.generators[PART], self.module.minibatch_size):
                loss = (rows["weight"] * self.module.loss(rows)).mean()
                optimizer.minimize(loss, PART)
                losses.append(loss.detach())
        return torch.stack(losses).mean()

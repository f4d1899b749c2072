"""Reward modules: the base class Reward, and RewardStream, the second stream of rewards of an on-policy algorithm."""

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
"""The name of the reward module's part in the algorithm's Params."""
BUILT_IN = {name: f"drl_cli.algos.on_policy.rewards.{name}:Module" for name in ("rnd", "icm")}
"""The import paths of the reward modules of this package, by name."""


class Reward:
    """The base class of a reward module, which also derives from torch.nn.Module: `class RND(drl.Reward, nn.Module)`.

    `__init__(self, network, spec)` makes the networks. `gamma` is the discount of the intrinsic rewards, whose return
    does not end with an episode. `coef` multiplies the advantages of the intrinsic rewards before they are added to the
    advantages of the environment's rewards. `lr` is the learning rate of the module. `minibatch_size` is the number of
    rows, of all trainers together, in one gradient step of the module.
    """

    gamma: float = 0.99
    coef: float = 1.0
    lr: float = 1e-3
    minibatch_size: int = 256

    def bonus(self, batch: Batch) -> Tensor:
        """Return the reward of each row of a batch, `[B]`, before it is divided by its running standard deviation."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Return the module's loss of each row, `[B]`; the default is the bonus."""
        return self.bonus(batch)

    def observe(self, batch: Batch, group: ProcessGroup) -> None:
        """Update the module's statistics with a batch, averaged over the trainers of `group`; the default does nothing.

        It is called before `bonus`. The change lasts only if `keep` is called.
        """

    def keep(self) -> None:
        """Make the change of the last `observe` permanent. Only an update that is not skipped calls it."""


class RewardStream:
    """The intrinsic rewards of a reward module, divided by their running standard deviation.

    The module becomes the part `reward` of the algorithm's Params, which saves all state. The algorithm has a separate
    critic for the intrinsic rewards.
    """

    def __init__(self, module: Any, context: AlgoContext) -> None:  # Any: a Reward that is a torch module
        self.module, self.context = module, context
        module.register_buffer("moments", torch.zeros(3))  # number of batches, mean and mean square of the bonus
        self.modules: dict[str, nn.Module] = {PART: module}
        self._moments: Tensor = module.moments

    @classmethod
    def build(cls, context: AlgoContext, network: NetworkConfig, spec: EnvSpec, seed: int) -> RewardStream | None:
        """Return the stream of the module that `reward=` names, or None for `reward=none`.

        Raise Refused if the class is not derived from Reward and torch.nn.Module.
        """
        config = context.reward
        if config.name == "none":
            return None
        kind = import_object(BUILT_IN.get(config.name, config.name))
        if not (isinstance(kind, type) and issubclass(kind, Reward) and issubclass(kind, torch.nn.Module)):
            raise Refused(f"reward={config.name}: derive the class from drl.Reward and torch.nn.Module")
        make = cast(Any, kind)  # Any: mypy knows no constructor with these arguments
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = make(network, spec, config) if config.name in BUILT_IN else make(network, spec)
        given = {"coef": config.coef, "gamma": config.gamma, "lr": config.lr, "minibatch_size": config.minibatch_size}
        for name, value in given.items():
            if value is not None:
                setattr(module, name, value)
        return cls(module, context)

    def rewards(self, batch: Batch) -> Tensor:
        """Return the rewards `[B]`: the bonus, divided by the standard deviation of all bonuses of the run so far.

        Raise Refused if the bonus has another shape than `batch["reward"]`.
        """
        with torch.no_grad():
            self.module.observe(batch, self.context.group)
            bonus: Tensor = self.module.bonus(batch)
        if bonus.shape != batch["reward"].shape:
            shapes = tuple(bonus.shape), tuple(batch["reward"].shape)
            raise Refused(f"reward={self.context.reward.name}: bonus has shape {shapes[0]}, needed is {shapes[1]}")
        statistics = torch.stack([torch.ones_like(bonus[0]), bonus.mean(), bonus.square().mean()])
        self.context.group.mean_(statistics)
        self._moments = self.module.moments + statistics  # `learn` stores this; a skipped update has to change nothing
        count, mean, square = self._moments
        deviation = (square / count - (mean / count).square()).clamp_min(0).sqrt()
        rewards: Tensor = bonus / (deviation + 1e-8)
        return rewards

    def batch(self, batch: Batch, rewards: Tensor) -> Batch:
        """Return the batch with the intrinsic rewards `[B]`, and the discount `gamma` even at the end of episodes."""
        columns = {"reward": rewards, "discount": torch.full_like(rewards, self.module.gamma)}
        return like(batch, {**unjoined(batch), **columns})

    def advantages(
        self, rewards: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float
    ) -> tuple[Tensor, Tensor]:
        """Return the advantages of the intrinsic rewards times `coef`, and the targets of their critic, `[B]` each.

        Add these advantages to those of the environment's rewards. `value` and `next_value` `[B]` are this critic's
        V(obs) and V(next_obs), without a gradient. Where `cut` `[B]` is True, the return bootstraps from V(next_obs).
        """
        discount = torch.full_like(rewards, self.module.gamma)
        advantage = gae(rewards, discount, value, next_value, cut, lambda_)
        return self.module.coef * advantage, advantage + value

    def keep(self) -> None:
        """Make the statistics of the last batch permanent."""
        self.module.moments.copy_(self._moments)
        self.module.keep()

    def learn(self, batch: Batch, optimizer: Optimizer) -> Tensor:
        """Train the module for one epoch, make the batch's statistics permanent, and return the mean loss."""
        self.keep()
        losses = []
        with torch.enable_grad():
            rollouts = Rollouts(batch, self.context.group)
            for rows in rollouts.minibatches(optimizer.params.generators[PART], self.module.minibatch_size):
                loss = (rows["weight"] * self.module.loss(rows)).mean()
                optimizer.minimize(loss, PART)
                losses.append(loss.detach())
        return torch.stack(losses).mean()

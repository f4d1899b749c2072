"""Intrinsic rewards: Reward, the base class of reward modules, and RewardStream, which applies and trains a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from drl_cli.algos.base import Batch
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.rollout import Rollouts
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.errors import Refused
from drl_cli.losses.returns import gae
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder
from drl_cli.optim.optimizer import Optimizer
from drl_cli.replay.frames import like, unjoined
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.outside import import_object

if TYPE_CHECKING:
    from torch import nn

PART = "reward"
"""The name of the reward module among the networks in the algorithm's Params."""
BUILT_IN = {name: f"drl_cli.algos.rewards:{name.upper()}" for name in ("rnd", "icm")}
"""The import paths of the reward modules of this package, by name."""


class Reward:
    """The base class of a reward module, which computes intrinsic rewards, such as a bonus for new observations.

    A module also derives from torch.nn.Module: `class RND(drl.Reward, nn.Module)`. Its constructor is
    `__init__(self, network, spec)`. A module may replace the default values of these attributes:

    - `gamma`: The discount of the intrinsic rewards. Their return does not end with an episode.
    - `coef`: A factor of the intrinsic advantages, which are then added to the advantages of the environment's rewards.
    - `lr`: The learning rate of the module.
    - `minibatch_size`: The number of transitions, of all trainers together, in one gradient step of the module.
    """

    gamma: float = 0.99
    coef: float = 1.0
    lr: float = 1e-3
    minibatch_size: int = 256

    def bonus(self, batch: Batch) -> Tensor:
        """Return the unscaled intrinsic reward of each transition of a batch, `[B]`.

        RewardStream divides these rewards by their running standard deviation.
        """
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss `[B]` of each transition, which training minimises.

        The default is `bonus`, for modules whose bonus is a prediction error, as in RND.
        """
        return self.bonus(batch)

    def observe(self, batch: Batch, group: ProcessGroup) -> None:
        """Add a batch to the module's statistics, such as the mean observation; the default does nothing.

        `observe` is called before `bonus`. With several trainers, `group.mean_` averages a tensor over the trainers.
        A module that overrides `observe` has to remove this batch from its statistics at the next call of `observe`,
        unless `keep` was called in between.
        """

    def keep(self) -> None:
        """Make the last call of `observe` permanent. A skipped update (a loss is not finite) does not call `keep`."""


class RewardStream:
    """Computes the intrinsic rewards of batches with a reward module, and trains the module.

    The rewards are divided by their running standard deviation. The algorithm adds `modules` to its Params, so that
    checkpoints contain all state. The algorithm also trains a separate critic of the intrinsic rewards.
    """

    def __init__(self, module: Any, context: AlgoContext) -> None:  # Any: a Reward that is a torch module
        self.module, self.context = module, context
        self.lr: float = module.lr
        module.register_buffer("moments", torch.zeros(3))  # number of batches, sums of the bonus's means and squares
        self.modules: dict[str, nn.Module] = {PART: module}
        self._moments: Tensor = module.moments  # with the latest batch; `keep` copies them to the module

    @classmethod
    def build(cls, context: AlgoContext, network: NetworkConfig, spec: EnvSpec, seed: int) -> RewardStream | None:
        """Return a RewardStream with the module that the option `reward=` names, or None for `reward=none`.

        `seed` sets the module's initial weights. Raise Refused if the module's class is not derived from both Reward
        and torch.nn.Module.
        """
        config = context.reward
        if config.name == "none":
            return None
        kind = import_object(BUILT_IN.get(config.name, config.name))
        if not (isinstance(kind, type) and issubclass(kind, Reward) and issubclass(kind, torch.nn.Module)):
            raise Refused(f"reward={config.name}: derive the class from drl.Reward and torch.nn.Module")
        make = cast(Any, kind)  # Any: mypy knows no constructor with these arguments
        with torch.random.fork_rng(devices=[]):  # so that the other networks' weights do not depend on the module
            torch.default_generator.manual_seed(seed)  # not the generators of GPUs, which are not restored
            module = make(network, spec, config) if config.name in BUILT_IN else make(network, spec)
        given = {"coef": config.coef, "gamma": config.gamma, "lr": config.lr, "minibatch_size": config.minibatch_size}
        for name, value in given.items():
            if value is not None:  # None keeps the value of the class
                setattr(module, name, value)
        return cls(module, context)

    def networks(self, encoder: Encoder | None, network: NetworkConfig, spec: EnvSpec) -> dict[str, nn.Module]:
        """Return the critic of these rewards, `reward_critic`, and the module. The critic reads the encoder's features.

        Without an encoder, the critic reads observations.
        """
        from drl_cli.networks.mlp_module import MLP, Network  # imports torch

        critic = Network(network, spec, 1) if encoder is None else MLP(encoder.size, 1, network)
        return {"reward_critic": critic, **self.modules}

    def rewards(self, batch: Batch) -> Tensor:
        """Return the module's rewards `[B]` of a batch, divided by the standard deviation of all rewards so far.

        Also add the batch to the statistics of the rewards and of the module. The next call removes it, unless
        `keep` is called in between. Raise Refused if the module returns another shape than `[B]`.
        """
        with torch.no_grad():
            self.module.observe(batch, self.context.group)
            bonus: Tensor = self.module.bonus(batch)
        shape, needed = tuple(bonus.shape), tuple(batch["reward"].shape)
        if shape != needed:
            raise Refused(f"reward={self.context.reward.name}: bonus has shape {shape}, needed is {needed}")
        one_batch = torch.ones_like(bonus[0])
        statistics = torch.stack([one_batch, bonus.mean(), bonus.square().mean()])
        self.context.group.mean_(statistics)
        self._moments = self.module.moments + statistics  # `keep` stores it, if the update is not skipped
        num_batches, sum_of_means, sum_of_squares = self._moments
        mean, mean_square = sum_of_means / num_batches, sum_of_squares / num_batches
        deviation = (mean_square - mean.square()).clamp_min(0).sqrt()
        rewards: Tensor = bonus / (deviation + 1e-8)
        return rewards

    def batch(self, batch: Batch, rewards: Tensor) -> Batch:
        """Return a copy of the batch for the intrinsic critic.

        `rewards` `[B]` replace the environment's rewards. The module's `gamma` replaces all discounts, even the
        discount 0 at the end of an episode, because intrinsic returns do not end with an episode.
        """
        columns = {"reward": rewards, "discount": torch.full_like(rewards, self.module.gamma)}
        return like(batch, {**unjoined(batch), **columns})

    def advantages(
        self, rewards: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float
    ) -> tuple[Tensor, Tensor]:
        """Return the intrinsic advantages (GAE), times `coef`, and the targets of the intrinsic critic, `[B]` each.

        The algorithm adds these advantages to the advantages of the environment's rewards. `value` `[B]` is the
        intrinsic critic's V(obs), and `next_value` `[B]` is its V(next_obs), both without a gradient. Where `cut` `[B]`
        is True, the return bootstraps from V(next_obs). All discounts are the module's `gamma`, as in `batch`.
        `lambda_` is GAE's lambda.
        """
        discount = torch.full_like(rewards, self.module.gamma)
        advantage = gae(rewards, discount, value, next_value, cut, lambda_)
        return self.module.coef * advantage, advantage + value

    def keep(self) -> None:
        """Make the last batch a permanent part of the statistics of the rewards and of the module."""
        self.module.moments.copy_(self._moments)
        self.module.keep()

    def learn(self, batch: Batch, optimizer: Optimizer) -> Tensor:
        """Call `keep`, and train the module with one pass over the batch; return the mean loss (a scalar)."""
        self.keep()
        losses = []
        with torch.enable_grad():
            rollouts = Rollouts(batch, self.context.group)
            for rows in rollouts.minibatches(optimizer.params.generators[PART], self.module.minibatch_size):
                loss = (rows["weight"] * self.module.loss(rows)).mean()
                optimizer.minimize(loss, PART)
                losses.append(loss.detach())
        return torch.stack(losses).mean()

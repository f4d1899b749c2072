"""FlashSAC (2026, arXiv 2604.04539): SAC that learns fast without a change of its values between environments.

FlashSAC is SAC with batch norm and weights of norm 1 in actor and critics, and with categorical critics. As in CrossQ,
the critics evaluate (s, a) and (s', a') in one joined batch. Rewards are divided by the size of the returns, and the
noise of an action is repeated for several steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.off_policy._actors import check_one_trainer, check_support, squashed
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.errors import Refused
from drl_cli.losses.critics import categorical_critic
from drl_cli.losses.distributional import cross_entropy, project
from drl_cli.losses.distributions import TanhGaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import Array, Column, EnvSpec, PreviousStep, Schema, State
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Positive

if TYPE_CHECKING:
    from torch import nn

ACTIONS = ("box",)
LONGEST = 16
"""The largest number of steps with the same noise."""
LENGTHS = np.arange(1, LONGEST + 1) ** -2.0
LENGTHS /= LENGTHS.sum()
"""Probabilities of 1, 2, ... steps with the same noise: zeta(2), cut off."""


@dataclass(frozen=True, kw_only=True)
class Config(AlgoConfig):
    """The options of FlashSAC.

    The target entropy is that of a Gaussian with the standard deviation `target_std` in each dimension of the action.
    The critics' support consists of `atoms` equally spaced returns from -`v_max` to `v_max`, in units of the divisor of
    rewards. `momentum` is the share of a batch in each update of batch norm's running statistics.
    """

    lr: Positive
    tau: Fraction
    initial_alpha: Positive
    target_std: Positive
    actor_period: Count
    momentum: Fraction
    atoms: Count
    v_max: Positive

    def __post_init__(self) -> None:
        check_support(self.atoms, -self.v_max, self.v_max)


class Policy(TorchPolicy):
    """A tanh-Gaussian actor. The noise of an action is repeated for n steps, where n has the distribution `LENGTHS`.

    The extra column `past_return` is the discounted sum of the rewards since the episode began, seen from the present.
    """

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.noise: Array = np.zeros((0, spec.action.size), np.float32)
        self.left: Array = np.zeros(0, np.int64)  # steps that still have this noise
        self.past_return: Array = np.zeros(0, np.float32)

    @classmethod
    def check(cls, config: Config, network: NetworkConfig, spec: EnvSpec) -> None:
        name = config.name
        if network.layer_norm or network.dropout:
            raise Refused(f"{name} has batch norm: say network.layer_norm=false network.dropout=0")
        if network.memory != "none":
            raise Refused(f"network.memory={network.memory}: {name} has no memory; say network.memory=none")
        if len(set(network.hidden)) != 1:
            raise Refused(f"network.hidden={list(network.hidden)}: the blocks of {name} are equally wide; say [64,64]")

    @staticmethod
    def build(config: Config, network: NetworkConfig, spec: EnvSpec) -> "Mapping[str, nn.Module]":
        from drl_cli.networks.unit_norm import UnitActor  # imports torch

        return {"actor": UnitActor(network, spec, 2 * spec.action.size, config.momentum)}

    @staticmethod
    def extra_columns(config: Config, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {"past_return": Column((), "float32")}

    def distribution(self, obs: Any, last: PreviousStep | None) -> tuple[TanhGaussian, dict[str, Tensor]]:
        return squashed(self.modules["actor"](obs)), {}

    def sample(self, obs: Any, last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        distribution, _ = self.distribution(obs, last)
        rows = len(distribution.inner.mean)
        begins = np.ones(rows, np.bool_) if last is None else np.asarray(last.begins)
        if len(self.left) != rows:  # the first call, or another number of environments than before
            self.noise = np.zeros((rows, self.action.size), np.float32)
            self.left, self.past_return = np.zeros(rows, np.int64), np.zeros(rows, np.float32)
        reward = np.zeros(rows, np.float32) if last is None else np.asarray(last.reward, np.float32)
        past = np.float32(self.config.gamma) * self.past_return + reward
        self.past_return = np.where(begins, np.float32(0.0), past)
        ended = np.flatnonzero(begins | (self.left == 0))
        self.noise, self.left = self.noise.copy(), self.left.copy()
        self.noise[ended] = self.rng.standard_normal((len(ended), self.action.size), np.float32)
        self.left[ended] = 1 + self.rng.choice(LONGEST, len(ended), p=LENGTHS)
        self.left -= 1
        action: Tensor = distribution.sample(torch.from_numpy(self.noise))
        return action, {"past_return": torch.from_numpy(self.past_return)}

    def state(self) -> State:
        return super().state() | {"noise": self.noise, "left": self.left, "past_return": self.past_return}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.noise, self.left, self.past_return = (state[name].copy() for name in ("noise", "left", "past_return"))


class UnitOptimizer(Optimizer):
    """An optimizer that scales weights to norm 1 after each step of a module with a method `scale_to_unit_norm`."""

    def step(self, *losses: Tensor, parts: Sequence[str] = ()) -> None:
        super().step(*losses, parts=parts)
        for name, module in self.params.modules.items():
            scale = getattr(module, "scale_to_unit_norm", None)
            if scale is not None and (name in parts or not parts):  # no parts: the step changes all parts
                scale()
                self.params.changed((name,))  # autograd has to know that the weights have changed


class Algorithm(BaseAlgorithm):
    """Learns critics, actor and temperature."""

    policy_parts = ("actor",)

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        from drl_cli.networks.unit_norm import ReturnScale, UnitActor, UnitCritics  # imports torch

        check_one_trainer(config.name, context)
        self.config, self.context, self.size = config, context, spec.action.size
        self.support = torch.linspace(-config.v_max, config.v_max, config.atoms, device=context.device)
        self.target_entropy = 0.5 * self.size * math.log(2 * math.pi * math.e * config.target_std**2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            actor = UnitActor(network, spec, 2 * self.size, config.momentum)
            critic = UnitCritics(network, spec, config.atoms, config.momentum)
        self.params = Params(context, actor=actor, critic=critic, log_alpha=1, returns=ReturnScale(config.v_max))
        self.params["log_alpha"].flat.fill_(math.log(config.initial_alpha))
        self.params.target("critic")
        self.noise = self.params.generator("noise", seed + 1)
        self.optimizer = UnitOptimizer(self.params, dict.fromkeys(self.params.slices, config.lr), context)
        self.critic_gradients = Gradients(self.params, self.critic_loss, context, "critic")
        self.actor_gradients = Gradients(self.params, self.actor_loss, context, "actor", "log_alpha")

    def critic_loss(self, nets: Nets, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy with the target, summed over both critics, and metrics and the TD error `[B]`.

        The target comes from the target critic whose mean return is smaller. All critics normalise with the statistics
        of the joined batch of (s, a) and (s', a').
        """
        num, support, discount = len(batch["reward"]), self.support, batch["discount"]
        with torch.no_grad():
            scale = nets.returns(batch["past_return"])
            next_action, log_prob = squashed(nets.actor(batch["next_obs"])).sample_log_prob(noise)
            cost = nets.log_alpha.detach().exp() * log_prob
            obs, action = joined(batch["obs"], batch["next_obs"]), torch.cat([batch["action"], next_action])
            next_probs = nets.target.critic(obs, action, batch_statistics=True)[:, num:].softmax(-1)  # [2, B, K]
            smaller = (next_probs @ support).argmin(0)  # [B]
            next_probs = next_probs[smaller, torch.arange(num, device=smaller.device)]  # [B, K]
            target = project(next_probs, batch["reward"] / scale - discount * cost, discount, support)
        logits = nets.critic(obs, action, batch_statistics=True)[:, :num]  # [2, B, K]
        loss = torch.stack([categorical_critic(own, target, batch.get("weight")) for own in logits]).sum()
        _loss, _gradient, divergence = cross_entropy(logits, target)
        q_mean = (logits.softmax(-1) @ support).mean() * scale
        metrics = {"critic_loss": loss, "q_mean": q_mean, "reward_scale": scale}
        return loss, metrics | {"td_error": divergence.clamp(min=0.0).mean(0)}

    def actor_loss(self, nets: Nets, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of actor and temperature, as in SAC, and metrics."""
        action, log_prob = squashed(nets.actor(batch["obs"], batch_statistics=True)).sample_log_prob(noise)
        alpha = nets.log_alpha.detach().exp()
        value = (nets.frozen.critic(batch["obs"], action).softmax(-1) @ self.support).amin(0)
        actor_loss = (alpha * log_prob - value).mean()
        alpha_loss = -(nets.log_alpha * (log_prob.detach().mean() + self.target_entropy)).sum()
        metrics = {"actor_loss": actor_loss, "alpha": alpha.squeeze(), "entropy": -log_prob.mean()}
        return actor_loss + alpha_loss, metrics

    def update(self, batch: Batch, counts: Counts) -> Update:
        shape = (len(batch["reward"]), self.size)
        critic_noise, actor_noise = (self.context.randn(*shape, self.noise) for _ in range(2))
        loss, found = self.critic_gradients(batch, critic_noise)
        self.optimizer.step(loss, parts=("critic",))
        self.params.follow(self.config.tau)
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        if counts.opt_steps % self.config.actor_period == 0:
            loss, more = self.actor_gradients(batch, actor_noise)
            self.optimizer.step(loss, parts=("actor", "log_alpha"))
            metrics |= more
        return Update(metrics, priorities=td_error)


def joined(obs: Any, next_obs: Any) -> Any:  # Any: a tensor, or a dict of tensors
    """Return the observations `[B, ...]` and the next observations as one batch `[2 B, ...]`."""
    if isinstance(obs, torch.Tensor):
        return torch.cat([obs, next_obs])
    return {name: torch.cat([part, next_obs[name]]) for name, part in obs.items()}

"""FlashSAC (2026, arXiv 2604.04539): SAC that learns fast without a change of its values between environments.

FlashSAC is SAC with batch norm and weights of norm 1 in actor and critics, and with categorical critics. As in CrossQ,
the critics evaluate (s, a) and (s', a') in one joined batch. Rewards are divided by the size of the returns, and the
noise of an action is repeated for several steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import drl_cli.api as drl
from drl_cli.algos.off_policy._shared import check_batch_norm, check_one_trainer, check_support
from drl_cli.algos.off_policy.xqc import FOREVER, smaller
from drl_cli.api import nn, torch
from drl_cli.networks.batch_renorm import BatchRenorm, linear
from drl_cli.optim.products import Products

ACTIONS = ("box",)
LONGEST = 16
"""The largest number of steps with the same noise."""
LENGTHS = np.arange(1, LONGEST + 1) ** -2.0
LENGTHS /= LENGTHS.sum()
"""Probabilities of 1, 2, ... steps with the same noise: zeta(2), cut off."""


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of FlashSAC.

    The target entropy is that of a Gaussian with the standard deviation `target_std` in each dimension of the action.
    The critics' support consists of `atoms` equally spaced returns from -`v_max` to `v_max`, in units of the divisor of
    rewards. `momentum` is the share of a batch in each update of batch norm's running statistics.
    """

    lr: drl.Positive
    tau: drl.Fraction
    initial_alpha: drl.Positive
    target_std: drl.Positive
    actor_period: drl.Count
    momentum: drl.Fraction
    atoms: drl.Count
    v_max: drl.Positive

    def __post_init__(self) -> None:
        check_support(self.atoms, -self.v_max, self.v_max)


EXPANSION = 4
"""A block has so many times more units inside than at its ends."""


class UnitNetworks(nn.Module):
    """N networks, which map inputs `[B, inputs]` to outputs `[N, B, outputs]`.

    Batch norm of the inputs, a linear layer, `blocks` residual blocks, RMS norm, and a linear layer. Each block is
    linear (to 4 times `width`), batch norm, ReLU, linear (back to `width`), batch norm. Layers have no bias. After
    `scale_to_unit_norm`, the incoming weights of each unit have norm 1, and gain and bias of a batch norm with d units
    together have norm sqrt(d). BatchRenorm describes `momentum` and `batch_statistics`.
    """

    products = Products()  # Params replaces this object, see `drl.MLP`

    def __init__(self, inputs: int, outputs: int, width: int, blocks: int, *, ensemble: int, momentum: float) -> None:
        super().__init__()
        inside = EXPANSION * width
        shapes = [(inputs, width), *(shape for _ in range(blocks) for shape in ((width, inside), (inside, width)))]
        widths = [inputs, *(out for _, out in shapes[1:])]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(ensemble, *s)) for s in (*shapes, (width, outputs)))
        self.norms = nn.ModuleList(BatchRenorm(ensemble, w, momentum=momentum, warm_up=FOREVER) for w in widths)
        self.scale_to_unit_norm()

    def scale_to_unit_norm(self) -> None:
        """Scale the incoming weights of every unit, and gain and bias of every batch norm."""
        with torch.no_grad():
            for weight in self.weights:
                weight.copy_(nn.functional.normalize(weight, dim=1))  # [N, in, out]
            for norm in self.norms:
                assert isinstance(norm, BatchRenorm)
                both = torch.cat([norm.gain, norm.bias], -1)  # [N, 1, 2 d]
                factor = norm.gain.shape[-1] ** 0.5 / both.norm(dim=-1, keepdim=True)
                norm.gain.mul_(factor)
                norm.bias.mul_(factor)

    def forward(self, x: torch.Tensor, *, batch_statistics: bool = False) -> torch.Tensor:
        first, *blocks, last = self.weights
        norm_of_inputs, *norms = self.norms
        h = self.layer(norm_of_inputs(x.expand(len(first), *x.shape), batch_statistics=batch_statistics), first)
        for i in range(0, len(blocks), 2):
            inner = norms[i](self.layer(h, blocks[i]), batch_statistics=batch_statistics).relu()
            h = h + norms[i + 1](self.layer(inner, blocks[i + 1]), batch_statistics=batch_statistics)
        rms = (h.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return self.layer(h / rms, last)

    def layer(self, h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return h weight `[N, B, out]`; h is `[N, B, in]`, and weight is `[N, in, out]`."""
        if not self.training:  # a policy, whose exported graph may not depend on the number of rows
            return torch.bmm(h, weight)
        zeros = torch.zeros_like(weight[:, 0])  # [N, out]
        return linear(self.products, h, weight, zeros)


class UnitActor(nn.Module):
    """A torso and one network, which maps observations to outputs `[B, outputs]`."""

    def __init__(self, network: drl.NetworkConfig, spec: drl.EnvSpec, outputs: int, momentum: float) -> None:
        super().__init__()
        self.torso = drl.torso(network, spec)
        size: Any = self.torso.size
        width, blocks = max(1, network.hidden[0] // 2), len(network.hidden)
        self.net = UnitNetworks(size, outputs, width, blocks, ensemble=1, momentum=momentum)

    def scale_to_unit_norm(self) -> None:
        """Scale the weights of the network as `UnitNetworks` does."""
        self.net.scale_to_unit_norm()

    def forward(self, obs: torch.Tensor | dict[str, torch.Tensor], *, batch_statistics: bool = False) -> torch.Tensor:
        out: torch.Tensor = self.net(self.torso(obs), batch_statistics=batch_statistics).squeeze(0)
        return out


class UnitCritics(nn.Module):
    """A torso and two networks, which map observations and actions `[B, A]` to outputs `[2, B, outputs]`."""

    def __init__(self, network: drl.NetworkConfig, spec: drl.EnvSpec, outputs: int, momentum: float) -> None:
        super().__init__()
        self.torso = drl.torso(network, spec)
        size: Any = self.torso.size
        inputs, width, blocks = size + spec.action.size, network.hidden[0], len(network.hidden)
        self.net = UnitNetworks(inputs, outputs, width, blocks, ensemble=2, momentum=momentum)

    def scale_to_unit_norm(self) -> None:
        """Scale the weights of the network as `UnitNetworks` does."""
        self.net.scale_to_unit_norm()

    def forward(self, obs: Any, action: torch.Tensor, *, batch_statistics: bool = False) -> torch.Tensor:
        out: torch.Tensor = self.net(torch.cat([self.torso(obs), action], -1), batch_statistics=batch_statistics)
        return out


class ReturnScale(nn.Module):
    """The divisor of rewards: max(standard deviation of discounted returns, largest discounted return / `largest`).

    A call with discounted returns `[B]` updates the statistics, as an average over about 100 calls, and returns the
    divisor `[]`. It is 1 as long as all returns are 0.
    """

    moments: torch.Tensor

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.largest = largest
        self.register_buffer("moments", torch.zeros(4))  # number of calls, mean, mean square, largest size

    def forward(self, returns: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            calls, mean, square, most = self.moments.unbind()
            share = (1.0 / (calls + 1.0)).clamp(min=0.01)
            new = torch.stack([
                calls + 1.0,
                mean.lerp(returns.mean(), share),
                square.lerp(returns.square().mean(), share),
                torch.maximum(most, returns.abs().amax()),
            ])  # fmt: skip
            self.moments.copy_(new)
            std = (new[2] - new[1].square()).clamp(min=0.0).sqrt()
            scale = torch.maximum(std, new[3] / self.largest)
            return torch.where(scale > 0.0, scale, 1.0)


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. `returns` has no parameters: it computes the divisor of rewards."""
    return {
        "actor": UnitActor(network, spec, 2 * spec.action.size, config.momentum),
        "critic": UnitCritics(network, spec, config.atoms, config.momentum),
        "log_alpha": drl.Scalar(math.log(config.initial_alpha)),
        "returns": ReturnScale(config.v_max),
    }


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.TanhGaussian:
    """Return pi(a|s). Batch norm uses its running statistics."""
    return drl.TanhGaussian.of(nets.actor(obs))


class Policy(drl.TorchPolicy):
    """Repeats the noise of an action for n steps, where n has the distribution `LENGTHS`.

    The extra column `past_return` is the discounted sum of the rewards since the episode began, seen from the present.
    """

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.noise: drl.Array = np.zeros((0, spec.action.size), np.float32)
        self.left: drl.Array = np.zeros(0, np.int64)  # steps that still have this noise
        self.past_return: drl.Array = np.zeros(0, np.float32)

    @classmethod
    def check(cls, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
        check_batch_norm(config, network, spec)
        if len(set(network.hidden)) != 1:
            widths = list(network.hidden)
            raise drl.Refused(f"network.hidden={widths}: the blocks of {config.name} are equally wide; say [64,64]")

    @staticmethod
    def build(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> Mapping[str, Any]:
        return {"actor": UnitActor(network, spec, 2 * spec.action.size, config.momentum)}

    @staticmethod
    def extra_columns(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> drl.Schema:
        return {"past_return": drl.Column((), "float32")}

    def distribution(self, obs: Any, last: drl.PreviousStep | None) -> tuple[drl.TanhGaussian, dict[str, torch.Tensor]]:
        return policy(drl.Nets(self.modules), obs, {}), {}

    def sample(self, obs: Any, last: drl.PreviousStep | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
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
        action: torch.Tensor = distribution.sample(torch.from_numpy(self.noise))
        return action, {"past_return": torch.from_numpy(self.past_return)}

    def state(self) -> drl.Columns:
        return super().state() | {"noise": self.noise, "left": self.left, "past_return": self.past_return}

    def load_state(self, state: drl.Columns) -> None:
        super().load_state(state)
        self.noise, self.left, self.past_return = (state[name].copy() for name in ("noise", "left", "past_return"))


class Algorithm(drl.Algorithm):
    """Learns the critics and, after their step, the actor and the temperature. Weights keep norm 1."""

    policy_parts, targets = ("actor",), ("critic",)
    has_own_weights = False

    def __init__(self, config: Any, network: Any, spec: drl.EnvSpec, seed: int, context: drl.Context) -> None:
        check_one_trainer(config.name, context)
        super().__init__(config, network, spec, seed, context)
        self.support = torch.linspace(-config.v_max, config.v_max, config.atoms, device=context.device)
        self.target_entropy = 0.5 * spec.action.size * math.log(2 * math.pi * math.e * config.target_std**2)

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, support, num, discount = self.nets, self.support, len(batch["reward"]), batch["discount"]
        next_noise, noise = (self.randn(num, self.spec.action.size)[0] for _ in range(2))

        # As in XQC, the critics evaluate (s, a) and (s', a') in one forward pass. Rewards have the unit `scale`.
        with torch.no_grad():
            scale = nets.returns(batch["past_return"])
            next_action, log_prob = policy(nets, batch["next_obs"], {}).sample_log_prob(next_noise)
            cost = nets.log_alpha().exp() * log_prob
            obs, actions = joined(batch["obs"], batch["next_obs"]), torch.cat([batch["action"], next_action])
            next_logits = nets.target.critic(obs, actions, batch_statistics=True)[:, num:]  # [2, B, K]
            next_probs = smaller(next_logits.softmax(-1), support)
            target = drl.losses.project(next_probs, batch["reward"] / scale - discount * cost, discount, support)
        logits = nets.critic(obs, actions, batch_statistics=True)[:, :num]
        losses = [drl.losses.categorical_critic(own, target, batch.get("weight")) for own in logits]
        critic_loss = torch.stack(losses).sum()
        self.optimizer.minimize(critic_loss, "critic")
        nets.critic.scale_to_unit_norm()
        self.params.follow(self.config.tau)
        q_mean = (logits.detach().softmax(-1) @ support).mean() * scale
        metrics = {"critic_loss": critic_loss, "q_mean": q_mean, "reward_scale": scale}

        # Actor and temperature, as in SAC
        if counts.opt_steps % self.config.actor_period == 0:
            pi = drl.TanhGaussian.of(nets.actor(batch["obs"], batch_statistics=True))
            action, log_prob = pi.sample_log_prob(noise)
            alpha, entropy = nets.log_alpha().detach().exp(), -log_prob.detach().mean()
            value = (nets.frozen.critic(batch["obs"], action).softmax(-1) @ support).amin(0)
            actor_loss = (alpha * log_prob - value).mean()
            alpha_loss = nets.log_alpha() * (entropy - self.target_entropy)
            self.optimizer.minimize(actor_loss + alpha_loss, "actor", "log_alpha")
            nets.actor.scale_to_unit_norm()
            metrics |= {"actor_loss": actor_loss, "alpha": alpha, "entropy": entropy}
        return drl.Update(metrics, drl.losses.divergence(logits.detach(), target).mean(0))


def joined(obs: Any, next_obs: Any) -> Any:  # Any: a tensor, or a dict of tensors
    if isinstance(obs, torch.Tensor):
        return torch.cat([obs, next_obs])
    return {name: torch.cat([part, next_obs[name]]) for name, part in obs.items()}

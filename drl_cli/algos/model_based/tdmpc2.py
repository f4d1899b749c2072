"""TD-MPC2 (Hansen et al. 2024, "TD-MPC2: Scalable, Robust World Models for Continuous Control", arXiv 2310.16828).

A world model predicts latent states z, rewards, values and ends of episodes, but no observations. In each step, MPPI
plans with the model. The prior, a policy network, proposes some of the plans, and acts in the critics' targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

import drl_cli.api as drl
from drl_cli.api import nn, torch
from drl_cli.networks.world_models import ReturnRange
from drl_cli.search.mppi import first_action, mppi
from drl_cli.types import map_parts
from drl_cli.utils.lazy import Tensor

ACTIONS, TABLES = ("box",), ("windows",)
ENCODER, LATENT, UNITS, END_UNITS = 256, 128, 384, 64  # widths: the encoder, z, other networks, the termination head
GROUP, BINS, MOST, DROPOUT = 8, 101, 10.0, 0.01  # of SimNorm; of values in symlog space, -MOST to MOST; of critics
SCALES = {"consistency": 20.0, "reward": 0.1, "value": 0.1, "termination": 1.0, "actor": 1.0}  # of the losses
RHO, ENCODER_RATE, MAX_NORM = 0.5, 0.3, 20.0  # RHO: each step of a window has half the weight of the step before
LOG_STD, STD, TEMPERATURE, MANY_ACTIONS = (-10.0, 2.0), (0.05, 2.0), 0.5, 20  # of the prior, and of the planner


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of TD-MPC2, which conf/algo/tdmpc2.yaml explains."""

    n_step: Literal[1]
    lr: drl.Positive
    tau: drl.Fraction
    entropy: drl.NonNegative
    critics: drl.Count
    plan: bool
    horizon: drl.Count
    iterations: drl.Count
    samples: drl.Count
    policy_samples: drl.Natural
    elites: drl.Count


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int, std: float = 0.02) -> nn.Sequential:
    """Return hidden layers with layer norm and Mish, and a linear layer whose weights have the size `std`."""
    layers: list[nn.Module] = []
    for width, size in (*((width, 0.02) for width in hidden), (outputs, std)):
        linear = nn.Linear(inputs, width)
        nn.init.trunc_normal_(linear.weight, std=size) if size else nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.LayerNorm(width), nn.Mish()]
        inputs = width
    return nn.Sequential(*layers[:-2])


class SimNorm(nn.Module):
    """A softmax in each group of GROUP numbers (section 3.1)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, GROUP).softmax(-1).flatten(-2)


class Critics(nn.Module):
    """Map latent states and actions `[..., Z + A]` to logits of the value, `[critics, ..., BINS]`."""

    def __init__(self, inputs: int, num: int) -> None:
        super().__init__()
        self.heads: Any = nn.ModuleList([mlp(inputs, (UNITS, UNITS), BINS, std=0.0) for _ in range(num)])

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return the logits. `kept` `[critics, ..., UNITS]` multiplies the first layers' outputs: dropout."""
        if kept is None:
            return torch.stack([head(x) for head in self.heads])
        return torch.stack([head[1:](head[0](x) * mask) for head, mask in zip(self.heads, kept, strict=True)])


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, nn.Module]:
    """Return the networks by name."""
    torso, pair = cast(Any, drl.torso(network, spec)), LATENT + spec.action.size
    return {
        "encoder": nn.Sequential(torso, *mlp(torso.size, (ENCODER,), LATENT), nn.LayerNorm(LATENT), SimNorm()),
        "dynamics": nn.Sequential(*mlp(pair, (UNITS, UNITS), LATENT), nn.LayerNorm(LATENT), SimNorm()),
        "reward": mlp(pair, (UNITS, UNITS), BINS, std=0.0),
        "termination": mlp(LATENT, (END_UNITS,), 1),
        "actor": mlp(LATENT, (UNITS, UNITS), 2 * spec.action.size),
        "critic": Critics(pair, config.critics),
        "range": ReturnRange(),
    }


def number(logits: Tensor) -> Tensor:
    """Return the numbers `[...]` that logits `[..., BINS]` stand for: symexp of the mean of the bins."""
    return drl.losses.symexp(logits.softmax(-1) @ torch.linspace(-MOST, MOST, BINS).to(logits))


def number_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy with the two-hot vectors of symlog(target); NaN for a target that is not finite."""
    bins = torch.linspace(-MOST, MOST, BINS).to(logits)
    return drl.losses.two_hot_loss(logits, drl.losses.symlog(target), bins) + 0.0 * target


def prior(nets: Any, z: Tensor) -> drl.TanhGaussian:
    """Return the policy network's distribution p(a|z)."""
    (mean, log_std), (low, high) = nets.actor(z).chunk(2, -1), LOG_STD
    return drl.TanhGaussian(mean, low + 0.5 * (high - low) * (log_std.tanh() + 1.0))


def returns(nets: Any, gamma: float, z: Tensor, action: Tensor) -> Tensor:
    """Return the returns `[E, N]` of N sequences of actions `[E, N, H, A]` from z `[E, Z]`, with values at the end."""
    z = z.unsqueeze(1).expand(-1, action.shape[1], -1)
    total, discount = torch.zeros_like(action[..., 0, 0]), torch.ones_like(action[..., 0, 0])
    for each in action.unbind(2):
        x = torch.cat([z, each], -1)
        total, z = total + discount * number(nets.reward(x)), nets.dynamics(x)
        discount = discount * gamma * (nets.termination(z).squeeze(-1) <= 0.0)  # an end is less likely than not
    return total + discount * number(nets.critic(torch.cat([z, prior(nets, z).mode], -1))).mean(0)


def plan(nets: Any, config: Any, z: Tensor, mean: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """Return what `mppi` returns for states z `[E, Z]`, starting at `mean` `[E, H, A]`. `noise` is that of a policy."""
    proposed, num = list[Tensor](), config.policy_samples
    state = z.unsqueeze(1).expand(-1, num, -1)
    for normal in noise[:, :num].unbind(2):
        proposed.append(prior(nets, state).sample(normal))
        state = nets.dynamics(torch.cat([state, proposed[-1]], -1))
    own, sampled = torch.stack(proposed, 2), noise[:, num:].view(len(z), -1, config.samples - num, *mean.shape[1:])
    return mppi(lambda a: returns(nets, config.gamma, z, a), own, mean, sampled, config.elites, TEMPERATURE, STD)


class Policy(drl.TorchPolicy):
    """Plans, or samples from the prior if algo.plan=false. Evaluations take a plan's mean, and their noise is constant.

    The memory of an environment is the mean of its last plan, without the first step. The next plan starts there.
    """

    build = staticmethod(networks)

    @classmethod
    def check(cls, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
        if network.memory != "none":
            raise drl.Refused(f"network.memory={network.memory}: tdmpc2 has no memory; say network.memory=none")
        if config.samples <= max(config.policy_samples, config.elites - 1):
            raise drl.Refused(f"algo.samples={config.samples} must exceed algo.policy_samples, and reach algo.elites")

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int) -> None:
        from drl_cli.chains.replays import Replays  # imports torch

        super().__init__(config, network, spec, seed)
        self.nets = drl.Nets(self.modules)
        self.memory_size = config.horizon * spec.action.size if config.plan else 0
        self.fixed_noise = self.noise(np.random.default_rng(0), 1)
        self.replays = Replays(lambda columns, _: plan(self.nets, config, **columns), self.nets)

    def noise(self, rng: np.random.Generator, rows: int) -> Tensor:
        """Draw the noise of plans, for the prior's sequences and for those of all iterations."""
        config, size = self.config, self.action.size
        iterations = config.iterations + 2 * (size >= MANY_ACTIONS)
        num = config.policy_samples + iterations * (config.samples - config.policy_samples)
        return torch.from_numpy(rng.standard_normal((rows, num, config.horizon, size), np.float32))

    def planned(self, obs: Any, rng: np.random.Generator | None = None) -> tuple[Tensor, ...]:
        """Return what `plan` returns, and remember the mean. Without `rng`, the noise is constant."""
        mean = cast(Tensor, self.memory).view(-1, self.config.horizon, self.action.size)
        noise = self.fixed_noise.expand(len(mean), -1, -1, -1) if rng is None else self.noise(rng, len(mean))
        found = cast(tuple[Tensor, ...], self.replays({"z": self.nets.encoder(obs), "mean": mean, "noise": noise}))
        self.memory = nn.functional.pad(found[0][:, 1:], (0, 0, 0, 1)).flatten(1)
        return found

    def sample(self, obs: Any, last: drl.PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        if self.config.plan:
            return first_action(self.rng, *self.planned(obs, self.rng)[1:]), {}
        return prior(self.nets, self.nets.encoder(obs)).sample(self.rng), {}

    def warm_up(self, obs: Any, last: drl.PreviousStep | None) -> dict[str, Tensor]:
        return {}

    def choose(self, obs: Any) -> Tensor:
        return self.planned(obs)[0][:, 0] if self.config.plan else self.prior(obs)

    def prior(self, obs: Any) -> Tensor:
        return cast(Tensor, prior(self.nets, self.nets.encoder(obs)).mode)


class Algorithm(drl.Algorithm):
    """Learns from B windows of T steps, which have T + 1 latent states. One step changes all networks."""

    policy_parts = ("encoder", "dynamics", "reward", "termination", "actor", "critic", "range")
    targets, file = ("critic",), {"networks": networks}

    def part(self, name: str) -> drl.Part:
        rate = self.config.lr * (ENCODER_RATE if name == "encoder" else 1.0)
        return drl.Part(rate, max_norm=MAX_NORM if name == "actor" else None)  # the prior's gradient is clipped alone

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        loss, metrics = self.loss(self.nets, batch, self.noise(*batch["reward"].shape))
        self.optimizer.minimize(loss)
        self.params.follow(self.config.tau)
        return drl.Update(metrics)

    def noise(self, rows: int, steps: int) -> dict[str, Tensor]:
        """Draw the noise of actions, the masks of dropout, and the two critics of the targets."""
        size, num, random = self.spec.action.size, self.config.critics, self.generator
        normal = self.context.randn(rows, (2 * steps + 1) * size, random).view(rows, -1, size)
        uniform = self.context.rand(rows, num * steps * UNITS, random).view(rows, num, steps, UNITS).transpose(0, 1)
        two = torch.rand(num, generator=random, device=self.context.device).argsort()[:2]  # the same in all trainers
        kept = (uniform >= DROPOUT).float() / (1.0 - DROPOUT)
        return {"next_action": normal[:, :steps], "action": normal[:, steps:], "kept": kept, "two": two}

    def loss(self, nets: Any, batch: drl.Batch, noise: drl.Batch) -> tuple[Tensor, drl.Metrics]:
        """Return the loss, a sum of means over B and T (section 3.1), and metrics. Padding counts as 0."""
        losses, z = self.model_losses(nets, batch, noise)
        losses["actor"], metrics = self.actor_loss(nets, z.detach(), noise["action"])
        is_state = nn.functional.pad(batch["valid"], (1, 0), value=True)  # [B, T + 1]
        rho, total = RHO ** torch.arange(z.shape[1], device=z.device), torch.zeros((), device=z.device)
        for name, loss in losses.items():
            weight = 1.0 if name == "termination" else rho[: loss.shape[1]]  # T steps, or T + 1 for the actor
            mean = (weight * loss).where(is_state[:, -loss.shape[1] :], 0.0).mean()
            total, metrics[f"{name}_loss"] = total + SCALES[name] * mean, mean.detach()
        return total, metrics

    def model_losses(self, nets: Any, batch: drl.Batch, noise: drl.Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return the losses of model and critics `[B, T]`, and the latent states `[B, T + 1, Z]`."""
        with torch.no_grad():
            next_z = nets.encoder(batch["next_obs"])
            next_x = torch.cat([next_z, prior(nets, next_z).sample(noise["next_action"])], -1)
            next_q = number(nets.target.critic(next_x))[noise["two"]].amin(0)
            target = batch["reward"] + batch["discount"] * next_q  # the discount is 0 where the episode terminated
        zs, xs = [nets.encoder(map_parts(lambda column: column[:, 0], batch["obs"]))], list[Tensor]()
        for action in batch["action"].clamp(-1.0, 1.0).unbind(1):
            xs.append(torch.cat([zs[-1], action], -1))
            zs.append(nets.dynamics(xs[-1]))
        z, x = torch.stack(zs, 1), torch.stack(xs, 1)
        q, end, is_end = nets.critic(x, noise["kept"]), nets.termination(z[:, 1:]).squeeze(-1), batch["terminated"]
        return {
            "consistency": (z[:, 1:] - next_z).square().mean(-1),
            "reward": number_loss(nets.reward(x), batch["reward"]),
            "value": number_loss(q, target.expand(q.shape[:-1])).mean(0),
            "termination": nn.functional.softplus(torch.where(is_end, -end, end)),  # binary cross-entropy
        }, z

    def actor_loss(self, nets: Any, z: Tensor, noise: Tensor) -> tuple[Tensor, drl.Metrics]:
        """Return the loss of the prior `[B, T + 1]` in the states z `[B, T + 1, Z]`, and metrics."""
        action, log_prob = prior(nets, z).sample_log_prob(noise)
        q = number(nets.frozen.critic(torch.cat([z, action], -1))).mean(0)
        first = q[:, 0].detach()  # the first state of a window is never padding
        scale = nets.range.scale(self.context.group.gather(first))
        metrics = {"value_range": scale, "q_mean": first.mean(), "entropy": -log_prob.detach().mean()}
        return self.config.entropy * log_prob - q / scale, metrics

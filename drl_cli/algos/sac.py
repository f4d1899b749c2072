"""Soft Actor-Critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905).

Twin critics, a tanh-Gaussian actor, a learned temperature with target entropy -dim(A). The twin critics are one
batched network with one optimizer; the n-step return and the discount come with the batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drl_cli.algos.base import AlgoConfig, Batch, Update
from drl_cli.losses.policy import LOG_STD_MAX, LOG_STD_MIN, soft_policy_loss, tanh_gaussian, temperature_loss
from drl_cli.losses.value import ensemble_mse, soft_target
from drl_cli.networks.mlp import MLP, NetworkConfig, Shapes, mlp_numpy, mlp_shapes, split
from drl_cli.types import Array, Columns, EnvSpec, Schema
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Fraction, Positive

ACTIONS = ("box",)
MODES = ("single", "sync", "async")


@dataclass(frozen=True)
class Config(AlgoConfig):
    """Options of SAC."""

    lr: Positive
    alpha_lr: Positive
    tau: Fraction
    initial_alpha: Positive
    target_entropy: float | None


def actor_shapes(network: NetworkConfig, spec: EnvSpec) -> Shapes:
    """Observation -> mean and log standard deviation of each action dimension."""
    return mlp_shapes(spec.obs_size, network.hidden, 2 * spec.action.size)


class Policy:
    """The tanh-Gaussian actor in numpy."""

    extra_columns: ClassVar[Schema] = {}

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        self.shapes = actor_shapes(network, spec)
        self.activation = network.activation
        self.size = spec.action.size
        self.rng = np.random.default_rng(seed)
        self.params: list[Array] = []

    def load(self, params: Array) -> None:
        self.params = split(params, self.shapes)

    def act(self, obs: Array) -> Columns:
        out = self._forward(obs)
        mean, log_std = out[:, : self.size], out[:, self.size :]
        noise = self.rng.standard_normal(mean.shape, dtype=np.float32)
        return {"action": np.tanh(mean + np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)) * noise)}

    def random(self, rows: int) -> Columns:
        return {"action": self.rng.uniform(-1.0, 1.0, (rows, self.size)).astype(np.float32)}

    def greedy(self, obs: Array) -> Array:
        action: Array = np.tanh(self._forward(obs)[:, : self.size])
        return action

    def _forward(self, obs: Array) -> Array:
        return mlp_numpy(self.params, obs.reshape(len(obs), -1).astype(np.float32, copy=False), self.activation)


class Algorithm:
    """The learner."""

    def __init__(
        self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, device: "torch.device"
    ) -> None:
        self.config, self.obs_size = config, spec.obs_size
        self.target_entropy = -float(spec.action.size) if config.target_entropy is None else config.target_entropy
        init = torch.Generator().manual_seed(seed)
        self.noise = torch.Generator(device).manual_seed(seed + 1)
        critic_shapes = mlp_shapes(spec.obs_size + spec.action.size, network.hidden, 1)
        self.actor = MLP(actor_shapes(network, spec), network.activation, device)
        self.critic = MLP(critic_shapes, network.activation, device, ensemble=2)
        self.target = MLP(critic_shapes, network.activation, device, ensemble=2)
        self.actor.init(network.init, init)
        self.critic.init(network.init, init)
        self.target.flat.copy_(self.critic.flat)
        self.log_alpha = torch.full((1,), float(np.log(config.initial_alpha)), device=device)
        self.optimizers = {
            "actor": torch.optim.Adam([self.actor.flat], lr=config.lr, fused=True),
            "critic": torch.optim.Adam([self.critic.flat], lr=config.lr, fused=True),
            "alpha": torch.optim.Adam([self.log_alpha], lr=config.alpha_lr, fused=True),
        }

    def update(self, batch: Batch) -> Update:
        obs, next_obs = batch["obs"].flatten(1).float(), batch["next_obs"].flatten(1).float()
        alpha = self.log_alpha.exp()

        # Critic: one step on the soft Bellman error of both networks.
        with torch.no_grad():
            next_action, next_log_prob = self._sample(self.actor.forward(next_obs)[0])
            next_q, _ = self.target.forward(torch.cat([next_obs, next_action], -1))
            target = soft_target(batch["reward"], batch["discount"], next_q.squeeze(-1), next_log_prob, alpha)
        q, q_trace = self.critic.forward(torch.cat([obs, batch["action"]], -1))
        critic_loss = ensemble_mse(q.requires_grad_().squeeze(-1), target)
        (d_q,) = torch.autograd.grad(critic_loss, q)
        self.critic.backward(q_trace, d_q)
        self.optimizers["critic"].step()

        # Actor: reparametrised; the gradient of min Q comes back through the action, the entropy's directly.
        out, trace = self.actor.forward(obs)
        action, log_prob = self._sample(out.requires_grad_())
        q_pi, q_pi_trace = self.critic.forward(torch.cat([obs, action.detach()], -1))
        actor_loss = soft_policy_loss(q_pi.requires_grad_().squeeze(-1), log_prob, alpha)
        (d_q_pi,) = torch.autograd.grad(actor_loss, q_pi, retain_graph=True)
        d_action = self.critic.backward(q_pi_trace, d_q_pi, to_input=True)[:, self.obs_size :]
        (d_out,) = torch.autograd.grad((actor_loss, action), out, (None, d_action))
        self.actor.backward(trace, d_out)
        self.optimizers["actor"].step()

        # Temperature: its loss is linear in log alpha, so the derivative is the loss at log alpha = 1.
        log_prob = log_prob.detach()
        self.log_alpha.grad = temperature_loss(torch.ones_like(self.log_alpha), log_prob, self.target_entropy).view(1)
        self.optimizers["alpha"].step()

        self.target.flat.lerp_(self.critic.flat, self.config.tau)
        q = q.detach().squeeze(-1)
        metrics = {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "alpha": alpha.squeeze(),
            "entropy": -log_prob.mean(),
            "q_mean": q.mean(),
        }
        return Update(metrics, (q - target).abs().mean(0))

    def policy_params(self) -> Array:
        return self.actor.params()

    def state(self) -> "dict[str, torch.Tensor]":
        state = {
            "actor": self.actor.flat,
            "critic": self.critic.flat,
            "target": self.target.flat,
            "log_alpha": self.log_alpha,
            "noise": self.noise.get_state(),
        }
        for name, optimizer in self.optimizers.items():
            moments = optimizer.state_dict()["state"].get(0, {})
            state |= {f"{name}.{key}": value for key, value in moments.items()}
        return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        with torch.no_grad():
            for name, own in (
                ("actor", self.actor.flat),
                ("critic", self.critic.flat),
                ("target", self.target.flat),
                ("log_alpha", self.log_alpha),
            ):
                if name not in state or state[name].shape != own.shape:
                    raise ValueError(f"saved SAC state does not fit: '{name}' should have shape {tuple(own.shape)}")
                own.copy_(state[name])
        self.noise.set_state(state["noise"])
        for name, optimizer in self.optimizers.items():
            prefix = f"{name}."
            moments = {key.removeprefix(prefix): t.clone() for key, t in state.items() if key.startswith(prefix)}
            optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: moments} if moments else {}})

    def _sample(self, out: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        """Action `[B, A]` and log-probability `[B]` from the actor's output `[1, B, 2A]`."""
        mean, log_std = out.squeeze(0).chunk(2, -1)
        noise = torch.randn(mean.shape, generator=self.noise, device=mean.device)
        return tanh_gaussian(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX), noise)

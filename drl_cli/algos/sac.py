"""Soft Actor-Critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905).

Twin critics, a tanh-Gaussian actor, a learned temperature with target entropy -dim(A). The twin critics are one
batched network with one optimizer; the n-step return and the discount come with the batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from drl_cli.algos import base
from drl_cli.algos.base import AlgoConfig, Batch, Update
from drl_cli.losses.policy import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    soft_policy_loss,
    tanh_gaussian,
    tanh_gaussian_backward,
    temperature_gradient,
)
from drl_cli.losses.value import ensemble_mse, soft_target
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.inputs import flatten, flatten_numpy
from drl_cli.networks.mlp import (
    MLP,
    Shapes,
    mlp_numpy,
    mlp_shapes,
    num_params,
    split,
)
from drl_cli.types import Array, Columns, EnvSpec, Last, Obs
from drl_cli.utils.group import Context
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Fraction, Positive
from drl_cli.utils.torch_ops import Adam, FlatParams, load_tensors, load_vector, save_tensors

ACTIONS = ("box",)
MODES = ("single", "sync", "async")
TABLES = ("uniform", "prioritized")
EXPLORATION = ()


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


class Policy(base.Policy):
    """The tanh-Gaussian actor in numpy."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        self.shapes = actor_shapes(network, spec)
        self.activation = network.activation
        self.size = spec.action.size
        self.rng = np.random.default_rng(seed)
        self.params: list[Array] = []

    def load(self, params: Array) -> None:
        self.params = split(params, self.shapes)

    def act(self, obs: Obs, last: Last | None = None) -> Columns:
        out = self._forward(obs)
        mean, log_std = out[:, : self.size], out[:, self.size :]
        noise = self.rng.standard_normal(mean.shape, dtype=np.float32)
        std = np.exp(np.minimum(np.maximum(log_std, LOG_STD_MIN), LOG_STD_MAX))
        return {"action": np.tanh(mean + std * noise)}

    def random(self, obs: Obs, last: Last | None = None) -> Columns:
        rows = len(obs)
        return {"action": self.rng.uniform(-1.0, 1.0, (rows, self.size)).astype(np.float32)}

    def greedy(self, obs: Obs, last: Last | None = None) -> Array:
        action: Array = np.tanh(self._forward(obs)[:, : self.size])
        return action

    def _forward(self, obs: Obs) -> Array:
        return mlp_numpy(self.params, flatten_numpy(obs), self.activation)


class Algorithm:
    """The learner."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        self.config, self.obs_size, self.context = config, spec.obs_size, context
        self.target_entropy = -float(spec.action.size) if config.target_entropy is None else config.target_entropy
        init = torch.Generator().manual_seed(seed)
        self.noise = torch.Generator(context.device).manual_seed(seed + 1)
        actor = actor_shapes(network, spec)
        critic = mlp_shapes(spec.obs_size + spec.action.size, network.hidden, 1)
        params = FlatParams(context.device, actor=num_params(actor), critic=num_params(critic, 2), log_alpha=1)
        self.actor = MLP(actor, network.activation, params["actor"], products=context.products)
        self.critic = MLP(critic, network.activation, params["critic"], ensemble=2, products=context.products)
        self.actor.init(network.init, init)
        self.critic.init(network.init, init)
        self.target = self.critic.copy()
        self.log_alpha, self.d_log_alpha = params["log_alpha"].flat, params["log_alpha"].grad
        self.log_alpha.fill_(float(np.log(config.initial_alpha)))
        lrs = {"actor": config.lr, "critic": config.lr, "log_alpha": config.alpha_lr}
        self.optimizer = Adam(params, lrs, context)
        self.gradients = context.compiled(self._gradients)

    def update(self, batch: Batch) -> Update:
        with torch.no_grad():
            rows, size = batch["action"].shape
            noise = self.context.randn(rows, 2 * size, self.noise)
            metrics, error_size = self.gradients(batch, noise)
            if not self.optimizer.step(metrics["critic_loss"], metrics["actor_loss"]):
                return Update({}, error_size, steps=0, skipped=1)
            self.target.flat.lerp_(self.critic.flat, self.config.tau)
        return Update(metrics, error_size)

    def _gradients(self, batch: Batch, noise: "torch.Tensor") -> "tuple[dict[str, torch.Tensor], torch.Tensor]":
        """Write all gradients, given noise `[B, 2 A]` at obs and next_obs; returns metrics and |TD error| `[B]`."""
        obs, next_obs = flatten(batch["obs"]), flatten(batch["next_obs"])
        alpha, rows = self.log_alpha.exp(), obs.shape[0]

        # What the actor does, and what the critics say of it, is computed for two batches at once: obs and next_obs,
        # the actions taken and those it would take now.
        out, actor_trace = self.actor.forward(torch.cat([obs, next_obs]))
        mean, log_std = out[0].chunk(2, -1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        noise = torch.cat(noise.chunk(2, -1))
        (action, next_action), (log_prob, next_log_prob) = (x.chunk(2) for x in tanh_gaussian(mean, log_std, noise))
        inputs = torch.cat([torch.cat([obs, obs]), torch.cat([batch["action"], action])], -1)
        values, critic_trace = self.critic.forward(inputs)
        q, q_pi = values.squeeze(-1).chunk(2, -1)

        # Critics: the squared soft Bellman error, weighted where replay is prioritized.
        next_q, _ = self.target.forward(torch.cat([next_obs, next_action], -1))
        target = soft_target(batch["reward"], batch["discount"], next_q.squeeze(-1), next_log_prob, alpha)
        critic_loss, d_q = ensemble_mse(q, target, batch.get("weight"))

        # Actor, reparametrised: the gradient of min Q comes back through the action, the entropy's directly.
        actor_loss, d_q_pi, d_log_prob = soft_policy_loss(q_pi, log_prob, alpha)
        d_values = torch.cat([d_q, d_q_pi], -1).unsqueeze(-1)
        d_action = self.critic.backward(critic_trace, d_values, to_weights=rows, first=self.obs_size)
        log_std, noise = log_std[:rows], noise[:rows]
        d_mean, d_log_std = tanh_gaussian_backward(action, log_std, noise, d_action, d_log_prob)
        d_log_std *= (log_std > LOG_STD_MIN) & (log_std < LOG_STD_MAX)
        self.actor.backward(actor_trace, torch.cat([d_mean, d_log_std], -1).unsqueeze(0))

        self.d_log_alpha.fill_(temperature_gradient(log_prob, self.target_entropy))
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "alpha": alpha.squeeze(),
            "entropy": -log_prob.mean(),
            "q_mean": q.mean(),
        }
        return metrics, (q - target).abs().mean(0)

    def policy_params(self) -> Array:
        return self.actor.params()

    def load_policy(self, params: Array) -> None:
        load_vector([self.actor.flat], params)

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        return {}

    def state(self) -> "dict[str, torch.Tensor]":
        return save_tensors(self._tensors() | {"noise": self.noise.get_state()})

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        noise = self.noise.get_state()
        load_tensors(self._tensors() | {"noise": noise}, state)
        self.noise.set_state(noise)

    def _tensors(self) -> "dict[str, torch.Tensor]":
        tensors = {"actor": self.actor.flat, "critic": self.critic.flat, "log_alpha": self.log_alpha}
        optimizer = {f"optimizer.{key}": tensor for key, tensor in self.optimizer.state().items()}
        return tensors | {"target": self.target.flat} | optimizer

"""MR.Q (Fujimoto et al. 2025, "Towards General-Purpose Model-Free Reinforcement Learning", arXiv 2501.16142).

One set of options learns discrete and continuous actions, from vectors and images. Encoders of states and of
state-action pairs learn to predict rewards, terminations and next embeddings with a linear model. Twin critics and an
actor learn from the embeddings as in TD3, with multi-step targets, reward scaling and priorities without importance
weights (LAP, Fujimoto et al. 2020, arXiv 2007.06049).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.base import Algorithm as BaseAlgorithm
from drl_cli.algos.policy import TorchPolicy
from drl_cli.errors import Refused
from drl_cli.losses.policy import FORBIDDEN, permitted
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.networks.head import Head
from drl_cli.networks.mlp import split
from drl_cli.optim.context import Context
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec, PreviousStep, map_parts
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, NonNegative, Positive

if TYPE_CHECKING:
    from torch import nn

ACTIONS = ("box", "discrete")
TABLES = ("prioritized", "sequences")
WEIGHTS = False  # the Huber loss with LAP's priorities is a loss with uniform sampling

LOWEST = 1.0
"""The smallest priority: the Huber loss is quadratic below this error (LAP, eq. 7)."""


@dataclass(frozen=True)
class Config(AlgoConfig):
    """Options of MR.Q. All noise is in units of half the action range; for discrete actions, half of it is used."""

    encoder_lr: Positive = 1e-4
    lr: Positive = 3e-4
    value_horizon: Count = 3
    target_period: Count = 100
    noise: NonNegative = 0.2
    target_noise: NonNegative = 0.2
    noise_clip: NonNegative = 0.3
    gumbel_temperature: Positive = 10.0
    dynamics_weight: NonNegative = 1.0
    reward_weight: NonNegative = 0.1
    termination_weight: NonNegative = 0.1
    contrast_weight: NonNegative = 0.0
    contrast_temperature: Positive = 0.1
    pre_activation_weight: NonNegative = 1e-5
    bins: Count = 65
    value_max_norm: Positive = 20.0


class Policy(TorchPolicy):
    """The state encoder and the actor, with Gaussian noise on actions or on the relaxed one-hot vector."""

    @classmethod
    def check(cls, config: Config, network: NetworkConfig, spec: EnvSpec) -> None:
        check_network(config, network)

    @staticmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> "Mapping[str, nn.Module]":
        from drl_cli.networks.latent import StateEncoder, make_actor  # imports torch

        return {"state": StateEncoder(network, spec), "actor": make_actor(network, spec)}

    def choose(self, obs: Any) -> Tensor:
        out = self.modules["actor"](self.modules["state"](obs))
        action: Tensor = out.tanh() if self.action.kind == "box" else permitted(out, action_mask(obs)).argmax(-1)
        return action

    def sample(self, obs: Any, last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        out = self.modules["actor"](self.modules["state"](obs))
        noise = self.config.noise * torch.from_numpy(self.rng.standard_normal(out.shape, "float32"))
        if self.action.kind == "box":
            return (out.tanh() + noise).clamp(-1.0, 1.0), {}
        uniform = torch.from_numpy(self.rng.random(out.shape, "float32"))
        relaxed = gumbel_softmax(permitted(out, action_mask(obs)), uniform, self.config.gumbel_temperature)
        return permitted(relaxed + 0.5 * noise, action_mask(obs)).argmax(-1), {}

    def exported_head(self) -> Head:
        state: Any = self.modules["state"]  # Any: a StateEncoder, whose module imports torch
        actor: Any = self.modules["actor"]  # Any: an MLP
        return Head(
            torso=state.torso,
            memory=None,
            layers=split(actor.flat.detach().numpy(), actor.shapes),
            activation=actor.activation,
            layer_norm=len(actor.shapes[2]) == 1,  # the vectors of layer norm follow the first layer
            is_squashed=self.action.kind == "box",
            trunk=split(state.mlp.flat.detach().numpy(), state.mlp.shapes),
            trunk_activation=state.mlp.activation,
            norms_trunk=True,
        )


class Algorithm(BaseAlgorithm):
    """Learns encoders, model, critics and actor in a trainer."""

    policy_parts = ("state", "actor")

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        from drl_cli.networks.latent import Critics, PairEncoder, StateEncoder, linear_model, make_actor

        check_network(config, network)
        self.config, self.context, self.size = config, context, spec.action.size
        self.is_box, self.width = spec.action.kind == "box", network.hidden[-1]
        self.critics = Critics(network)
        self.params = Params(
            context,
            state=StateEncoder(network, spec),
            pair=PairEncoder(network, spec),
            model=linear_model(network, config.bins),
            value=self.critics,
            actor=make_actor(network, spec),
        )
        for name in ("state", "pair", "value", "actor"):
            self.params.target(name)
        symlog = torch.linspace(-10.0, 10.0, config.bins, device=context.device)
        self.bins = symlog.sign() * symlog.abs().expm1()
        self.noise = self.params.generator("noise", seed + 1)
        lrs: dict[str, float | Part] = dict.fromkeys(("state", "pair", "model"), config.encoder_lr)
        lrs |= {"value": Part(config.lr, max_norm=config.value_max_norm), "actor": config.lr}
        self.optimizer = Optimizer(self.params, lrs, context)
        self.gradients = Gradients(self.params, self.loss, context)

    def loss(self, nets: Nets, batch: Batch, noise: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of the encoders, the critics and the actor.

        Columns are windows `[B, L, ...]`. Critics and actor see the embeddings without a gradient to the encoders.
        """
        action = batch["action"]
        if not self.is_box:
            action = torch.nn.functional.one_hot(action, self.size).float()
        zs = nets.state(map_parts(lambda column: column[:, 0], batch["obs"]))
        with torch.no_grad():
            flat = nets.target.state(map_parts(lambda column: column.flatten(0, 1), batch["next_obs"]))
            next_zs = flat.view(*batch["valid"].shape, -1)  # [B, L, Z]
        encoder_loss, zsa = self.encoder_loss(nets, batch, action, zs, next_zs)
        (q, scale), zs = nets.value(zsa.detach()), zs.detach()
        with torch.no_grad():
            target = self.target(nets, batch, next_zs, noise) / scale
        critic_loss = torch.nn.functional.smooth_l1_loss(q, target.expand_as(q))
        out = nets.actor(zs)
        obs = map_parts(lambda column: column[:, 0], batch["obs"])
        actor_q, _ = nets.frozen.value(nets.frozen.pair(zs, self.relaxed(out, obs, noise, 0)))
        actor_loss = self.config.pre_activation_weight * out.square().mean() - actor_q.mean()
        metrics = {"encoder_loss": encoder_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": q.mean(), "td_error": (q - target).abs().amax(0)}
        return encoder_loss + critic_loss + actor_loss, metrics

    def encoder_loss(
        self, nets: Nets, batch: Batch, action: Tensor, zs: Tensor, next_zs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of predicted embeddings, rewards and terminations (eq. 14 to 18), and the first zsa `[B, Z]`.

        The model predicts each step's embedding from the predicted embedding of the step before.
        """
        config, pairs, outs = self.config, [], []
        for step in range(action.shape[1]):
            pairs.append(nets.pair(zs, action[:, step]))
            outs.append(nets.model(pairs[-1]))
            zs = outs[-1][:, 1 : 1 + self.width]
        stacked = torch.stack(outs, 1)
        end, predicted, logits = stacked[..., 0], stacked[..., 1 : 1 + self.width], stacked[..., 1 + self.width :]
        dynamics = (predicted - next_zs).square().mean(-1)
        reward = two_hot_loss(logits, batch["reward"], self.bins)
        termination = (end - batch["terminated"].float()).square()
        loss = config.dynamics_weight * dynamics + config.reward_weight * reward
        loss = loss + config.termination_weight * termination
        if config.contrast_weight:
            contrast = info_nce(predicted, next_zs, batch["valid"], config.contrast_temperature)
            loss = loss + config.contrast_weight * contrast
        return torch.where(batch["valid"], loss, 0.0).sum(1).mean(), pairs[0]

    def target(self, nets: Nets, batch: Batch, next_zs: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Return the critics' targets `[B]` before the division by the reward scale (eq. 20)."""
        config, valid, rows = self.config, batch["valid"], torch.arange(len(next_zs), device=next_zs.device)
        reward = torch.where(valid, batch["reward"], 0.0)
        total, discount, last = (
            column[:, 0] for column in n_step_windows(reward, batch["discount"], valid, config.value_horizon)
        )
        zs, obs = next_zs[rows, last], map_parts(lambda column: column[rows, last], batch["next_obs"])
        clip, factor = (config.noise_clip, 1.0) if self.is_box else (0.5 * config.noise_clip, 0.5)
        smoothing = (factor * config.target_noise * noise["normal"]).clamp(-clip, clip)
        action = self.relaxed(nets.target.actor(zs), obs, noise, 1) + smoothing
        if self.is_box:
            action = action.clamp(-1.0, 1.0)
        else:
            action = torch.nn.functional.one_hot(permitted(action, action_mask(obs)).argmax(-1), self.size).float()
        next_q, next_scale = nets.target.value(nets.target.pair(zs, action))
        target: Tensor = total + discount * next_q.amin(0) * next_scale
        return target

    def relaxed(self, out: Tensor, obs: Any, noise: Mapping[str, Tensor], half: int) -> Tensor:
        """Return the actor's actions `[B, A]`: tanh, or a Gumbel-softmax sample for discrete actions."""
        if self.is_box:
            return out.tanh()
        uniform = noise["uniform"][:, half * self.size : (half + 1) * self.size]
        return gumbel_softmax(permitted(out, action_mask(obs)), uniform, self.config.gumbel_temperature)

    def update(self, batch: Batch, counts: Counts) -> Update:
        is_window = "valid" in batch
        if not is_window:  # a transition is a window of one step
            names = ("obs", "action", "reward", "next_obs", "discount", "terminated")
            batch = map_parts(lambda column: column.unsqueeze(1), {name: batch[name] for name in names})
            batch = {**batch, "valid": torch.ones_like(batch["terminated"])}
        rows = len(batch["reward"])
        mean_reward = batch["reward"][:, 0].abs().mean()
        self.context.group.mean_(mean_reward)
        self.critics.observe(mean_reward)
        if counts.opt_steps % self.config.target_period == 0:
            self.params.follow(1.0)  # the target critics keep the scale of their values
            self.critics.rescale()
        noise = {"normal": self.context.randn(rows, self.size, self.noise)}
        if not self.is_box:
            noise["uniform"] = self.context.rand(rows, 2 * self.size, self.noise)
        loss, found = self.gradients(batch, noise)
        self.optimizer.step(loss)
        metrics = {**found, "reward_scale": self.critics.scale[0].clone()}
        priority = metrics.pop("td_error").clamp(min=LOWEST)
        return Update(metrics, priority.unsqueeze(1).expand(batch["valid"].shape) if is_window else priority)


def gumbel_softmax(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Return a relaxed one-hot sample `[B, A]` from uniform numbers `[B, A]` (Jang et al. 2017, arXiv 1611.01144)."""
    gumbel = -(-uniform.clamp(min=1e-10).log()).clamp(min=1e-10).log()
    return ((logits + gumbel) / temperature).softmax(-1)


def two_hot_loss(logits: Tensor, value: Tensor, bins: Tensor) -> Tensor:
    """Return the cross-entropy `[...]` of logits `[..., K]` with the two bins `[K]` that enclose a value `[...]`."""
    lower = (torch.bucketize(value.contiguous(), bins, right=True) - 1).clamp(0, len(bins) - 2)
    share = ((value - bins[lower]) / (bins[lower + 1] - bins[lower])).clamp(0.0, 1.0)
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, torch.stack([lower, lower + 1], -1))
    return -((1.0 - share) * chosen[..., 0] + share * chosen[..., 1])


def info_nce(predicted: Tensor, goals: Tensor, valid: Tensor, temperature: float) -> Tensor:
    """Return the InfoNCE loss `[B, L]` of predicted embeddings `[B, L, Z]` (DR.Q, Lyu et al. 2026, arXiv 2605.11711).

    The loss is the cross-entropy of choosing a row's own goal among the goals `[B, L, Z]` of all rows at the same step.
    The logits are the cosine similarities divided by the temperature. Goals that are not `valid` `[B, L]` are left out.
    """
    left, right = (torch.nn.functional.normalize(x.transpose(0, 1), dim=-1) for x in (predicted, goals))  # [L, B, Z]
    logits = (left @ right.mT / temperature).masked_fill(~valid.T.unsqueeze(1), FORBIDDEN)
    return -logits.log_softmax(-1).diagonal(dim1=1, dim2=2).T


def check_network(config: Any, network: NetworkConfig) -> None:
    """Raise Refused for options that MR.Q does not have."""
    if not network.hidden:
        raise Refused("network.hidden=[]: mrq needs a hidden layer; say network.hidden=[128,128]")
    if network.memory != "none":
        raise Refused(f"network.memory={network.memory}: mrq has no memory; say network.memory=none")
    if network.dropout:
        raise Refused(f"network.dropout={network.dropout:g}: mrq has no dropout; say network.dropout=0")
    if config.n_step > 1:
        raise Refused(f"algo.n_step={config.n_step}: mrq makes its own returns; say algo.value_horizon={config.n_step}")

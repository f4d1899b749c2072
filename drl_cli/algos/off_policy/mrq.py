"""MR.Q (Fujimoto et al. 2025, "Towards General-Purpose Model-Free Reinforcement Learning", arXiv 2501.16142).

MR.Q works with the same options for discrete and continuous actions, and for vectors and images. A state encoder
computes an embedding zs of the state. A pair encoder computes an embedding zsa of zs and the action. A linear model of
zsa predicts the reward, the termination and the next zs, and the encoders learn from the errors of these predictions.

Twin critics (of zsa) and an actor (of zs) learn as in TD3, with multi-step targets and scaled rewards. Replay
priorities have no importance weights (LAP, Fujimoto et al. 2020, arXiv 2007.06049).

`algo=dr_q` is DR.Q (Lyu et al. 2026, "Debiased Model-based Representations for Sample-efficient Continuous Control",
arXiv 2605.11711): the options `infonce_weight` and `replay.age_factor` add an InfoNCE loss of the predicted embeddings,
and priorities that fall with age.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

import drl_cli.api as drl
from drl_cli.api import nn, torch
from drl_cli.losses.policy import one_hot
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.torsos import torso_name
from drl_cli.types import map_parts

ACTIONS = ("box", "discrete")
TABLES = ("prioritized", "sequences")
WEIGHTS = False  # with LAP's priorities, the Huber loss needs no importance weights

MIN_PRIORITY = 1.0
"""The smallest priority. It is the error below which the Huber loss is quadratic (LAP, eq. 7)."""
ACTOR_ACTIVATION: Literal["relu"] = "relu"
"""The activation of the actor. The other networks have `network.activation`."""
DISCRETE_NOISE = 0.5
"""A factor of the noise on discrete actions: one-hot vectors are in [0, 1], and box actions in [-1, 1]."""


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of MR.Q, which conf/algo/mrq.yaml explains.

    Box actions are in [-1, 1], so a noise of 1 is half of the action range. Discrete actions are one-hot vectors, whose
    noise is multiplied by DISCRETE_NOISE.
    """

    lr: drl.Positive
    encoder_lr: drl.Positive
    value_horizon: drl.Count
    target_period: drl.Count
    noise: drl.NonNegative
    target_noise: drl.NonNegative
    noise_clip: drl.NonNegative
    gumbel_temperature: drl.Positive
    dynamics_weight: drl.NonNegative
    infonce_weight: drl.NonNegative
    infonce_temperature: drl.Positive
    reward_weight: drl.NonNegative
    termination_weight: drl.NonNegative
    pre_activation_weight: drl.NonNegative
    bins: drl.Count
    value_max_norm: drl.Positive


class PairEncoder(nn.Module):
    """MR.Q's network g, which maps state embeddings zs `[B, Z]` and actions `[B, A]` to embeddings zsa `[B, Z]`.

    Discrete actions are one-hot vectors. Z is the width of the last hidden layer. One layer first embeds the action in
    half of this width.
    """

    def __init__(self, network: drl.NetworkConfig, actions: int) -> None:
        super().__init__()
        width = network.hidden[-1]
        action_width = (width + 1) // 2
        self.action = drl.MLP(actions, action_width, replace(network, hidden=()))
        self.activation = getattr(nn.functional, network.activation)
        self.mlp = drl.MLP(width + action_width, width, network)

    def forward(self, zs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        action_embedding = self.activation(self.action(action))
        embedding: torch.Tensor = self.mlp(torch.cat([zs, action_embedding], -1))
        return embedding


class ScaledCritics(nn.Module):
    """MR.Q's two critics, which map embeddings zsa `[B, Z]` to action values `[2, B]`.

    They have one more hidden layer than `network`. They also return the reward scale `[1]`, a mean absolute reward,
    which is the unit of the action values. `seen` `[2]` has the sum of the mean absolute rewards of the batches since
    the last call of `rescale`, and the number of these batches.
    """

    scale: torch.Tensor
    seen: torch.Tensor

    def __init__(self, network: drl.NetworkConfig) -> None:
        super().__init__()
        width = network.hidden[-1]
        self.mlp = drl.MLP(width, 1, replace(network, hidden=(*network.hidden, width)), ensemble=2)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("seen", torch.zeros(2))

    @property
    def dropout_size(self) -> int:
        return self.mlp.dropout_size

    def masks(self, uniform: torch.Tensor, rate: float) -> Sequence[torch.Tensor]:
        return self.mlp.masks(uniform, rate)

    def forward(self, zsa: torch.Tensor, masks: Sequence[torch.Tensor] = ()) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mlp(zsa, masks).squeeze(-1), self.scale

    def observe(self, mean_reward: torch.Tensor) -> None:
        """Count the mean absolute reward of a batch, `[]`, for the next call of `rescale`."""
        self.seen[0] += mean_reward
        self.seen[1] += 1.0

    def rescale(self) -> None:
        """Set the reward scale to the mean absolute reward since the last call.

        The scale does not change if there was no batch or if all rewards were 0.
        """
        total, count = self.seen.unbind()
        self.scale.copy_(torch.where(total == 0, self.scale, total / count))  # 0 / 0 only if total is 0
        self.seen.zero_()


def check(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
    """Raise Refused if MR.Q does not work with these options."""
    if not network.hidden:
        raise drl.Refused("network.hidden=[]: mrq needs a hidden layer; say network.hidden=[128,128]")
    if network.memory != "none":
        raise drl.Refused(
            f"network.memory={network.memory}: mrq embeds only the first observation of a window, so that a memory "
            "would learn from single steps; say network.memory=none"
        )
    if config.n_step > 1:
        raise drl.Refused(
            f"algo.n_step={config.n_step}: mrq makes its own returns; say algo.value_horizon={config.n_step}"
        )


def info_nce(predicted: torch.Tensor, target: torch.Tensor, valid: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return InfoNCE losses of predicted embeddings, `[B, L]` (van den Oord et al. 2018, arXiv 1807.03748, eq. 4).

    `predicted` and `target` `[B, L, Z]` have the embeddings of L steps. At each step, the loss of row i is

        -log(exp(s_ii) / sum_k exp(s_ik)), with s_ik = cos(predicted_i, target_k) / temperature

    The sum contains row i itself and all rows k that have this step, whose `valid` `[B, L]` is True.
    """
    normalize = torch.nn.functional.normalize
    predicted, target = (normalize(each, dim=-1).transpose(0, 1) for each in (predicted, target))  # [L, B, Z]
    similarity = predicted @ target.transpose(1, 2) / temperature  # [L, B, B]
    own = torch.eye(len(valid), dtype=torch.bool, device=valid.device)
    is_in_sum = valid.t().unsqueeze(1) | own  # [L, B, B]
    log_probs = similarity.masked_fill(~is_in_sum, -torch.inf).log_softmax(-1)
    return -log_probs.diagonal(dim1=1, dim2=2).t()


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. All but the encoder get embeddings with the width of the last hidden layer."""
    encoder, size, width = drl.encoder(network, spec), spec.action.size, network.hidden[-1]
    value = ScaledCritics(network)  # draws its weights first
    hidden = network.hidden if torso_name(network, spec) is None else ()  # no more layers after a torso such as a CNN
    return {
        "encoder": encoder,
        "state": drl.Embedding(encoder.size, width, replace(network, hidden=hidden)),
        "pair": PairEncoder(network, size),
        "model": drl.MLP(width, 1 + width + config.bins, replace(network, hidden=())),
        "value": value,
        "actor": drl.MLP(width, size, replace(network, activation=ACTOR_ACTIVATION)),
    }


class Noisy(drl.Distribution):
    """The actions for an actor's outputs `out` `[B, A]`, with Gaussian noise for exploration.

    A box action is the tanh of the outputs. A discrete action is the argmax of a Gumbel-softmax sample plus noise.
    """

    def __init__(self, out: Any, mask: Any, is_box: bool, config: Any) -> None:
        self.out, self.mask, self.is_box, self.config = drl.permitted(out, mask), mask, is_box, config

    @property
    def scores(self) -> Any:
        return None if self.is_box else self.out

    def sample(self, random: Any) -> Any:
        noise = self.config.noise * random.standard_normal(self.out.shape, np.float32)
        if self.is_box:
            return (np.tanh(self.out) + noise).clip(-1.0, 1.0)
        uniform = random.random(self.out.shape, np.float32)
        relaxed = gumbel_softmax(self.out, uniform, self.config.gumbel_temperature)
        return drl.permitted(relaxed + DISCRETE_NOISE * noise, self.mask).argmax(-1)

    @property
    def mode(self) -> Any:
        if not self.is_box:
            return self.out.argmax(-1)
        return np.tanh(self.out) if isinstance(self.out, np.ndarray) else self.out.tanh()


def policy(nets: Any, obs: Any, explore: Mapping[str, Any], config: Any, spec: drl.EnvSpec) -> Noisy:
    return Noisy(nets.actor(nets.state(nets.encoder(obs))), drl.action_mask(obs), spec.action.kind == "box", config)


def gumbel_softmax(logits: Any, uniform: Any, temperature: float) -> Any:  # Any: numpy or torch
    """Return a Gumbel-softmax sample `[B, A]`, a relaxed one-hot vector (Jang et al. 2017, arXiv 1611.01144).

    `logits` are `[B, A]`, and `uniform` `[B, A]` has random numbers in [0, 1), from which the Gumbel noise is computed.
    """
    log = np.log if isinstance(logits, np.ndarray) else torch.log
    exponential = -log(uniform.clip(min=1e-10))
    perturbed = (logits - log(exponential.clip(min=1e-10))) / temperature
    if isinstance(logits, np.ndarray):
        odds = np.exp(perturbed - perturbed.max(-1, keepdims=True))
        return odds / odds.sum(-1, keepdims=True)
    return perturbed.softmax(-1)


class Algorithm(drl.Algorithm):
    """Learns all networks. One step changes them all, with the gradients before the step."""

    policy_parts, targets = ("encoder", "state", "actor"), ("encoder", "state", "pair", "value", "actor")
    rates = {"encoder": "encoder_lr", "state": "encoder_lr", "pair": "encoder_lr", "model": "encoder_lr"}
    has_own_weights = False

    def __init__(self, config: Any, network: Any, spec: drl.EnvSpec, seed: int, context: drl.Context) -> None:
        super().__init__(config, network, spec, seed, context)
        self.is_box = spec.action.kind == "box"
        symlog = torch.linspace(-10.0, 10.0, config.bins, device=context.device)  # sign(r) log(1 + |r|)
        self.bins = symlog.sign() * symlog.abs().expm1()  # the rewards r that the model's reward logits stand for

    def part(self, name: str) -> drl.Part:
        """Return the learning rate of a network. The gradient of the critics is clipped alone."""
        return replace(super().part(name), max_norm=self.config.value_max_norm if name == "value" else None)

    def encoder_loss(
        self, windows: drl.Batch, zs: torch.Tensor, next_zs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of encoders and model (eq. 14 to 18), and the embeddings zsa `[B, Z]` of the first steps.

        With `infonce_weight`, the loss also has the InfoNCE loss of the predicted embeddings (DR.Q, eq. 8).

        `zs` `[B, Z]` has the embedding of the first state of each window. From it, the model predicts the L steps of
        the window one after the other. Each prediction starts from the embedding predicted for the step before. The
        loss compares the predicted embeddings with `next_zs` `[B, L, Z]`, and the predicted rewards and terminations
        with the columns of `windows`.
        """
        config, valid, width = self.config, windows["valid"], zs.shape[-1]
        pairs, outputs = [], []
        for step in range(valid.shape[1]):
            zsa = self.nets.pair(zs, windows["action"][:, step])
            output = self.nets.model(zsa)  # [B, 1 + Z + bins]: termination, next embedding, reward logits
            zs = output[:, 1 : 1 + width]
            pairs.append(zsa)
            outputs.append(output)
        termination, predicted, logits = torch.split(torch.stack(outputs, 1), [1, width, config.bins], -1)
        loss = config.dynamics_weight * (predicted - next_zs).square().mean(-1)  # [B, L]
        if config.infonce_weight:
            loss = loss + config.infonce_weight * info_nce(predicted, next_zs, valid, config.infonce_temperature)
        loss = loss + config.reward_weight * drl.losses.two_hot_loss(logits, windows["reward"], self.bins)
        loss = loss + config.termination_weight * (termination.squeeze(-1) - windows["terminated"].float()).square()
        return torch.where(valid, loss, 0.0).sum(1).mean(), pairs[0]

    def target(
        self, windows: drl.Batch, next_zs: torch.Tensor, noise: torch.Tensor, uniform: Any, masks: Any
    ) -> torch.Tensor:
        """Return the critics' targets `[B]`, which are not divided by the reward scale (eq. 20).

        The targets are n-step returns from the first step of each window, with n = `value_horizon`. `next_zs`
        `[B, L, Z]` has the embeddings of the next states of all steps.
        """
        config, valid, nets = self.config, windows["valid"], self.nets.target
        reward = torch.where(valid, windows["reward"], 0.0)
        returns = n_step_windows(reward, windows["discount"], valid, config.value_horizon)
        total, discount, last = (column[:, 0] for column in returns)
        index = torch.arange(len(last), device=last.device)
        zs = next_zs[index, last]  # the embedding after the last step of the n-step return
        mask = None if windows["next_mask"] is None else windows["next_mask"][index, last]
        factor = 1.0 if self.is_box else DISCRETE_NOISE
        clip = factor * config.noise_clip
        noise = (factor * config.target_noise * noise).clamp(-clip, clip)
        noisy = self.relaxed(nets.actor(zs), mask, uniform) + noise
        size = self.spec.action.size
        next_action = noisy.clamp(-1.0, 1.0) if self.is_box else one_hot(drl.permitted(noisy, mask).argmax(-1), size)
        next_q, next_scale = nets.value(nets.pair(zs, next_action), masks)
        target: torch.Tensor = total + discount * next_q.amin(0) * next_scale
        return target

    def relaxed(self, out: torch.Tensor, mask: torch.Tensor | None, uniform: Any) -> torch.Tensor:
        """Convert the actor's outputs `[B, A]` to actions `[B, A]` through which gradients flow.

        A box action is the tanh of the outputs. A discrete action is a Gumbel-softmax sample.
        """
        if self.is_box:
            return out.tanh()
        sample: torch.Tensor = gumbel_softmax(drl.permitted(out, mask), uniform, self.config.gumbel_temperature)
        return sample

    def windows(self, batch: drl.Batch) -> dict[str, Any]:
        """Return the columns of a batch as windows of L steps, `[B, L, ...]`. Transitions become windows of one step.

        Discrete actions become one-hot vectors. `obs` are the first observations of the windows, `[B, ...]`, and
        `next_obs` those after all steps, `[B L, ...]`. `mask` and `next_mask` have the legal-action masks, or None.
        """
        names = ("obs", "action", "reward", "discount", "next_obs", "terminated")
        rows = {name: batch[name] for name in names}
        if "valid" not in batch:  # transitions
            rows = map_parts(lambda column: column.unsqueeze(1), rows)
        rows["valid"] = batch["valid"] if "valid" in batch else torch.ones_like(rows["terminated"])
        rows["action"] = rows["action"] if self.is_box else one_hot(rows["action"], self.spec.action.size)
        rows["obs"] = map_parts(lambda column: column[:, 0], rows["obs"])
        rows |= {"mask": drl.action_mask(rows["obs"]), "next_mask": drl.action_mask(rows["next_obs"])}
        rows["next_obs"] = map_parts(lambda column: column.flatten(0, 1), rows["next_obs"])
        return rows

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, windows, size = self.config, self.nets, self.windows(batch), self.spec.action.size
        num = len(windows["reward"])
        mean_reward = windows["reward"][:, 0].abs().mean()  # of the windows' first steps, where the critics learn
        self.context.group.mean_(mean_reward)  # in place: the mean over all trainers
        nets.value.observe(mean_reward)
        if counts.opt_steps % config.target_period == 0:
            self.params.follow(1.0)  # before `rescale`: the target critics keep the reward scale of their values
            nets.value.rescale()
        (noise,), uniform, next_uniform = self.randn(num, size), None, None
        if not self.is_box:
            uniform, next_uniform = self.context.rand(num, 2 * size, self.generator).chunk(2, -1)
        masks, target_masks = (self.masks("value", num) for _ in range(2))

        # The encoders and the model: predict the next embeddings, rewards and terminations    (eq. 14)
        observed = {"obs": windows["obs"], "next_obs": windows["next_obs"]}
        zs = nets.state(nets.encoder.see(observed).learned)
        with torch.no_grad():
            next_x = nets.target.encoder.see(observed).next_obs
            next_zs = nets.target.state(next_x).view(*windows["valid"].shape, -1)  # [B, L, Z]
        encoder_loss, zsa = self.encoder_loss(windows, zs, next_zs)

        # Critics and actor learn at the first step of each window, and do not train the encoders    (eq. 19 and 21)
        zs, zsa = zs.detach(), zsa.detach()
        q, scale = nets.value(zsa, masks)  # q [2, B] in units of the reward scale
        with torch.no_grad():
            target = self.target(windows, next_zs, noise, next_uniform, target_masks) / scale
        critic_loss = torch.nn.functional.smooth_l1_loss(q, target.expand_as(q))
        out = nets.actor(zs)
        actor_q, _ = nets.frozen.value(nets.frozen.pair(zs, self.relaxed(out, windows["mask"], uniform)), masks)
        actor_loss = config.pre_activation_weight * out.square().mean() - actor_q.mean()

        self.optimizer.minimize(encoder_loss + critic_loss + actor_loss)
        metrics = {"encoder_loss": encoder_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": q.mean(), "reward_scale": nets.value.scale[0].clone()}
        priority = (q - target).detach().abs().amax(0).clamp(min=MIN_PRIORITY)
        if "valid" in batch:  # all steps of a window get the same priority
            priority = priority.unsqueeze(1).expand(batch["valid"].shape)
        return drl.Update(metrics, priorities=priority)

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

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.off_policy._actors import Random
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.errors import Refused
from drl_cli.losses.contrastive import info_nce
from drl_cli.losses.distributional import two_hot_loss
from drl_cli.losses.policy import one_hot, permitted
from drl_cli.losses.returns import n_step_windows
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.networks.head import Head
from drl_cli.networks.mlp import activate_numpy, mlp_numpy, mlp_shapes, norm_numpy
from drl_cli.networks.torsos import torso_name
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer_config import Part
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, map_parts
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, NonNegative, Positive

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
class Config(LearnerConfig):
    """The options of MR.Q, which conf/algo/mrq.yaml explains.

    Box actions are in [-1, 1], so a noise of 1 is half of the action range. Discrete actions are one-hot vectors, whose
    noise is multiplied by DISCRETE_NOISE.
    """

    encoder_lr: Positive
    value_horizon: Count
    target_period: Count
    noise: NonNegative
    target_noise: NonNegative
    noise_clip: NonNegative
    gumbel_temperature: Positive
    dynamics_weight: NonNegative
    infonce_weight: NonNegative
    infonce_temperature: Positive
    reward_weight: NonNegative
    termination_weight: NonNegative
    pre_activation_weight: NonNegative
    bins: Count
    value_max_norm: Positive


class Policy(NetworkPolicy):
    """Chooses actions with the state encoder and the actor, and adds Gaussian noise for exploration.

    A discrete action is the argmax of a Gumbel-softmax sample (a relaxed one-hot vector) plus noise.
    """

    is_squashed = True

    @classmethod
    def check(cls, config: Config, network: NetworkConfig, spec: EnvSpec) -> None:
        if not network.hidden:
            raise Refused("network.hidden=[]: mrq needs a hidden layer; say network.hidden=[128,128]")
        if network.memory != "none":
            raise Refused(
                f"network.memory={network.memory}: mrq embeds only the first observation of a window, so that a memory "
                "would learn from single steps; say network.memory=none"
            )
        if config.n_step > 1:
            raise Refused(
                f"algo.n_step={config.n_step}: mrq makes its own returns; say algo.value_horizon={config.n_step}"
            )

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.config, width = config, network.hidden[-1]
        state_shapes = mlp_shapes(self.encoder.size, state_hidden(network, spec), width, layer_norm=network.layer_norm)
        actor_shapes = mlp_shapes(width, network.hidden, self.action.size, layer_norm=network.layer_norm)
        self.shapes = [*state_shapes, *actor_shapes]
        self.trunk: list[Array] = []  # the parameters of the state encoder
        self.trunk_size = len(state_shapes)

    def load(self, params: Array) -> None:
        super().load(params)
        self.trunk, self.params = self.params[: self.trunk_size], self.params[self.trunk_size :]

    def forward(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        features, columns = self.encoder(obs, last)
        out = norm_numpy(mlp_numpy(self.trunk, features, self.network.activation))
        zs = activate_numpy(out, self.network.activation)
        return mlp_numpy(self.params, zs, ACTOR_ACTIVATION), columns

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, columns = self.forward(obs, last)
        noise = self.config.noise * self.rng.standard_normal(out.shape, np.float32)
        if self.action.kind == "box":
            return {"action": np.clip(np.tanh(out) + noise, -1.0, 1.0), **columns}
        mask, uniform = action_mask(obs), torch.from_numpy(self.rng.random(out.shape, np.float32))
        logits = torch.from_numpy(permitted(out, mask))
        relaxed = gumbel_softmax(logits, uniform, self.config.gumbel_temperature).numpy()
        noisy = relaxed + DISCRETE_NOISE * noise
        return {"action": permitted(noisy, mask).argmax(-1), **columns}

    def exported_head(self) -> Head:
        return replace(
            super().exported_head(),
            activation=ACTOR_ACTIVATION,
            trunk=self.trunk,
            trunk_activation=self.network.activation,
            norms_trunk=True,
        )


class Algorithm(Learner):
    """Learns the encoders, the linear model, the critics and the actor from batches."""

    has_own_weights = False

    def setup(self, config: Config, spec: EnvSpec) -> None:
        from drl_cli.networks.latent import PairEncoder, ScaledCritics  # imports torch
        from drl_cli.networks.mlp_module import MLP, Embedding

        network, size, width = self.network, spec.action.size, self.network.hidden[-1]
        self.size, self.width, self.is_box = size, width, spec.action.kind == "box"  # `width` is the embeddings' size Z
        self.value = ScaledCritics(network)
        self.build(
            policy=("state", "actor"),
            lr=config.encoder_lr,
            lrs={"value": Part(config.lr, max_norm=config.value_max_norm), "actor": config.lr},
            targets=("state", "pair", "value", "actor"),
            state=Embedding(self.encoder.size, width, replace(network, hidden=state_hidden(network, spec))),
            pair=PairEncoder(network, size),
            model=MLP(width, 1 + width + config.bins, replace(network, hidden=())),
            value=self.value,
            actor=MLP(width, size, replace(network, activation=ACTOR_ACTIVATION)),
        )
        symlog = torch.linspace(-10.0, 10.0, config.bins, device=self.context.device)  # sign(r) log(1 + |r|)
        self.bins = symlog.sign() * symlog.abs().expm1()  # the rewards r that the model's reward logits stand for
        self.noise = self.params.generator("noise", self.seed + 1)  # `seed` itself draws initial weights
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of encoders, critics and actor, and a dict with metrics and `td_error` `[B]`.

        `rows` has windows of L steps, `[B, L, ...]`. Critics and actor learn at the first step of each window, and
        their losses do not train the encoders.
        """
        view = self.see(nets, rows)
        zs = nets.state(view.learned)
        with torch.no_grad():
            next_obs = self.see_target(nets, rows, view).next_obs
            next_zs = nets.target.state(next_obs).view(*rows["valid"].shape, -1)  # [B, L, Z]
        encoder_loss, zsa = self.encoder_loss(nets, rows, zs, next_zs)
        zs, zsa = zs.detach(), zsa.detach()
        q, scale = nets.value(zsa, random["masks"])  # q [2, B] in units of the reward scale
        with torch.no_grad():
            target = self.target(nets, rows, next_zs, random) / scale
        critic_loss = torch.nn.functional.smooth_l1_loss(q, target.expand_as(q))
        out = nets.actor(zs)
        action = self.relaxed(out, rows["mask_now"], random, "gumbel")
        actor_q, _ = nets.frozen.value(nets.frozen.pair(zs, action), random["masks"])
        actor_loss = self.config.pre_activation_weight * out.square().mean() - actor_q.mean()
        metrics = {"encoder_loss": encoder_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": q.mean(), "td_error": (q - target).abs().amax(0)}
        return encoder_loss + critic_loss + actor_loss, metrics

    def encoder_loss(self, nets: Nets, rows: Batch, zs: Tensor, next_zs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of encoders and model (eq. 14 to 18), and the embeddings zsa `[B, Z]` of the first steps.

        With `infonce_weight`, the loss also has the InfoNCE loss of the predicted embeddings (DR.Q, eq. 8).

        `zs` `[B, Z]` has the embedding of the first state of each window. From it, the model predicts the L steps of
        the window one after the other. Each prediction starts from the embedding predicted for the step before. The
        loss compares the predicted embeddings with `next_zs` `[B, L, Z]`, and the predicted rewards and terminations
        with the columns of `rows`.
        """
        config, valid = self.config, rows["valid"]
        pairs, outputs = [], []
        for step in range(valid.shape[1]):
            zsa = nets.pair(zs, rows["action"][:, step])
            output = nets.model(zsa)  # [B, 1 + Z + bins]: termination, next embedding, reward logits
            zs = output[:, 1 : 1 + self.width]
            pairs.append(zsa)
            outputs.append(output)
        stacked = torch.stack(outputs, 1)  # [B, L, 1 + Z + bins]
        termination, predicted_zs, reward_logits = torch.split(stacked, [1, self.width, config.bins], -1)
        loss = config.dynamics_weight * (predicted_zs - next_zs).square().mean(-1)  # [B, L]
        if config.infonce_weight:
            contrast = info_nce(predicted_zs, next_zs, valid, config.infonce_temperature)
            loss = loss + config.infonce_weight * contrast
        loss = loss + config.reward_weight * two_hot_loss(reward_logits, rows["reward"], self.bins)
        loss = loss + config.termination_weight * (termination.squeeze(-1) - rows["terminated"].float()).square()
        loss_of_windows = torch.where(valid, loss, 0.0).sum(1)
        return loss_of_windows.mean(), pairs[0]

    def target(self, nets: Nets, rows: Batch, next_zs: Tensor, random: Random) -> Tensor:
        """Return the critics' targets `[B]`, which are not divided by the reward scale (eq. 20).

        The targets are n-step returns from the first step of each window, with n = `value_horizon`. `next_zs`
        `[B, L, Z]` has the embeddings of the next states of all steps.
        """
        config, valid = self.config, rows["valid"]
        reward = torch.where(valid, rows["reward"], 0.0)
        returns = n_step_windows(reward, rows["discount"], valid, config.value_horizon)
        total, discount, last = (column[:, 0] for column in returns)
        index = torch.arange(len(last), device=last.device)
        zs = next_zs[index, last]  # the embedding after the last step of the n-step return
        mask = None if rows["mask_next"] is None else rows["mask_next"][index, last]
        factor = 1.0 if self.is_box else DISCRETE_NOISE
        clip = factor * config.noise_clip
        noise = (factor * config.target_noise * random["action"]).clamp(-clip, clip)
        noisy = self.relaxed(nets.target.actor(zs), mask, random, "next_gumbel") + noise
        next_action = noisy.clamp(-1.0, 1.0) if self.is_box else one_hot(permitted(noisy, mask).argmax(-1), self.size)
        next_q, next_scale = nets.target.value(nets.target.pair(zs, next_action), random["target_masks"])
        target: Tensor = total + discount * next_q.amin(0) * next_scale
        return target

    def relaxed(self, out: Tensor, mask: Tensor | None, random: Random, gumbel: str) -> Tensor:
        """Convert the actor's outputs `[B, A]` to actions `[B, A]` through which gradients flow.

        A box action is the tanh of the outputs. A discrete action is a Gumbel-softmax sample (a relaxed one-hot
        vector), with the uniform numbers `random[gumbel]`.
        """
        if self.is_box:
            return out.tanh()
        return gumbel_softmax(permitted(out, mask), random[gumbel], self.config.gumbel_temperature)

    def rows(self, batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the columns of a batch as windows of L steps, `[B, L, ...]`. Transitions become windows of one step.

        Discrete actions become one-hot vectors. `rows["batch"]` has the observations whose features `see` computes: the
        first `obs` of each window, `[B, ...]`, and the `next_obs` of all steps, `[B L, ...]`.
        """
        names = ("obs", "action", "reward", "discount", "next_obs", "terminated")
        rows = {name: batch[name] for name in names}
        if "valid" not in batch:  # transitions
            rows = map_parts(lambda column: column.unsqueeze(1), rows)
        obs = map_parts(lambda column: column[:, 0], rows.pop("obs"))
        next_obs = rows.pop("next_obs")
        rows |= {"mask_now": action_mask(obs), "mask_next": action_mask(next_obs)}
        rows["valid"] = batch["valid"] if "valid" in batch else torch.ones_like(rows["terminated"])
        rows["action"] = rows["action"] if self.is_box else one_hot(rows["action"], self.size)
        flat_next_obs = map_parts(lambda column: column.flatten(0, 1), next_obs)
        return {**rows, "batch": {"obs": obs, "next_obs": flat_next_obs}}

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        num = len(rows["reward"])
        mean_reward = rows["reward"][:, 0].abs().mean()  # of the windows' first steps, where the critics learn
        self.context.group.mean_(mean_reward)  # in place: the mean over all trainers
        self.value.observe(mean_reward)
        if counts.opt_steps % self.config.target_period == 0:
            self.params.follow(1.0)  # before `rescale`: the target critics keep the reward scale of their values
            self.value.rescale()
        random: Random = {"action": self.context.randn(num, self.size, self.noise)}
        if not self.is_box:
            uniform = self.context.rand(num, 2 * self.size, self.noise)
            random["gumbel"], random["next_gumbel"] = uniform.chunk(2, -1)
        random |= self.critic_masks(self.value.mlp, num, self.noise)
        loss, found = self.gradients(rows, random)
        self.optimizer.step(loss)
        metrics = {**found, "reward_scale": self.value.scale[0].clone()}
        priority = metrics.pop("td_error").clamp(min=MIN_PRIORITY)
        if "valid" in batch:  # all steps of a window get the same priority
            priority = priority.unsqueeze(1).expand(batch["valid"].shape)
        return Update(metrics, priorities=priority)


def state_hidden(network: NetworkConfig, spec: EnvSpec) -> tuple[int, ...]:
    """Return the widths of the state encoder's hidden layers: `network.hidden`, or () after a torso such as a CNN."""
    return network.hidden if torso_name(network, spec) is None else ()


def gumbel_softmax(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Return a Gumbel-softmax sample `[B, A]`, a relaxed one-hot vector (Jang et al. 2017, arXiv 1611.01144).

    `logits` are `[B, A]`, and `uniform` `[B, A]` has random numbers in [0, 1), from which the Gumbel noise is computed.
    """
    exponential = -uniform.clamp(min=1e-10).log()
    gumbel = -exponential.clamp(min=1e-10).log()
    return ((logits + gumbel) / temperature).softmax(-1)

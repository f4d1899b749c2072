"""DreamerV3 (Hafner et al. 2023, "Mastering Diverse Domains through World Models", arXiv 2301.04104).

A recurrent world model predicts observations, rewards and ends of episodes from a latent state. The latent state has a
deterministic part h and a stochastic part z, which consists of 32 categorical variables. Actor and critic learn only
from states that the model imagines. Equation numbers are those of the paper.

A policy carries h from step to step. Replay stores h before each step in the column `state`, so that a window of steps
begins with a state that was computed before. Each update writes the states that it computed back into replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import drl_cli.api as drl
from drl_cli.api import nn, torch
from drl_cli.losses.policy import one_hot
from drl_cli.networks.world_models import BlockLinear, Decoder, ReturnRange, heads, linear, mixed, mlp, sample
from drl_cli.types import MASK, map_parts
from drl_cli.utils.lazy import Tensor

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("windows",)
WRITES = ("state",)
STEP_STATES = True

VARIABLES, BLOCKS, BINS = 32, 8, 255
FREE_NATS = 1.0
SCALES = {"representation": 0.1, "replay_value": 0.3}  # of the losses; of all others 1
LEAST_STD, MOST_STD = 0.1, 1.0  # of box actions


class Size(NamedTuple):
    """The length of h, the units of hidden layers, the classes of each variable of z, and the channels of images."""

    deter: int
    units: int
    classes: int
    channels: int


SIZES = {"1m": Size(512, 64, 4, 16), "12m": Size(2048, 256, 16, 64)}


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of DreamerV3, which conf/algo/dreamer.yaml explains."""

    n_step: Literal[1]
    size: Literal["1m", "12m"]
    lr: drl.Positive
    horizon: drl.Count
    lambda_: drl.Fraction
    entropy: drl.NonNegative
    tau: drl.Fraction


class Rssm(nn.Module):
    """The recurrent state space model (eq. 3): h `[N, deter]`, z `[N, C V]`, and probabilities of z `[N, C, V]`.

    V is the number of variables, and C the number of their classes.
    """

    def __init__(self, size: Size, actions: int) -> None:
        super().__init__()
        width, latent, shared = size.deter // BLOCKS, size.classes * VARIABLES, 3 * size.units
        inputs = (size.deter, latent, actions)
        self.from_h, self.from_z, self.from_action = (mlp(num, size.units, 1) for num in inputs)
        own = width / (width + shared)  # the inputs of a hidden unit: its block of h, and features of h, z and action
        self.hidden = BlockLinear(BLOCKS, width, width, own**0.5)
        self.hidden_shared = linear(shared, size.deter, (1.0 - own) ** 0.5)
        self.norm = nn.RMSNorm(size.deter, eps=1e-4)
        self.gates = BlockLinear(BLOCKS, width, 3 * width)
        self.prior_mlp = mlp(size.deter, size.units, 2, latent)
        self.posterior_mlp = mlp(size.deter + size.units, size.units, 1, latent)

    def step(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        """Return the next h: a step of a GRU whose weights are block-diagonal."""
        shared = torch.cat([self.from_h(h), self.from_z(z), self.from_action(action)], -1)
        blocks = h.reshape(-1, BLOCKS, h.shape[1] // BLOCKS).transpose(0, 1)
        x = self.norm(self.hidden_shared(shared) + self.hidden(blocks).transpose(0, 1).flatten(1))
        x = nn.functional.silu(x).reshape(-1, BLOCKS, h.shape[1] // BLOCKS).transpose(0, 1)
        reset, candidate, update = self.gates(x).chunk(3, -1)
        candidate = (reset.sigmoid() * candidate).tanh()
        return torch.lerp(blocks, candidate, (update - 1.0).sigmoid()).transpose(0, 1).flatten(1)

    def scan(self, h: Tensor, tokens: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, ...]:
        """Return h, z and the posteriors of T + 1 states, with the time first, given the first h `[B, deter]`.

        The results are those of a loop over `posterior` and `step`. Gradients flow through z to the posteriors.
        """
        from drl_cli.networks.scan import Scan  # imports torch

        own, feature, deter = cast(Any, self.posterior_mlp), cast(Any, self.from_h), h.shape[1]
        linear, features = nn.functional.linear, 2 * own[0].out_features
        of_tokens = linear(tokens, own[0].weight[:, deter:], own[0].bias)
        of_h = torch.cat([feature[0].bias.expand_as(of_tokens), of_tokens], -1)
        shared, bias = self.hidden_shared.weight, self.hidden_shared.bias + self.hidden.bias.flatten()
        of_hidden = linear(self.from_action(action), shared[:, features:], bias)
        layers = torch.cat([feature[0].weight, own[0].weight[:, :deter]])
        norms = torch.stack([feature[1].weight, own[1].weight])
        hidden = shared[:, :features], self.hidden.weight, self.norm.weight
        pairs = own[3].parameters(), self.from_z.parameters(), hidden, self.gates.parameters()
        weights = [layers, norms, *(each for pair in pairs for each in pair)]  # the fields of Weights
        found: tuple[Tensor, ...] = cast(Any, Scan).apply(h, of_h, of_hidden, uniform, *weights)
        return found[:3]

    def prior(self, h: Tensor) -> Tensor:
        """Return the probabilities of z, predicted from h."""
        return mixed(self.prior_mlp(h).view(*h.shape[:-1], -1, VARIABLES), -2)

    def posterior(self, h: Tensor, tokens: Tensor) -> Tensor:
        """Return the probabilities of z, given h and the observation."""
        return mixed(self.posterior_mlp(torch.cat([h, tokens], -1)).unflatten(-1, (-1, VARIABLES)), -2)


def squashed(obs: Any) -> Any:
    """Return observations with the symlog of real numbers (eq. 9). Images of bytes and choices stay the same."""
    return map_parts(lambda x: drl.losses.symlog(x) if x.is_floating_point() else x, obs)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) summed over the variables, at least FREE_NATS, `[...]`. The probabilities are `[..., C, V]`."""
    return (p * (p.log() - q.log())).sum((-1, -2)).clamp(min=FREE_NATS)


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, nn.Module]:
    size, torso = SIZES[config.size], cast(Any, drl.torso(network, spec))
    features, units = size.deter + size.classes * VARIABLES, size.units
    outputs = (2 if spec.action.kind == "box" else 1) * spec.action.size
    return {
        "torso": torso,
        "encoder": mlp(torso.size, units, 3),
        "rssm": Rssm(size, spec.action.size),
        "actor": mlp(features, units, 3, outputs, scale=0.01),
        "decoder": Decoder(features, spec, units, size.channels),
        "reward": mlp(features, units, 1, BINS, scale=0.0),
        "continues": mlp(features, units, 1, 1),
        "critic": mlp(features, units, 3, BINS, scale=0.0),
        "returns": ReturnRange(),
    }


def action_distribution(out: Tensor, spec: Any) -> drl.Distribution:
    """Return the distribution of the actions, given the actor's outputs `[..., O]`."""
    if spec.kind == "box":
        mean, std = out.chunk(2, -1)
        return drl.Gaussian(mean.tanh(), ((MOST_STD - LEAST_STD) * (std + 2.0).sigmoid() + LEAST_STD).log())
    logits = torch.cat([mixed(part).log() for part in torch.split(out, list(spec.choices), -1)], -1)
    return drl.Categorical(logits) if spec.kind == "discrete" else drl.MultiCategorical(logits, spec.choices)


def action_inputs(action: Tensor, spec: Any) -> Tensor:
    """Return actions as inputs of the model `[..., A]`: one-hot, or box actions clipped to [-1, 1]."""
    if spec.kind == "box":
        return action.clamp(-1.0, 1.0)
    parts = [action] if spec.kind == "discrete" else action.unbind(-1)
    return torch.cat([one_hot(part, num) for part, num in zip(parts, spec.choices, strict=True)], -1)


class Policy(drl.TorchPolicy):
    """Carries h. Evaluations use the most likely z and the mode of the actions."""

    memory_size = SIZES["1m"].deter  # the constructor sets the length for `algo.size`

    @classmethod
    def check(cls, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
        if network.memory != "none":
            raise drl.Refused(f"network.memory={network.memory}: dreamer has its own memory; say network.memory=none")
        if MASK in (spec.obs if isinstance(spec.obs, Mapping) else {}):
            raise drl.Refused("dreamer does not imagine which actions are legal; say algo=gumbel_muzero")

    @staticmethod
    def extra_columns(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> drl.Schema:
        return {"state": drl.Column((SIZES[config.size].deter,), "float32")}

    @staticmethod
    def build(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> Mapping[str, nn.Module]:
        made = networks(config, network, spec)
        return {name: made[name] for name in Algorithm.policy_parts}

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.memory_size, self.nets = SIZES[config.size].deter, drl.Nets(self.modules)

    def act_on(self, obs: Any, explores: bool, drawn: Tensor | None = None) -> Tensor:
        """Return actions, `drawn` if given, and carry h one step further."""
        nets, spec, h = self.nets, self.action, cast(Tensor, self.memory)
        probs = nets.rssm.posterior(h, nets.encoder(nets.torso(squashed(obs))))
        z = one_hot(probs.argmax(1), probs.shape[1]).transpose(1, 2).flatten(1)
        if explores:
            z = sample(probs, torch.from_numpy(self.rng.random((len(h), VARIABLES), "float32"))).flatten(1)
        pi = action_distribution(nets.actor(torch.cat([h, z], -1)), spec)
        action: Tensor = (pi.sample(self.rng) if explores else pi.mode) if drawn is None else drawn
        self.memory = nets.rssm.step(h, z, action_inputs(action, spec))
        return action.clamp(-1.0, 1.0) if spec.kind == "box" else action

    def sample(self, obs: Any, last: drl.PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        return self.act_on(obs, explores=True), {}

    def random(self, obs: drl.Obs, last: drl.PreviousStep | None = None) -> drl.Columns:
        self.drawn = self.draw(obs)
        return {**self._run("random", obs, last), "action": self.drawn}

    def warm_up(self, obs: Any, last: drl.PreviousStep | None) -> dict[str, Tensor]:
        self.act_on(obs, explores=True, drawn=torch.from_numpy(self.drawn))
        return {}

    def choose(self, obs: Any) -> Tensor:
        return self.act_on(obs, explores=False)


class Algorithm(drl.Algorithm):
    """Learns world model, actor and critic with one loss from B windows of T steps, which have T + 1 states."""

    policy_parts, targets = ("torso", "encoder", "rssm", "actor"), ("critic",)
    file = {"networks": networks}

    def __init__(self, config: Any, network: Any, spec: drl.EnvSpec, seed: int, context: drl.Context) -> None:
        super().__init__(config, network, spec, seed, context)
        self.bins = drl.losses.symexp_bins(BINS, device=context.device)

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        loss, metrics, h = self.loss(self.nets, batch, self.noise(*batch["reward"].shape))
        self.optimizer.minimize(loss)
        self.params.follow(self.config.tau)
        state = torch.cat([batch["state"][:, :1], h[:, 1:-1].detach()], 1)  # the last h belongs to no row
        return drl.Update(metrics, columns={"state": state})

    def noise(self, rows: int, steps: int) -> dict[str, Tensor]:
        """Draw the random numbers of an update: of z, and of z and of the actions in imagination."""
        states, horizon, actions = steps + 1, self.config.horizon, self.spec.action.size
        draw = self.context.randn if self.spec.action.kind == "box" else self.context.rand
        z = self.context.rand(rows, states * VARIABLES, self.generator).view(rows, states, VARIABLES)
        imagined = self.context.rand(rows, states * horizon * VARIABLES, self.generator)
        action = draw(rows, states * horizon * actions, self.generator).view(-1, horizon, actions)
        return {"z": z, "imagined": imagined.view(-1, horizon, VARIABLES), "action": action}

    def loss(self, nets: Any, batch: drl.Batch, noise: drl.Batch) -> tuple[Tensor, drl.Metrics, Tensor]:
        """Return the loss, metrics, and h of all states `[B, T + 1, deter]`."""
        is_state = nn.functional.pad(batch["valid"], (1, 0), value=True)  # [B, T + 1]; padding has no states
        losses, h, z = self.model_losses(nets, batch, noise["z"])
        imagined, action = self.imagine(nets, h.detach().flatten(0, 1), z.detach().flatten(0, 1), noise)
        learned, returns, metrics = self.behavior_losses(nets, imagined, action, is_state.flatten())
        losses |= {name: loss.view_as(is_state) for name, loss in learned.items()}
        x, boot = torch.cat([h, z], -1), returns[0].view_as(is_state)
        losses["replay_value"] = self.replay_value_loss(nets, batch, x[:, :-1].contiguous(), boot[:, 1:])
        share = is_state.float().mean()
        self.context.group.mean_(share)  # of all trainers
        means = {name: (is_state * loss).mean() / share for name, loss in losses.items()}
        total = torch.stack([SCALES.get(name, 1.0) * mean for name, mean in means.items()]).sum()
        return total, {**{f"{name}_loss": mean.detach() for name, mean in means.items()}, **metrics}, h

    def model_losses(self, nets: Any, batch: drl.Batch, uniform: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the losses of the world model `[B, T + 1]` (eq. 4 and 5), and h and z of the observations."""
        obs = squashed(map_parts(lambda x, y: torch.cat([x[:, :1], y], 1), batch["obs"], batch["next_obs"]))
        h, z, posterior = self.observe(nets, nets.encoder(nets.torso(obs)), batch, uniform)
        x, prior, pad = torch.cat([h, z], -1), nets.rssm.prior(h), nn.functional.pad
        after = x[:, 1:].contiguous()  # reward and end of a step are predicted from the state after the step
        reward, continues = nets.reward(after).log_softmax(-1), nets.continues(after).squeeze(-1)
        end_loss = nn.functional.binary_cross_entropy_with_logits(  # the target is gamma, or 0 at a termination
            continues, batch["discount"], reduction="none"
        )
        flat_obs = map_parts(lambda part: part.flatten(0, 1), obs)
        losses = {
            "decoder": nets.decoder.error(x.flatten(0, 1), flat_obs).square().sum(1).view(x.shape[:2]),
            "reward": pad(self.number_loss(reward, batch["reward"]), (1, 0)),
            "continue": pad(end_loss, (1, 0)),
            "dynamics": kl(posterior.detach(), prior),
            "representation": kl(posterior, prior.detach()),
        }
        return losses, h, z

    def observe(self, nets: Any, tokens: Tensor, batch: drl.Batch, uniform: Tensor) -> tuple[Tensor, ...]:
        """Return h, z and the posteriors of all states. Gradients flow through z to the posteriors."""
        action = action_inputs(batch["action"], self.spec.action)
        columns = (column.transpose(0, 1) for column in (tokens, action, uniform))
        found = nets.rssm.scan(batch["state"][:, 0], *columns)
        return tuple(column.transpose(0, 1).contiguous() for column in found)

    def imagine(self, nets: Any, h: Tensor, z: Tensor, noise: drl.Batch) -> tuple[Tensor, Tensor]:
        """Imagine H steps from states `[N, ...]`. Return all states `[H + 1, N, F]`, and the actions `[H, N, ...]`."""
        horizon, actions, spec = self.config.horizon, list[Tensor](), self.spec.action
        x = h.new_empty(horizon + 1, len(h), h.shape[1] + z.shape[1])
        with torch.no_grad():
            for t in range(horizon + 1):
                x[t, :, : h.shape[1]], x[t, :, h.shape[1] :] = h, z
                if t < horizon:
                    actions.append(action_distribution(nets.actor(x[t]), spec).sample(noise["action"][:, t]))
                    h = nets.rssm.step(h, z, action_inputs(actions[-1], spec))
                    z = sample(nets.rssm.prior(h), noise["imagined"][:, t]).flatten(1)
        return x, torch.stack(actions)

    def behavior_losses(
        self, nets: Any, x: Tensor, action: Tensor, is_state: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, drl.Metrics]:
        """Return the losses of actor and critic `[N]` (eq. 6, 7 and 10), the imagined returns `[H, N]`, and metrics.

        Imagination has begun in real states where `is_state` `[N]` is True, and otherwise in padding.
        """
        config, before, is_padding = self.config, x[:-1], ~is_state
        critic, actor = heads(before, nets.critic, nets.actor)
        critic = critic.log_softmax(-1)  # [H, N, BINS]
        with torch.no_grad():
            slow, reward, continues = heads(x, nets.target.critic, nets.reward, nets.continues)
            last = self.number(nets.critic(x[-1:]).softmax(-1))
            value, reward = torch.cat([self.number(critic.exp()), last]), self.number(reward[1:].softmax(-1))
            discount = continues.squeeze(-1).sigmoid()  # gamma, and less where the episode may end
            no_cut = torch.zeros_like(reward.t(), dtype=torch.bool)
            parts = reward.t(), discount[1:].t(), value[1:].t()
            returns = drl.losses.lambda_returns(*parts, no_cut, config.lambda_).t()
            of_states = returns.masked_fill(is_padding, torch.nan)
            scale = nets.returns.scale(self.context.group.gather(of_states))
            advantage = (returns - value[:-1]) / scale
            weight = discount.cumprod(0)[:-1]  # the probability that the imagined episode has not ended
        pi = action_distribution(actor, self.spec.action)
        entropy = pi.entropy()
        actor_loss = -weight * (pi.log_prob(action) * advantage + config.entropy * entropy)
        critic_loss = weight * self.critic_loss(critic, slow[:-1], returns)
        entropy = entropy.detach().masked_fill(is_padding, torch.nan)
        metrics = {"return_scale": scale, "return": of_states.nanmean(), "entropy": entropy.nanmean()}
        return {"actor": actor_loss.mean(0), "critic": critic_loss.mean(0)}, returns, metrics

    def replay_value_loss(self, nets: Any, batch: drl.Batch, x: Tensor, boot: Tensor) -> Tensor:
        """Return the critic's loss `[B, T + 1]` at the states `x` before T steps; imagined returns `boot` bootstrap."""
        reward, discount, valid = batch["reward"], batch["discount"], batch["valid"]
        is_cut = nn.functional.pad(~valid[:, 1:], (0, 1), value=True)  # the next row is padding
        target = drl.losses.lambda_returns(reward, discount, boot, is_cut, self.config.lambda_)
        loss = self.critic_loss(nets.critic(x).log_softmax(-1), nets.target.critic(x), target)
        return nn.functional.pad(torch.where(valid, loss, 0.0), (0, 1))

    def critic_loss(self, critic: Tensor, slow: Tensor, target: Tensor) -> Tensor:
        """Return the loss of the log-probabilities `critic`, given the logits of the slow critic and the targets."""
        return self.number_loss(critic, target) + self.number_loss(critic, self.number(slow.detach().softmax(-1)))

    def number(self, probs: Tensor) -> Tensor:
        return drl.losses.bins_mean(probs, self.bins)

    def number_loss(self, log_probs: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy with the two-hot vectors of the targets; NaN for a target that is not finite."""
        return drl.losses.two_hot_error(log_probs, target, self.bins) + 0.0 * target

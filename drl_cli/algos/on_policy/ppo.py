"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347), the clipped variant, for any action space.

Each batch is a whole rollout. An update estimates advantages (GAE, Schulman et al. 2015, arXiv 1506.02438), and then
makes several epochs of minibatches over the rollout. The policy that acts stores the log-probability of each action.
The loss uses the ratio pi(a|s) / pi_old(a|s), where pi_old is this stored probability. Rollouts may therefore come from
a policy that is a few versions old.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import drl_cli.api as drl
from drl_cli.algos.epochs import Epochs, Minibatches
from drl_cli.api import torch

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)
REWARDS = True
Rows = MutableMapping[str, Any]  # Any: a tensor, or a dict of tensors


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of PPO, which conf/algo/ppo.yaml explains."""

    lr: drl.Positive
    n_step: Literal[1]
    epochs: drl.Count
    minibatch_size: drl.Count | None
    seq_len: drl.Count
    gae_lambda: drl.Fraction
    value_coef: drl.Positive
    squash: bool
    clip: drl.Positive
    entropy_coef: drl.NonNegative
    normalize_advantage: bool
    target_kl: drl.Positive | None
    value_clip: drl.Positive | None
    kl_coef: drl.NonNegative
    kl_target: drl.Positive
    entropy_end: drl.NonNegative | None


def check(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
    """Raise Refused if `config.squash` is True and the action space is not a Box with finite bounds."""
    if config.squash and (spec.action.kind != "box" or spec.action.is_free):
        raise drl.Refused(f"algo.squash=true needs actions with bounds; {spec.id} has {spec.action.text}; say false")


def actor_critic(network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks of the policy and of V(s). Actor and critic share only the encoder of the observations."""
    encoder = drl.encoder(network, spec)
    return {
        "encoder": encoder,
        # The small weights of the last layer make a first policy that hardly depends on the state.
        "actor": drl.MLP(encoder.size, spec.action.size, network, last=0.01),
        "log_std": drl.Vector(spec.action.size if spec.action.kind == "box" else 0),
        "critic": drl.MLP(encoder.size, 1, network),
    }


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name, and the weight of the KL penalty."""
    penalty = {"kl_weight": drl.Scalar(config.kl_coef)} if config.kl_coef else {}
    return actor_critic(network, spec) | penalty


def distribution(config: Any, spec: drl.EnvSpec, out: Any, log_std: Any, mask: Any) -> drl.Distribution:
    """Return the distribution of actions in N states, given the actor's outputs `[N, outputs]`."""
    return drl.distribution(spec.action, out, log_std, mask, squash=config.squash)


def policy(nets: Any, obs: Any, explore: Mapping[str, Any], config: Any, spec: drl.EnvSpec) -> drl.Distribution:
    """Return pi(a|s). The environment clips the actions of a Gaussian to their bounds."""
    return distribution(config, spec, nets.actor(nets.encoder(obs)), nets.log_std(), drl.action_mask(obs))


def columns(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> drl.Schema:
    """Return the schema of the log-probability of each action, before clipping."""
    return {"log_prob": drl.Column((), "float32")}


def old_policy(nets: Any, x: torch.Tensor, spec: drl.EnvSpec) -> dict[str, torch.Tensor]:
    """Return the present policy as columns. A loss can bound the KL divergence from it. `x` `[N, F]` are features."""
    out = nets.actor(x)
    is_box = spec.action.kind == "box"
    return {"old_out": out, **({"old_log_std": nets.log_std().expand_as(out).clone()} if is_box else {})}


class Algorithm(drl.Algorithm):
    """Learns actor and critic from rollouts (algorithm 1)."""

    policy_parts = ("encoder", "actor", "log_std")
    is_one_step = has_noise = False
    entropy_coef: Any  # a number, or a tensor that `update` fills

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: drl.Context):
        super().__init__(config, network, spec, seed, context)
        self.entropy_coef = config.entropy_coef
        if config.entropy_end is not None:
            self.entropy_coef = torch.tensor(config.entropy_coef, device=context.device)
        self.minibatches = Minibatches(self, self.loss, fixed=("kl_weight",))

    def advantages(
        self, batch: drl.Batch, rows: Rows, x: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the advantages and the critic's targets, `[N]` each. `value` is V(obs), and `next_value` V(next_obs).

        `rows` has the columns of the minibatches, and `x` `[N, F]` the features of `obs`.
        """
        reward, discount, cut = batch["reward"], batch["discount"], batch["cut"]
        advantage = drl.losses.gae(reward, discount, value, next_value, cut, self.config.gae_lambda)
        return advantage, advantage + value

    def loss(
        self, nets: Any, x: torch.Tensor, rows: drl.Batch, masks: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, drl.Metrics]:
        """Return the loss of a minibatch (eq. 9), and metrics. `x` `[M, F]` are features, `masks` are for dropout."""
        config, weight, mask = self.config, rows.get("weight"), rows.get("action_mask")
        pi = distribution(config, self.spec, nets.actor(x), nets.log_std(), mask)

        # policy: -min(r A, clip(r, 1 - clip, 1 + clip) A) with r = pi(a|s) / pi_old(a|s)    (eq. 7)
        log_ratio = pi.log_prob(rows["action"]) - rows["log_prob"]
        policy_loss = drl.losses.clipped_surrogate(log_ratio, rows["advantage"], config.clip, weight)
        entropy = drl.losses.mean(pi.entropy_at(rows["action"]), weight)
        loss, metrics = policy_loss - self.entropy_coef * entropy, {"entropy": entropy}
        with torch.no_grad():
            ratio = log_ratio.exp()
            # The mean of ratio - 1 - log(ratio) estimates KL(pi_old || pi) with a low variance.
            metrics["approx_kl"] = drl.losses.mean(ratio - 1.0 - log_ratio, weight)
            metrics["clip_fraction"] = drl.losses.mean(((ratio - 1.0).abs() > config.clip).float(), weight)
        if config.kl_coef:  # the penalty of eq. 8; a Gaussian has two parts: of the mean, and of the deviation
            old = distribution(config, self.spec, rows["old_out"], rows.get("old_log_std"), mask)
            kl = drl.losses.mean(sum(old.kl_parts(pi)), weight)
            loss = loss + nets.kl_weight().detach() * kl
            metrics |= {"kl": kl, "kl_weight": nets.kl_weight().clone()}  # a copy, because `adapt` changes it

        # values: (V(s) - target)^2 / 2, and the same for a clipped V(s) (Engstrom et al. 2020, arXiv 2005.12729)
        value, target = nets.critic(x, masks).squeeze(-1), rows["target"]
        error = 0.5 * (value - target).square()
        if config.value_clip is not None:
            clipped = rows["value"] + (value - rows["value"]).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, 0.5 * (clipped - target).square())
        value_loss = drl.losses.mean(error, weight)
        if self.stream is not None:
            reward_error = nets.reward_critic(x).squeeze(-1) - rows["reward_target"]
            value_loss = value_loss + drl.losses.mean(0.5 * reward_error.square(), weight)
        return loss + config.value_coef * value_loss, {"policy_loss": policy_loss, "value_loss": value_loss, **metrics}

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, clock = self.config, self.nets, self.context.clock
        if config.entropy_end is not None:
            start, position = config.entropy_coef, clock.of(counts)  # environment steps, or updates without workers
            self.entropy_coef.fill_(drl.linear(position, start=start, end=config.entropy_end, length=clock.total))
        rollout = self.minibatches.rollout(batch)
        rows, epochs = rollout.rows, Epochs(self.minibatches, rollout)

        with torch.no_grad():
            x, next_x = rollout.features()
            value, next_value = (nets.critic(each).squeeze(-1) for each in (x, next_x))
            advantage, target = self.advantages(batch, rows, x, value, next_value)
            unexplained = advantage.var(correction=0) / target.var(correction=0).clamp_min(1e-8)
            metrics, rows["target"] = {"explained_variance": 1.0 - unexplained}, target
            if self.stream is not None:
                rewarded = self.stream.batch(batch, self.stream.rewards(batch))
                reward_value, next_reward_value = (nets.reward_critic(each).squeeze(-1) for each in (x, next_x))
                bonus, rows["reward_target"] = self.advantages(rewarded, rows, x, reward_value, next_reward_value)
                advantage = advantage + self.stream.module.coef * bonus
            rows["advantage"] = rollout.normalized(advantage) if config.normalize_advantage else advantage
            if config.value_clip is not None:
                rows["value"] = value
            if config.kl_coef:
                rows.update(old_policy(nets, x, self.spec))

        for _ in range(config.epochs):
            epochs.run()  # a gradient step with each minibatch
            if config.target_kl is not None and epochs.mean("approx_kl") > config.target_kl:
                break

        if epochs.done:
            if config.kl_coef:
                self.adapt(epochs.mean("kl"))
            if self.stream is not None:
                metrics["reward_loss"] = self.stream.learn(batch, self.optimizer)
        return epochs.update(metrics)

    def adapt(self, kl: torch.Tensor) -> None:
        """Double the weight of the penalty if `kl` is above 1.5 `kl_target`; halve it below `kl_target` / 1.5 (sec. 4).

        The weight stays in [1e-4, 1e4], so that it can return to a useful size within few updates.
        """
        target, weight = self.config.kl_target, self.params["kl_weight"].flat
        factor = torch.where(kl > 1.5 * target, 2.0, torch.where(kl < target / 1.5, 0.5, 1.0))
        weight.copy_((weight * factor).clamp(1e-4, 1e4))

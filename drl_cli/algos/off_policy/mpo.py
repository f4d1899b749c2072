"""MPO (Abdolmaleki et al. 2018, "Maximum a Posteriori Policy Optimisation", arXiv 1806.06920), without Retrace.

MPO samples actions and gives larger weights to actions with larger Q values (E-step). Then the actor learns these
actions by weighted maximum likelihood, within a trust region (M-step). The mean and the standard deviation of the actor
have separate trust regions (Abdolmaleki et al. 2018b, "Relative Entropy Regularized Policy Iteration", arXiv
1812.02256). The critic learns from n-step targets.
"""

import math
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy.sac import policy
from drl_cli.api import torch

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")
__all__ = ["Algorithm", "Config", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of MPO.

    `epsilon` bounds the KL divergence of the E-step, and `epsilon_mean` and `epsilon_std` bound the KL divergences of
    the M-step. `samples` is the number of actions that are sampled in each state. `dual_lr` is the learning rate of the
    logarithms of the dual variables. The target networks become copies of the networks after every `target_period`
    updates.
    """

    lr: drl.Positive
    dual_lr: drl.Positive
    samples: drl.Count
    target_period: drl.Count
    epsilon: drl.Positive
    epsilon_mean: drl.Positive
    epsilon_std: drl.Positive


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critic trains the encoder.

    `duals` has the logarithms of the dual variables, so that a step changes them by `dual_lr`, whatever their sizes:
    the temperature of the E-step, and the penalty weights of both trust regions, for mean and standard deviation.
    """
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, 2 * size, network),
        "critic": drl.Critic(encoder.size, size, network),
        "duals": drl.Vector(3, [math.log(first) for first in (1.0, 10.0, 100.0)]),
    }


class Algorithm(drl.Algorithm):
    """Learns actor, critic and dual variables. One step changes them all, with the gradients before the step."""

    policy_parts, targets = ("encoder", "actor"), ("encoder", "actor", "critic")
    rates = {"duals": "dual_lr"}
    has_own_weights = False

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        config, nets, rows, seen = self.config, self.nets, self.rows(batch), self.nets.encoder.see(batch)
        num, samples, size, valid = len(rows["reward"]), config.samples, self.spec.action.size, rows.get("valid_weight")
        (noise,) = self.randn(num, samples * size)
        masks, target_masks = (self.masks("critic", num) for _ in range(2))
        temperature, mean_penalty, std_penalty = nets.duals().exp().unbind()

        # The critic: the value of the next state is the mean value of S actions of the target actor
        with torch.no_grad():
            next_x = nets.target.encoder.see(batch).next_obs
            old = drl.TanhGaussian.of(nets.target.actor(next_x)).inner  # the Gaussian before tanh
            sampled = old.sample(noise.view(num, samples, size).transpose(0, 1))  # [S, B, A], before tanh
            repeated = [mask.repeat(1, samples, 1) for mask in target_masks]  # equal for all samples
            next_q = nets.target.critic(next_x.repeat(samples, 1), sampled.flatten(0, 1).tanh(), repeated)
            next_q = next_q.view(samples, num)
            target = rows["reward"] + rows["discount"] * next_q.mean(0)
        q = nets.critic(seen.learned, rows["action"], masks)  # [B]
        critic_loss = drl.losses.mse(q - target, rows.get("weight"))

        # E-step: the weights of the sampled actions, and the loss of the temperature    (eq. 4 and 8)
        action_weights = (next_q / temperature.detach()).softmax(0)  # [S, B]
        log_mean_exp = drl.losses.mean((next_q / temperature).logsumexp(0), valid) - math.log(samples)
        temperature_loss = temperature * (config.epsilon + log_mean_exp)

        # M-step: the weighted log-likelihood of the sampled actions, at the next state. Mean and standard deviation
        # learn separately: one Gaussian has only the new mean, the other only the new deviation    (2018b, eq. 11)
        new = drl.TanhGaussian.of(nets.actor(seen.next_obs)).inner
        new_mean, new_std = drl.Gaussian(new.mean, old.log_std), drl.Gaussian(old.mean, new.log_std)
        log_probs = new_mean.log_prob(sampled) + new_std.log_prob(sampled)
        policy_loss = -drl.losses.mean((action_weights * log_probs).sum(0), valid)
        mean_kl, std_kl = drl.losses.mean(old.kl(new_mean), valid), drl.losses.mean(old.kl(new_std), valid)
        penalty = mean_penalty.detach() * mean_kl + std_penalty.detach() * std_kl
        dual_loss = mean_penalty * (config.epsilon_mean - mean_kl.detach())
        dual_loss = dual_loss + std_penalty * (config.epsilon_std - std_kl.detach())

        self.optimizer.minimize(critic_loss + policy_loss + penalty + temperature_loss + dual_loss)
        if (counts.opt_steps + 1) % config.target_period == 0:  # + 1 counts the step just made
            self.params.follow(1.0)  # copy the networks to the target networks
        metrics = {"critic_loss": critic_loss, "actor_loss": policy_loss, "q_mean": drl.losses.mean(q, valid)}
        metrics |= {"temperature": temperature, "mean_kl": mean_kl, "std_kl": std_kl}
        metrics |= {"entropy": drl.losses.mean(new.entropy(), valid)}
        return drl.Update(metrics, self.per_sequence((q - target).abs(), batch))

"""MPO (Abdolmaleki et al. 2018, "Maximum a Posteriori Policy Optimisation", arXiv 1806.06920), without Retrace.

MPO samples actions and gives larger weights to actions with larger Q values (E-step). Then the actor learns these
actions by weighted maximum likelihood, within a trust region (M-step). The mean and the standard deviation of the actor
have separate trust regions (Abdolmaleki et al. 2018b, "Relative Entropy Regularized Policy Iteration", arXiv
1812.02256). The critic learns from n-step targets.
"""

import math
from dataclasses import dataclass

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.off_policy._actors import Random, SquashedPolicy, squashed
from drl_cli.algos.steps import per_sequence
from drl_cli.losses.critics import mean, mse
from drl_cli.losses.distributions import Gaussian
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Positive

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """The options of MPO.

    `epsilon` bounds the KL divergence of the E-step, and `epsilon_mean` and `epsilon_std` bound the KL divergences of
    the M-step. `samples` is the number of actions that are sampled in each state. `dual_lr` is the learning rate of the
    logarithms of the dual variables. The target networks become copies of the networks after every `target_period`
    updates.
    """

    dual_lr: Positive
    samples: Count
    target_period: Count
    epsilon: Positive
    epsilon_mean: Positive
    epsilon_std: Positive


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor of MPO, the same as the actor of SAC."""


class Algorithm(Learner):
    """Learns the actor, the critic and three dual variables from batches.

    The dual variables are the temperature of the E-step, and the penalty weights of the two trust regions, for the mean
    and for the standard deviation.
    """

    has_own_weights = False

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.size = spec.action.size
        actor, self.critic = self.mlp(outputs=2 * self.size), self.critics(outputs=1, actions=self.size)
        lrs, targets = {"duals": config.dual_lr}, ("actor", "critic")
        self.build(policy=("actor",), lr=config.lr, lrs=lrs, targets=targets, actor=actor, critic=self.critic, duals=3)
        start = torch.tensor((1.0, 10.0, 100.0))  # the temperature, and the weights of both trust regions
        self.params["duals"].flat.copy_(start.log())  # an update changes a logarithm by `dual_lr`, whatever its size
        self.noise = self.params.generator("noise", self.seed + 1)  # `seed` itself draws initial weights
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of critic, actor and dual variables, and a dict of metrics and priorities.

        The target actor samples S actions for each `next_obs`. Their mean value is the value of the next state in the
        critic's target. The actor also learns from these actions, so it learns at `next_obs` and not at `obs`. The
        priorities are the column `td_error` `[B]`.
        """
        config, view, valid = self.config, self.see(nets, rows), rows.get("valid_weight")
        temperature, mean_penalty, std_penalty = nets.duals.exp().unbind()
        with torch.no_grad():
            next_obs = self.see_target(nets, rows, view).next_obs
            old = squashed(nets.target.actor(next_obs)).inner  # the target actor's Gaussian, before tanh
            noise = random["action"].view(len(next_obs), -1, self.size).transpose(0, 1)  # [B, S A] to [S, B, A]
            sampled = old.mean + old.log_std.exp() * noise  # [S, B, A], actions before tanh
            masks = [mask.repeat(1, config.samples, 1) for mask in random["target_masks"]]  # equal for all samples
            repeated = next_obs.repeat(config.samples, 1)
            next_q = nets.target.critic(repeated, sampled.flatten(0, 1).tanh(), masks)
            next_q = next_q.view(config.samples, -1)  # [S, B]
            target = rows["reward"] + rows["discount"] * next_q.mean(0)
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)
        critic_loss = mse(q - target, rows.get("weight"))

        # E-step: the weights of the sampled actions, and the loss of the temperature (eq. 4 and 8).
        action_weights = (next_q / temperature.detach()).softmax(0)  # [S, B]
        log_mean_exp = mean((next_q / temperature).logsumexp(0), valid) - math.log(config.samples)
        temperature_loss = temperature * (config.epsilon + log_mean_exp)

        # M-step: the weighted log-likelihood of the sampled actions. Mean and standard deviation learn separately, with
        # one Gaussian that has only the new mean and another that has only the new deviation (2018b, eq. 11).
        new = squashed(nets.actor(view.next_obs)).inner
        new_mean, new_std = Gaussian(new.mean, old.log_std), Gaussian(old.mean, new.log_std)
        log_probs = new_mean.log_prob(sampled) + new_std.log_prob(sampled)
        policy_loss = -mean((action_weights * log_probs).sum(0), valid)
        mean_kl, std_kl = mean(old.kl(new_mean), valid), mean(old.kl(new_std), valid)
        penalty = mean_penalty.detach() * mean_kl + std_penalty.detach() * std_kl
        dual_loss = mean_penalty * (config.epsilon_mean - mean_kl.detach())
        dual_loss = dual_loss + std_penalty * (config.epsilon_std - std_kl.detach())
        metrics = {"critic_loss": critic_loss, "actor_loss": policy_loss, "q_mean": mean(q, valid)}
        metrics |= {"temperature": temperature, "mean_kl": mean_kl, "std_kl": std_kl}
        metrics |= {"entropy": mean(new.entropy(), valid), "td_error": (q - target).abs()}
        return critic_loss + policy_loss + penalty + temperature_loss + dual_loss, metrics

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        num = len(rows["reward"])
        random: Random = {"action": self.context.randn(num, self.config.samples * self.size, self.noise)}
        random |= self.critic_masks(self.critic, num, self.noise)
        loss, found = self.gradients(rows, random)
        self.optimizer.step(loss)
        if (counts.opt_steps + 1) % self.config.target_period == 0:  # + 1 counts the step just made
            self.params.follow(1.0)  # copy the networks to the target networks
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        return Update(metrics, priorities=per_sequence(td_error, batch))

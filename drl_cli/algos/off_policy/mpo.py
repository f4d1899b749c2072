"""MPO (Abdolmaleki et al. 2018, "Maximum a Posteriori Policy Optimisation", arXiv 1806.06920), with one-step targets.

MPO first finds better probabilities for sampled actions (E-step), and then fits the actor to them within a trust region
(M-step). Mean and standard deviation have separate trust regions (Abdolmaleki et al. 2018b, "Relative Entropy
Regularized Policy Iteration", arXiv 1812.02256).
"""

import math
from dataclasses import dataclass

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig, by_step
from drl_cli.algos.off_policy._actors import Random, SquashedPolicy, squashed
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
    """Options of MPO."""

    dual_lr: Positive
    samples: Count
    target_period: Count
    epsilon: Positive
    epsilon_mean: Positive
    epsilon_std: Positive


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""


class Algorithm(Learner):
    """Learns actor, critic and the three dual variables in a trainer.

    The dual variables are the temperature and the weights of the trust regions of mean and standard deviation.
    """

    has_own_weights = False

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.size = spec.action.size
        actor, self.critic = self.mlp(2 * self.size), self.critics(1, self.size)
        lrs, targets = {"duals": config.dual_lr}, ("actor", "critic")
        self.build(("actor",), config.lr, lrs, targets, actor=actor, critic=self.critic, duals=3)
        start = torch.tensor((1.0, 10.0, 100.0))  # the temperature, and the weights of both trust regions
        inverse_softplus = start + (-(-start).expm1()).log()
        self.params["duals"].flat.copy_(inverse_softplus)
        self.noise = self.params.generator("noise", self.seed + 1)
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of critic, actor and dual variables, and a dict with metrics and `td_error`.

        The critic learns at `obs`, and the actor learns at `next_obs`. S actions are sampled at `next_obs`, for the
        critic's target and for the actor's loss.
        """
        config, view, valid = self.config, self.see(nets, rows), rows.get("valid_weight")
        temperature, mean_weight, std_weight = torch.nn.functional.softplus(nets.duals).unbind()
        with torch.no_grad():
            next_obs = self.see_target(nets, rows, view).next_obs
            old = squashed(nets.target.actor(next_obs)).inner  # the target actor's Gaussian, before tanh
            noise = random["action"].view(len(next_obs), -1, self.size).transpose(0, 1)
            sampled = old.mean + old.log_std.exp() * noise  # [S, B, A], actions before tanh
            masks = [mask.repeat(1, config.samples, 1) for mask in random["target_masks"]]
            repeated = next_obs.repeat(config.samples, 1)
            next_q = nets.target.critic(repeated, sampled.flatten(0, 1).tanh(), masks)
            next_q = next_q.view(config.samples, -1)  # [S, B]
            target = rows["reward"] + rows["discount"] * next_q.mean(0)
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)
        critic_loss = mse(q - target, rows.get("weight"))

        # E-step: weights of the sampled actions, and the dual of the temperature (eq. 4 and 8).
        weights = (next_q / temperature.detach()).softmax(0)
        log_mean_exp = mean((next_q / temperature).logsumexp(0), valid) - math.log(config.samples)
        temperature_loss = temperature * (config.epsilon + log_mean_exp)

        # M-step: the weighted likelihood of the sampled actions, for two Gaussians. One has only the mean of the new
        # policy, and the other has only its standard deviation (2018b, eq. 11).
        new = squashed(nets.actor(view.next_obs)).inner
        new_mean, new_std = Gaussian(new.mean, old.log_std), Gaussian(old.mean, new.log_std)
        log_probs = new_mean.log_prob(sampled) + new_std.log_prob(sampled)
        policy_loss = -mean((weights * log_probs).sum(0), valid)
        mean_kl, std_kl = mean(old.kl(new_mean), valid), mean(old.kl(new_std), valid)
        penalty = mean_weight.detach() * mean_kl + std_weight.detach() * std_kl
        dual_loss = mean_weight * (config.epsilon_mean - mean_kl.detach())
        dual_loss = dual_loss + std_weight * (config.epsilon_std - std_kl.detach())
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
        if (counts.opt_steps + 1) % self.config.target_period == 0:
            self.params.follow(1.0)
        metrics = dict(found)
        return Update(metrics, by_step(metrics.pop("td_error"), batch))

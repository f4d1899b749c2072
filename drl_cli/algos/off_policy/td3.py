"""TD3 (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv 1802.09477).

TD3 is DDPG with three changes, which reduce the overestimation of values. There are two critics, and the target uses
the smaller value of both. The action in the target gets noise. The actor is updated less often than the critics.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, per_sequence
from drl_cli.algos.off_policy._actors import DeterministicPolicy, NoiseConfig, Random
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(NoiseConfig):
    """The options of TD3: exploration noise, and the three changes to DDPG.

    `target_noise` is the standard deviation of the noise on the target's action, which is clipped to `noise_clip`.
    `actor_period` is the number of critic updates for each update of the actor and of the target networks.
    """

    tau: Fraction
    target_noise: NonNegative
    noise_clip: NonNegative
    actor_period: Count


class Policy(DeterministicPolicy):
    """The deterministic actor of TD3, with exploration noise."""


class Algorithm(Learner):
    """Learns the actor and the critics from batches."""

    has_own_weights = False

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.size = spec.action.size
        actor, self.critic = self.mlp(self.size), self.critics(outputs=1, actions=self.size, ensemble=2)
        self.build(policy=("actor",), lr=config.lr, targets=("actor", "critic"), actor=actor, critic=self.critic)
        self.noise = self.params.generator("noise", self.seed + 1)  # `seed` itself draws initial weights
        self.critic_gradients = Gradients(self.params, self.critic_loss, self.context, *self.encoder.parts, "critic")
        self.actor_gradients = Gradients(self.params, self.actor_loss, self.context, "actor")

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the critics' mean squared Bellman errors (algorithm 1), and a dict of metrics and columns.

        The columns are `td_error` `[B]`, which becomes the new priorities, and `features` `[B, F]`, the features of
        `obs` for the actor's loss.
        """
        config, view = self.config, self.see(nets, rows)
        with torch.no_grad():
            next_obs = self.see_target(nets, rows, view).next_obs
            noise = (config.target_noise * random["action"]).clamp(-config.noise_clip, config.noise_clip)
            next_action = (nets.target.actor(next_obs).tanh() + noise).clamp(-1.0, 1.0)
            next_qs = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)  # [2, B]
            next_value = self.next_value(rows, next_action, next_qs.amin(0))
            target = rows["reward"] + rows["discount"] * next_value
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": mean(q, rows.get("valid_weight"))}
        return loss, metrics | {"td_error": (q - target).abs().mean(0), "features": view.obs}

    def next_value(self, rows: Batch, next_action: Tensor, next_q: Tensor) -> Tensor:
        """Return the value `[B]` of the next state for the critics' target. Here, this value is `next_q`.

        `next_q` `[B]` is the smaller value that the two target critics give to `next_action` `[B, A]`. A subclass
        overrides this method to change the value of the next state.
        """
        return next_q

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the actor, and a dict with this loss as a metric.

        The loss is minus the mean value that the first critic gives to the actor's actions (algorithm 1).
        """
        features = rows["features"]
        q = nets.frozen.critic(features, nets.actor(features).tanh(), random["masks"], first=1).squeeze(-1)
        loss = -mean(q, rows.get("valid_weight"))
        return loss, {"actor_loss": loss}

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        num = len(rows["reward"])
        random: Random = {"action": self.context.randn(num, self.size, self.noise)}
        random |= self.critic_masks(self.critic, num, self.noise)
        loss, found = self.critic_gradients(rows, random)
        self.optimizer.step(loss, parts=self.critic_gradients.parts)
        metrics = dict(found)
        td_error, rows["features"] = metrics.pop("td_error"), metrics.pop("features")
        if counts.opt_steps % self.config.actor_period == 0:
            loss, found = self.actor_gradients(rows, random)
            self.optimizer.step(loss, parts=("actor",))
            self.params.follow(self.config.tau)
            metrics |= found
        return Update(metrics, priorities=per_sequence(td_error, batch))

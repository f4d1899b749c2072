"""TD3 (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv 1802.09477).

TD3 has a deterministic actor and twin critics. Three changes to DDPG reduce the overestimation of values. The target is
the minimum of both target critics, its action gets noise, and the actor is updated less often than the critics.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, by_step
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
    """Options of TD3."""

    tau: Fraction
    target_noise: NonNegative
    noise_clip: NonNegative
    actor_period: Count


class Policy(DeterministicPolicy):
    """The deterministic actor, with exploration noise."""


class Algorithm(Learner):
    """Learns actor and critics in a trainer."""

    has_own_weights = False

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.size = spec.action.size
        actor, self.critic = self.mlp(self.size), self.critics(1, self.size, ensemble=2)
        self.build(("actor",), config.lr, targets=("actor", "critic"), actor=actor, critic=self.critic)
        self.noise = self.params.generator("noise", self.seed + 1)
        self.critic_gradients = Gradients(self.params, self.critic_loss, self.context, *self.encoder.parts, "critic")
        self.actor_gradients = Gradients(self.params, self.actor_loss, self.context, "actor")

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared Bellman error of both critics (algorithm 1), and a dict with metrics and columns.

        The columns are the priorities `td_error` `[B]`, and `features` `[B, F]` of `obs` for the actor's loss.
        """
        config, view = self.config, self.see(nets, rows)
        with torch.no_grad():
            next_obs = self.see_target(nets, rows, view).next_obs
            smoothing = (config.target_noise * random["action"]).clamp(-config.noise_clip, config.noise_clip)
            next_action = (nets.target.actor(next_obs).tanh() + smoothing).clamp(-1.0, 1.0)
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1).amin(0)
            target = rows["reward"] + rows["discount"] * self.next_value(rows, next_action, next_q)
        q = nets.critic(view.learned, rows["action"], random["masks"]).squeeze(-1)  # [2, B]
        loss = twin_critics(q, target, rows.get("weight"))
        metrics = {"critic_loss": loss, "q_mean": mean(q, rows.get("valid_weight"))}
        return loss, metrics | {"td_error": (q - target).abs().mean(0), "features": view.obs}

    def next_value(self, rows: Batch, next_action: Tensor, next_q: Tensor) -> Tensor:
        """Return the value `[B]` of the next state, given the target's action `[B, A]` and its Q value `[B]`.

        `next_q` is the smaller value of the two target critics. Subclasses may change this value.
        """
        return next_q

    def actor_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss: minus the first critic's mean value of the actor's actions (algorithm 1)."""
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
        return Update(metrics, by_step(td_error, batch))

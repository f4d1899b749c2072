"""The base of SAC for continuous and for discrete actions (Haarnoja et al. 2018, arXiv 1812.05905).

Both algorithms have an actor, twin critics with target networks, and a learned temperature.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head, LearnerConfig, NetworkAlgorithm
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Fraction, Positive

TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True)
class SoftConfig(LearnerConfig):
    """Options that `sac` and `sac_discrete` share."""

    alpha_lr: Positive
    tau: Fraction
    initial_alpha: Positive


class SoftActorCritic(NetworkAlgorithm):
    """Learns actor, critics and temperature in a trainer. The encoder learns only from the critics' loss."""

    critic_times = 1
    """Number of inputs that a critic gets for each row of a batch."""

    def build_heads(self, config: SoftConfig, actor: Head, critic: Head) -> None:
        """Make the actor, the critics, the target networks and the temperature."""
        self.tau = config.tau
        parts: dict[str, Head | int] = {"actor": actor, "critic": critic, "log_alpha": 1}
        heads = self.build(parts, policy=("actor",), lr=config.lr, lrs={"log_alpha": config.alpha_lr})
        self.actor, self.critic = heads["actor"], heads["critic"]
        self.target = self.target_of("critic", self.critic)
        self.log_alpha, self.d_log_alpha = self.params["log_alpha"].flat, self.params["log_alpha"].grad
        self.log_alpha.fill_(float(np.log(config.initial_alpha)))

    def update(self, batch: Batch, counts: Counts) -> Update:
        view, rows = self.see(batch, self.critic, self.critic_times)
        rows["next_obs"], rows["target_next_obs"] = view.next_obs, self.see_target(batch, view).next_obs
        self.draw(rows)
        metrics, td_error, d_obs = self.gradients(rows)
        self.step(view, d_obs, metrics["critic_loss"], metrics["actor_loss"])
        self.params.follow(self.tau)
        return Update(metrics, self.by_step(td_error, batch))

    def draw(self, rows: dict[str, Any]) -> None:  # Any: a tensor, or a dict of tensors
        """Add columns to `rows`: the random numbers for `gradients`."""

    @abstractmethod
    def gradients(self, rows: Batch) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Write all gradients; return metrics, |TD error| `[N]`, and d critic loss/d features `[N, F]`.

        The last of these is None if the encoder has no parameters to train.
        """

    def metrics(
        self, critic_loss: Tensor, actor_loss: Tensor, alpha: Tensor, entropy: Tensor, q: Tensor
    ) -> dict[str, Tensor]:
        """Return an update's metrics. `alpha` is `[1]`, `entropy` is `[N]`, and `q` is `[2, N]`."""
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "alpha": alpha.squeeze()}
        return metrics | {"entropy": entropy.mean(), "q_mean": q.mean()}

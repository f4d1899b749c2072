"""Soft actor-critic: what SAC for continuous and for discrete actions have in common (Haarnoja et al. 2018).

arXiv 1812.05905: an actor, twin critics with targets that follow them, and a temperature that is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head, LearnerConfig, NetworkAlgorithm
from drl_cli.utils.ranges import Fraction, Positive

if TYPE_CHECKING:
    from torch import Tensor

TABLES = ("uniform", "prioritized", "sequences")
"""The samplers of the replay that they learn from."""


@dataclass(frozen=True)
class SoftConfig(LearnerConfig):
    """Options of both."""

    alpha_lr: Positive
    tau: Fraction
    initial_alpha: Positive


class SoftActorCritic(NetworkAlgorithm):
    """What the encoder of images or sequences learns, it learns from the critics.

    `gradients` returns metrics, |TD error| `[N]` and, where the encoder learns, d critic loss/d obs `[N, F]`.
    """

    critic_times = 1
    """How many rows of the critic one row of a batch makes."""

    def build_heads(self, config: SoftConfig, actor: Head, critic: Head) -> None:
        """Make actor, critic, target and temperature."""
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

    def draw(self, rows: dict[str, Any]) -> None:  # Any: as in Batch
        """Put the random numbers of an update into its rows."""

    def metrics(
        self, critic_loss: Tensor, actor_loss: Tensor, alpha: Tensor, entropy: Tensor, q: Tensor
    ) -> dict[str, Tensor]:
        """What is reported of an update: alpha is `[1]`, entropy `[N]`, q `[2, N]`."""
        return {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "alpha": alpha.squeeze(),
            "entropy": entropy.mean(),
            "q_mean": q.mean(),
        }

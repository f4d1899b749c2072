"""XQC (Palenicek et al. 2025, "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning").

The paper is arXiv 2509.25174. XQC is SAC whose critics have batch norm, weights of norm 1, and a categorical
distribution of the return. As in CrossQ, (s, a) and (s', a') form one batch; unlike CrossQ, XQC has target networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import BatchNormPolicy, Random, check_rows, check_support
from drl_cli.algos.off_policy._soft import SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import categorical_critic
from drl_cli.losses.distributional import cross_entropy, project
from drl_cli.optim.gradients import Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction

ACTIONS = ("box",)


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Options of XQC."""

    tau: Fraction
    momentum: Fraction
    atoms: Count
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


class Policy(BatchNormPolicy):
    """The tanh-Gaussian actor."""


class UnitOptimizer(Optimizer):
    """Scales the incoming weights of every unit of the critics to norm 1 after each step that changes the critics."""

    def step(self, *losses: Tensor, parts: Sequence[str] = ()) -> None:
        super().step(*losses, parts=parts)
        if "critic" in parts or not parts:
            critic: Any = self.params.modules["critic"]
            critic.scale_to_unit_norm()
            self.params.changed(("critic",))


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer."""

    optimizer_class = UnitOptimizer

    def setup(self, config: Config, spec: EnvSpec) -> None:
        check_rows(config.name, self.context)
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.context.device)
        super().setup(config, spec)
        if config.target_entropy is None:
            self.target_entropy = -0.5 * spec.action.size

    def make_critics(self) -> Any:
        from drl_cli.networks import categorical  # imports torch

        inputs = self.encoder.size + self.size
        return categorical.CategoricalCritics(self.network, inputs, 2, self.config.momentum, self.config.atoms)

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy of both critics with the target, summed over the critics.

        Both forward passes evaluate the joined batch of (s, a) and (s', a'). The target has the distribution of the
        critic with the smaller mean.
        """
        view, num = self.see(nets, rows), len(rows["reward"])
        support, discount = self.support, rows["discount"]
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
            action, target_view = torch.cat([rows["action"], next_action]), self.see_target(nets, rows, view)
            target_features = torch.cat([target_view.obs, target_view.next_obs])
            next_probs = nets.target.critic(target_features, action, True)[:, num:].softmax(-1)  # [2, B, K]
            lower = (next_probs @ support).argmin(0)
            next_probs = next_probs[lower, torch.arange(num, device=lower.device)]  # [B, K]
            target = project(next_probs, rows["reward"] - discount * cost, discount, support)
        logits = nets.critic(torch.cat([view.learned, view.next_obs]), action, True)[:, :num]
        loss = torch.stack([categorical_critic(one, target, rows.get("weight")) for one in logits]).sum()
        q_mean, divergence = (logits.softmax(-1) @ support).mean(), cross_entropy(logits, target)[2]
        metrics = {"critic_loss": loss, "q_mean": q_mean, "td_error": divergence.clamp(min=0.0).mean(0)}
        return loss, metrics | {"features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: a network
        """Return the smaller of the two critics' mean returns, `[B]`. Batch norm uses its running statistics."""
        value: Tensor = (critic(features, action).softmax(-1) @ self.support).amin(0)
        return value

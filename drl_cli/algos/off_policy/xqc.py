"""XQC (Palenicek et al. 2025, "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning").

The paper is arXiv 2509.25174. XQC is SAC whose critics have batch norm, weights of norm 1, and a categorical
distribution of the return as output. As in CrossQ, the critics evaluate (s, a) and (s', a') in one joined batch. Unlike
CrossQ, XQC has target networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import Batch
from drl_cli.algos.off_policy._actors import BatchNormPolicy, Random, check_one_trainer, check_support
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
    """The options of XQC: those of SAC, the `momentum` of batch norm, and the critics' support.

    The support consists of `atoms` equally spaced returns from `v_min` to `v_max`.
    """

    tau: Fraction
    momentum: Fraction
    atoms: Count
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


class Policy(BatchNormPolicy):
    """The stochastic actor of SAC, without batch norm."""


class UnitOptimizer(Optimizer):
    """An optimizer that scales weights to norm 1 after each step of a module with a method `scale_to_unit_norm`."""

    def step(self, *losses: Tensor, parts: Sequence[str] = ()) -> None:
        super().step(*losses, parts=parts)
        for name, module in self.params.modules.items():
            scale = getattr(module, "scale_to_unit_norm", None)
            if scale is not None and (name in parts or not parts):  # no parts: the step changes all parts
                scale()
                self.params.changed((name,))  # autograd has to know that the weights have changed


class Algorithm(SoftAlgorithm):
    """Learns the actor, the critics and the entropy temperature from batches."""

    optimizer_class = UnitOptimizer

    def setup(self, config: Config, spec: EnvSpec) -> None:
        check_one_trainer(config.name, self.context)
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.context.device)
        super().setup(config, spec)
        if config.target_entropy is None:
            self.target_entropy = -0.5 * spec.action.size

    def make_critics(self) -> Any:
        from drl_cli.networks import categorical  # imports torch

        config, inputs = self.config, self.encoder.size + self.size
        return categorical.CategoricalCritics(
            self.network, inputs, ensemble=2, momentum=config.momentum, outputs=config.atoms
        )

    def critic_loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy with the target, summed over both critics, and a dict with metrics and columns.

        The critics and the target critics evaluate the joined batch of (s, a) and (s', a'), and normalise with its
        statistics. The target comes from the target critic whose mean return is smaller. The columns are `td_error`
        `[B]`, which becomes the new priorities, and `features` `[B, F]`, the features of `obs` for the actor's loss.
        """
        view, num = self.see(nets, rows), len(rows["reward"])
        support, discount, weight = self.support, rows["discount"], rows.get("weight")
        with torch.no_grad():
            next_action, cost = self.next_action(nets, view.next_obs, random)
            action = torch.cat([rows["action"], next_action])  # [2 B, A]
            target_view = self.see_target(nets, rows, view)
            target_features = torch.cat([target_view.obs, target_view.next_obs])
            joined_logits = nets.target.critic(target_features, action, batch_statistics=True)  # [2, 2 B, K]
            next_probs = joined_logits[:, num:].softmax(-1)  # [2, B, K]
            smaller = (next_probs @ support).argmin(0)  # index of the critic with the smaller mean return, [B]
            next_probs = next_probs[smaller, torch.arange(num, device=smaller.device)]  # [B, K]
            target = project(next_probs, rows["reward"] - discount * cost, discount, support)
        features = torch.cat([view.learned, view.next_obs])
        logits = nets.critic(features, action, batch_statistics=True)[:, :num]  # [2, B, K]
        loss = torch.stack([categorical_critic(own, target, weight) for own in logits]).sum()
        q_mean = (logits.softmax(-1) @ support).mean()
        _loss, _gradient, divergence = cross_entropy(logits, target)
        td_error = divergence.clamp(min=0.0).mean(0)  # rounding can make a divergence negative
        return loss, {"critic_loss": loss, "q_mean": q_mean, "td_error": td_error, "features": view.obs}

    def value(self, critic: Any, features: Tensor, action: Tensor, random: Random) -> Tensor:  # Any: a network
        """Return the smaller mean return of the two critics, `[B]`. Batch norm uses its running statistics."""
        probs = critic(features, action).softmax(-1)  # [2, B, K]
        value: Tensor = (probs @ self.support).amin(0)
        return value

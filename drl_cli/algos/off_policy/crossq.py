"""CrossQ (Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning", arXiv 1902.05605).

CrossQ is SAC without target networks. The critics have batch renormalisation. They evaluate (s, a) and (s', a') in one
joined batch, so that the same batch statistics normalise both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy._shared import check_batch_norm, check_one_trainer
from drl_cli.algos.off_policy.sac import policy
from drl_cli.api import torch
from drl_cli.networks.batch_renorm import RenormCritics

ACTIONS = ("box",)
check = check_batch_norm
__all__ = ["Algorithm", "Config", "check", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of CrossQ: those of SAC, and the options of batch renormalisation.

    `momentum` is the weight of a batch's statistics in each update of the running statistics. During the first
    `warm_up` updates, batch renormalisation is ordinary batch normalisation.
    """

    lr: drl.Positive
    alpha_lr: drl.Positive
    initial_alpha: drl.Positive
    target_entropy: float | None
    actor_period: drl.Count
    momentum: drl.Fraction
    warm_up: drl.Natural


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return SAC's networks with other critics, which draw their weights first."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    options = {"momentum": config.momentum, "warm_up": config.warm_up}
    critic = RenormCritics(network, encoder.size + size, ensemble=2, **options)
    actor = drl.MLP(encoder.size, 2 * size, network)
    log_alpha = drl.Scalar(math.log(config.initial_alpha))
    return {"encoder": encoder, "actor": actor, "critic": critic, "log_alpha": log_alpha}


class Algorithm(sac.Algorithm):
    """Learns the critics and, after their step, the actor and the temperature."""

    targets = ()  # type: ignore[assignment]  # SAC has two
    has_own_weights = False

    def __init__(self, config: Any, network: Any, spec: Any, seed: int, context: drl.Context) -> None:
        check_one_trainer(config.name, context)
        super().__init__(config, network, spec, seed, context)

    def part(self, name: str) -> drl.Part:
        """Return the learning rate of a network, with the paper's betas of Adam for all but the temperature."""
        has_betas = name != "log_alpha" and self.context.optimizer.name in ("adam", "adamw")
        return replace(super().part(name), betas=(0.5, 0.999) if has_betas else None)

    def value(self, x: torch.Tensor, action: torch.Tensor, masks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the smaller value of the two critics, `[B]`. The critics normalise with the running statistics."""
        value: torch.Tensor = self.nets.frozen.critic(x, action).amin(0)
        return value

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, rows, seen = self.nets, self.rows(batch), self.nets.encoder.see(batch)
        num, x, is_actors = len(rows["reward"]), seen.obs, counts.opt_steps % self.config.actor_period == 0
        # A loss that is not finite ends the update at a step (trainer.on_nonfinite=skip). All random numbers are drawn
        # before the first step, so that such an update draws as many of them as any other.
        noises = [self.randn(num, self.spec.action.size)[0] for _ in range(2 if is_actors else 1)]

        # The critics evaluate (s, a) and (s', a') in one forward pass, with the statistics of this batch    (figure 1)
        with torch.no_grad():
            next_action, log_prob = drl.TanhGaussian.of(nets.actor(seen.next_obs)).sample_log_prob(noises[0])
            cost = nets.log_alpha().exp() * log_prob
        both_x, both_actions = torch.cat([seen.learned, seen.next_obs]), torch.cat([rows["action"], next_action])
        q, next_q = nets.critic(both_x, both_actions, batch_statistics=True).chunk(2, -1)  # [2, B] each
        target = rows["reward"] + rows["discount"] * (next_q.detach().amin(0) - cost)
        critic_loss = drl.losses.twin_critics(q, target, rows.get("weight"))
        self.optimizer.minimize(critic_loss, "encoder", "critic")
        metrics = {"critic_loss": critic_loss, "q_mean": q.mean()}

        if is_actors:
            loss, more = self.actor_loss(rows, x, noises[1], ())
            self.optimizer.minimize(loss, "actor", "log_alpha")
            metrics |= more
        return drl.Update(metrics, self.per_sequence((q - target).abs().mean(0), batch))

"""IQN (Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", arXiv 1806.06923).

IQN is DQN whose network predicts the quantile of the return at any fraction in (0, 1). The loss is the loss of QR-DQN:
for each transition, it compares `quantiles` predicted quantiles with `target_quantiles` quantiles of the target. Their
fractions are drawn uniformly, one from each of equal intervals of (0, 1), so that the loss has less variance than with
the paper's independent fractions. The policy compares actions by the mean of `policy_quantiles` quantiles, at the
midpoints of equal intervals, which `risk` changes. All options of DQN except `loss` apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.value import _shared, dqn, qr_dqn
from drl_cli.algos.value.dqn import explore, noise
from drl_cli.api import torch
from drl_cli.losses.distributional import distorted_fraction

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy", "priorities"]


@dataclass(frozen=True, kw_only=True)
class Config(qr_dqn.Config):
    """The options of IQN, in addition to the options of QR-DQN."""

    target_quantiles: drl.Count
    policy_quantiles: drl.Count


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. The Q network returns quantiles at any fractions (eq. 4)."""
    encoder, options = drl.encoder(network, spec), {"dueling": config.dueling, "noisy": config.noisy}
    return {"encoder": encoder, "q": drl.ImplicitQNetwork(encoder.size, spec.action.size, network, **options)}


@cache
def policy_fractions(config: Any) -> drl.Array:
    """Return the fractions `[K]` of the quantiles whose mean is a policy's value of an action."""
    return distorted_fraction(drl.losses.midpoints(config.policy_quantiles), config.risk, config.risk_level)


def policy(nets: Any, obs: Any, explore: Mapping[str, Any], config: Any) -> drl.EpsilonGreedy:
    """Return the policy that chooses the action whose quantiles have the largest mean, or explores."""
    quantiles = nets.q(nets.encoder(obs), policy_fractions(config), explore.get("rng"))  # [E, A, K]
    return _shared.greedy(quantiles.mean(-1), obs, explore)


def priorities(config: Any, nets: Any, rows: drl.Columns) -> drl.Array:
    """Return |TD error| `[N]` of the mean returns of new transitions, which workers compute."""
    return _shared.td_errors(config, rows, *(policy(nets, rows[name], {}, config) for name in ("obs", "next_obs")))


class Algorithm(dqn.Algorithm):
    """Learns the implicit quantile network from batches."""

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: Any) -> None:
        super().__init__(config, network, spec, seed, context)
        self.midpoints = torch.from_numpy(drl.losses.midpoints(config.policy_quantiles)).to(context.device)
        self.fraction_generator = self.params.generator("fractions", seed + 3)

    def fractions(self, rows: int, *sizes: int) -> list[torch.Tensor]:
        """Draw fractions `[rows, K]` for each K of `sizes`: each row gets one from each of K intervals of (0, 1)."""
        places = torch.split(self.context.rand(rows, sum(sizes), self.fraction_generator), list(sizes), 1)
        return [(place + torch.arange(place.shape[1], device=place.device)) / place.shape[1] for place in places]

    def loss(self, batch: drl.Batch, rows: drl.Batch) -> tuple[torch.Tensor, drl.Metrics, torch.Tensor]:
        """Return the loss of quantile regression (eq. 3), the metrics, and |TD error| `[N]` of the mean return."""
        config, nets, seen, num = self.config, self.nets, self.nets.encoder.see(batch), len(rows["reward"])
        target_seen, masks = nets.target.encoder.see(batch), self.masks("online", config.quantiles * num)
        noise, target_noise, next_noise = nets.q.noise(3, self.generator)
        fraction, target_fraction = self.fractions(num, config.quantiles, config.target_quantiles)
        with torch.no_grad():
            next_q = nets.target.q(target_seen.next_obs, target_fraction, target_noise)  # [N, A, M]
            chooser = nets.q(seen.next_obs, self.midpoints, next_noise) if config.double else next_q
            target = _shared.target(  # [N, M]
                config,
                rows,
                next_q,
                chooser.mean(-1),
                lambda: nets.target.q(target_seen.obs, self.midpoints, target_noise).mean(-1),
            )
        q = _shared.taken(nets.q(seen.learned, fraction, noise, masks), rows["action"])  # [N, K]
        loss = drl.losses.quantile_critic(q, target, fraction, config.kappa, rows.get("weight"))
        return loss, {"q_loss": loss, "q_mean": q.mean(-1).mean()}, (q.mean(-1) - target.mean(-1)).detach().abs()

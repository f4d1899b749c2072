"""QR-DQN (Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", arXiv 1710.10044).

QR-DQN is DQN whose network predicts K = `quantiles` quantiles of the return for each action, at the fractions
(i + 1/2) / K. The loss is quantile regression on the quantiles of the target. The policy chooses the action whose
quantiles have the largest mean, and `risk` changes their weights. Replay priorities are |TD errors| of the mean return.
All options of DQN apply except `loss`, which `kappa` replaces: the loss is quadratic for errors up to kappa.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

import drl_cli.api as drl
from drl_cli.algos.value import _shared, dqn
from drl_cli.algos.value.dqn import explore, noise
from drl_cli.api import torch
from drl_cli.losses.distributional import distorted_cumulative

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy", "priorities"]


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """The options of QR-DQN, in addition to the options of DQN."""

    quantiles: drl.Count
    kappa: drl.NonNegative
    risk: Literal["mean", "cvar", "power"]
    risk_level: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _shared.check_risk(self)


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return DQN's networks, with K = `quantiles` quantiles for each action."""
    return dqn.networks(config, network, spec, outputs=config.quantiles)


@cache
def weights(config: Any) -> drl.Array:
    """Return the weights `[K]` of the quantiles in a value.

    Each quantile stands for one of K equal intervals of (0, 1). Its weight is 1 / K, unless `risk` changes it.
    """
    ends = np.linspace(0.0, 1.0, config.quantiles + 1, dtype=np.float32)
    return np.diff(distorted_cumulative(ends, config.risk, config.risk_level))


def policy(nets: Any, obs: Any, explore: Mapping[str, Any], config: Any) -> drl.EpsilonGreedy:
    """Return the policy that chooses the action whose quantiles have the largest weighted mean, or explores."""
    values = nets.q.weighted(nets.encoder(obs), weights(config), explore.get("rng"))
    return _shared.greedy(values, obs, explore)


def priorities(config: Any, nets: Any, rows: drl.Columns) -> drl.Array:
    """Return |TD error| `[N]` of the mean returns of new transitions, which workers compute."""
    return _shared.td_errors(config, rows, *(policy(nets, rows[name], {}, config) for name in ("obs", "next_obs")))


class Algorithm(dqn.Algorithm):
    """Learns the quantiles of returns from batches."""

    def __init__(self, config: Any, *args: Any) -> None:
        super().__init__(config, *args)
        self.fraction = torch.from_numpy(drl.losses.midpoints(config.quantiles)).to(self.context.device)

    def loss(self, batch: drl.Batch, rows: drl.Batch) -> tuple[torch.Tensor, drl.Metrics, torch.Tensor]:
        """Return the loss of quantile regression (eq. 10), the metrics, and |TD error| `[N]` of the mean return."""
        config, nets, seen = self.config, self.nets, self.nets.encoder.see(batch)
        target_seen, masks = nets.target.encoder.see(batch), self.masks("online", len(rows["reward"]))
        noise, target_noise, next_noise = nets.q.noise(3, self.generator)
        with torch.no_grad():
            next_q = nets.target.q(target_seen.next_obs, target_noise)  # [N, A, K]
            means = (nets.q(seen.next_obs, next_noise) if config.double else next_q).mean(-1)
            target = _shared.target(  # [N, K]
                config, rows, next_q, means, lambda: nets.target.q(target_seen.obs, target_noise).mean(-1)
            )
        q = _shared.taken(nets.q(seen.learned, noise, masks), rows["action"])  # [N, K]
        loss = drl.losses.quantile_critic(q, target, self.fraction, config.kappa, rows.get("weight"))
        return loss, {"q_loss": loss, "q_mean": q.mean(-1).mean()}, (q.mean(-1) - target.mean(-1)).detach().abs()

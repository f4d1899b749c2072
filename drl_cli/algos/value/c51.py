"""C51 (Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", arXiv 1707.06887).

C51 is DQN whose network predicts a distribution of the return for each action: the probabilities of `atoms` equally
spaced values from `v_min` to `v_max`. The loss is the cross-entropy of this distribution and the projected target. The
policy chooses the action with the largest mean return, unless `risk` selects a risk measure. Replay priorities are KL
divergences (Rainbow, Hessel et al. 2018, arXiv 1710.02298). All options of DQN except `loss` apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np

import drl_cli.api as drl
from drl_cli.algos.value import _shared, dqn
from drl_cli.algos.value.dqn import explore, noise
from drl_cli.api import torch
from drl_cli.losses.distributional import distorted_cumulative, project_numpy, softmax

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION
__all__ = ["Algorithm", "Config", "explore", "networks", "noise", "policy", "priorities"]


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """The options of C51, in addition to the options of DQN. Raise Refused if `v_min` is not below `v_max`."""

    atoms: Annotated[int, drl.Range(least=2)]
    v_min: float
    v_max: float
    risk: Literal["mean", "cvar", "power"]
    risk_level: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _shared.check_risk(self)
        if self.v_min >= self.v_max:
            raise drl.Refused(f"algo.v_min={self.v_min:g} has to be below algo.v_max={self.v_max:g}")


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return DQN's networks, with the logits of K = `atoms` returns for each action."""
    return dqn.networks(config, network, spec, outputs=config.atoms)


@cache
def support(config: Any) -> drl.Array:
    """Return the K returns that a policy considers, `[K]`."""
    return np.linspace(config.v_min, config.v_max, config.atoms, dtype=np.float32)


def expected(config: Any, probs: Any) -> Any:
    """Return the values `[E, A]`: the mean returns. A risk measure changes the probabilities `[E, A, K]` before."""
    if config.risk != "mean":
        cumulative = probs.cumsum(-1).clip(max=1.0)  # the clip removes rounding errors
        distorted = distorted_cumulative(cumulative, config.risk, config.risk_level)
        differences = [distorted[..., :1], distorted[..., 1:] - distorted[..., :-1]]
        probs = (np.concatenate if isinstance(probs, np.ndarray) else torch.cat)(differences, -1)
    returns = support(config)
    return probs @ (returns if isinstance(probs, np.ndarray) else torch.from_numpy(returns))


def policy(nets: Any, obs: Any, explore: Mapping[str, Any], config: Any) -> drl.EpsilonGreedy:
    """Return the policy that chooses the action with the largest mean return, or the largest risk measure `risk`."""
    probs = softmax(nets.q(nets.encoder(obs), explore.get("rng")))
    return _shared.greedy(expected(config, probs), obs, explore)


def priorities(config: Any, nets: Any, rows: drl.Columns) -> drl.Array:
    """Return KL(target || prediction) `[N]` of new transitions. Both use this network, as a policy has no target."""
    index = np.arange(len(rows["action"]))
    probs = softmax(nets.q(nets.encoder(rows["obs"])))[index, rows["action"]]
    best = policy(nets, rows["next_obs"], {}, config).mode
    next_probs = softmax(nets.q(nets.encoder(rows["next_obs"])))[index, best]
    target = project_numpy(next_probs, rows["reward"], rows["discount"], support(config), config.rescale)
    tiny = np.finfo(np.float32).tiny  # makes 0 log 0 equal 0
    divergence: drl.Array = (target * np.log(np.maximum(target, tiny) / np.maximum(probs, tiny))).sum(-1)
    return np.maximum(divergence, 0.0)  # rounding can give a divergence below 0


class Algorithm(dqn.Algorithm):
    """Learns the distributions of returns from batches."""

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: Any) -> None:
        super().__init__(config, network, spec, seed, context)
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=context.device)

    def loss(self, batch: drl.Batch, rows: drl.Batch) -> tuple[torch.Tensor, drl.Metrics, torch.Tensor]:
        """Return the cross-entropy of targets and predictions, the metrics, and KL(target || prediction) `[N]`."""
        config, nets, seen = self.config, self.nets, self.nets.encoder.see(batch)
        target_seen, masks = nets.target.encoder.see(batch), self.masks("online", len(rows["reward"]))
        noise, target_noise, next_noise = nets.q.noise(3, self.generator)

        def mean(logits: torch.Tensor) -> torch.Tensor:
            return logits.softmax(-1) @ self.support

        with torch.no_grad():
            logits = nets.target.q(target_seen.next_obs, target_noise)  # [N, A, K]
            means = mean(nets.q(seen.next_obs, next_noise) if config.double else logits)
            reward, probs = _shared.next_state(
                config, rows, logits.softmax(-1), means, lambda: mean(nets.target.q(target_seen.obs, target_noise))
            )
            # The distribution of reward + discount * next return, projected onto the support    (eq. 7)
            target = drl.losses.project(probs, reward, rows["discount"], self.support, config.rescale)
        logits = _shared.taken(nets.q(seen.learned, noise, masks), rows["action"])  # [N, K]
        cross_entropy = -(target * logits.log_softmax(-1)).sum(-1)
        divergence = cross_entropy.detach() + torch.xlogy(target, target).sum(-1)
        loss = drl.losses.mean(cross_entropy, rows.get("weight"))
        metrics = {"q_loss": loss, "q_mean": mean(logits).mean()}
        return loss, metrics, divergence.clamp(min=0.0)  # rounding can give a divergence below 0

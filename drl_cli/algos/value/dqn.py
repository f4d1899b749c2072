"""Deep Q-Network (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518).

DQN learns a Q network from n-step returns. Options add double DQN (van Hasselt et al. 2016, arXiv 1509.06461), dueling
and noisy layers (networks/q_network.py), softmax targets (_shared.py), and actions from softmax(Q / `temperature`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import drl_cli.api as drl
from drl_cli.algos.value import _shared
from drl_cli.api import torch
from drl_cli.utils.ranges import OR_NULL

ACTIONS, TABLES, EXPLORATION = ("discrete",), ("uniform", "prioritized", "sequences"), ("epsilon", "temperature")


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of DQN, which conf/algo/dqn.yaml explains. Raise Refused if two options do not fit together."""

    lr: drl.Positive
    double: bool
    loss: Literal["huber", "mse"]
    target_period: drl.Count
    epsilon_start: drl.Fraction
    epsilon_end: drl.Fraction
    epsilon_steps: Annotated[drl.Count, OR_NULL]
    epsilon_repeat: drl.Count
    tau: drl.Fraction
    dueling: bool
    noisy: bool
    soft_temperature: drl.NonNegative
    munchausen: drl.Fraction
    munchausen_floor: Annotated[float, drl.Range(most=0)]
    temperature: drl.NonNegative
    rescale: drl.NonNegative

    def __post_init__(self) -> None:
        _shared.check_softmax(self)


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, outputs: int | None = None) -> dict[str, Any]:
    """Return the networks by name. The Q network has a value for each action, or `outputs` numbers."""
    encoder, options = drl.encoder(network, spec), {"dueling": config.dueling, "noisy": config.noisy}
    return {"encoder": encoder, "q": drl.QNetwork(encoder.size, spec.action.size, network, outputs, **options)}


def explore(config: Any, env_steps: int = 0) -> dict[str, float]:
    """Return the exploration values after `env_steps` steps of all workers. Noisy layers explore without epsilon."""
    epsilon = drl.linear(env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps)
    values = {"epsilon": 0.0 if config.noisy else epsilon, "temperature": config.temperature}
    return values if config.temperature else {"epsilon": values["epsilon"]}


def noise(config: Any, spec: drl.EnvSpec) -> drl.Noise | None:
    """Return what repeats random actions for up to `epsilon_repeat` steps, or None."""
    return drl.Repeats(config.epsilon_repeat) if config.epsilon_repeat > 1 else None


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.EpsilonGreedy:
    """Return the policy that chooses the action with the largest value, or explores."""
    return _shared.greedy(nets.q(nets.encoder(obs), explore.get("rng")), obs, explore)


def priorities(config: Any, nets: Any, rows: drl.Columns) -> drl.Array:
    """Return |TD error| `[N]` of new transitions, which workers compute."""
    return _shared.td_errors(config, rows, policy(nets, rows["obs"], {}), policy(nets, rows["next_obs"], {}))


class Algorithm(drl.Algorithm):
    """Learns the Q network from batches."""

    policy_parts, targets = ("encoder", "q"), ("encoder", "q")

    def compared(self, batch: drl.Batch, rows: drl.Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Q(s, .) `[N, A]`, and y = r + d Q'(s', argmax_a Q'(s', a)) `[N]`, or argmax_a Q(s', a) if double."""
        config, nets, masks = self.config, self.nets, self.masks("online", len(rows["reward"]))
        seen, target_seen = nets.encoder.see(batch), nets.target.encoder.see(batch)
        noise, target_noise, next_noise = nets.q.noise(3, self.generator)
        with torch.no_grad():
            next_q = nets.target.q(target_seen.next_obs, target_noise)  # [N, A]
            means = nets.q(seen.next_obs, next_noise) if config.double else next_q
            target = _shared.target(config, rows, next_q, means, lambda: nets.target.q(target_seen.obs, target_noise))
        return nets.q(seen.learned, noise, masks), target

    def loss(self, batch: drl.Batch, rows: drl.Batch) -> tuple[torch.Tensor, drl.Metrics, torch.Tensor]:
        """Return the loss of a batch, the metrics, and the replay priorities, |TD error| `[N]`."""
        values, target = self.compared(batch, rows)
        q = _shared.taken(values, rows["action"])
        loss = _shared.td_loss(self.config, q - target, rows.get("weight"))
        return loss, {"q_loss": loss, "q_mean": q.mean()}, (q - target).detach().abs()

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        loss, metrics, priorities = self.loss(batch, self.rows(batch))
        self.optimizer.minimize(loss)
        if (counts.opt_steps + 1) % self.config.target_period == 0:  # + 1 counts the step just made
            self.params.follow(self.config.tau)
        return drl.Update(metrics, self.per_sequence(priorities, batch))

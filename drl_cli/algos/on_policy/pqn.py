"""PQN (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", arXiv 2407.04811): Q(lambda) on rollouts.

PQN is Q-learning without replay and target network. Layer norm (conf/algo/pqn.yaml) stabilises the Q network. A batch
is a rollout of epsilon-greedy actions. An update computes its Q(lambda) targets once, and then makes several epochs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import drl_cli.api as drl
from drl_cli.algos.epochs import Epochs, Minibatches
from drl_cli.api import torch
from drl_cli.replay.frames import unjoined

ACTIONS = ("discrete",)
TABLES = ("fifo-once",)
EXPLORATION = ("epsilon",)


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of PQN, which conf/algo/pqn.yaml explains."""

    lr: drl.Positive
    n_step: Literal[1]
    epochs: drl.Count
    minibatch_size: drl.Count | None
    seq_len: drl.Count
    q_lambda: drl.Fraction
    epsilon_start: drl.Fraction
    epsilon_end: drl.Fraction
    epsilon_steps: drl.Count


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. The Q network has a value for each action."""
    encoder = drl.encoder(network, spec)
    return {"encoder": encoder, "q": drl.MLP(encoder.size, spec.action.size, network)}


def explore(config: Any, env_steps: int = 0) -> dict[str, float]:
    """Return epsilon after `env_steps` steps of all workers."""
    return {"epsilon": drl.linear(env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps)}


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.EpsilonGreedy:
    """Return the policy that chooses the action with the largest value or, with probability epsilon, a random one."""
    return drl.EpsilonGreedy(nets.q(nets.encoder(obs)), explore.get("epsilon", 0.0), drl.action_mask(obs))


class Algorithm(drl.Algorithm):
    """Learns the Q network from rollouts."""

    policy_parts = ("encoder", "q")
    is_one_step = has_noise = False

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: drl.Context):
        super().__init__(config, network, spec, seed, context)
        self.minibatches = Minibatches(self, self.loss, dropout="q")

    def loss(
        self, nets: Any, x: torch.Tensor, rows: drl.Batch, masks: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, drl.Metrics]:
        """Return half the mean squared error of Q(s, a) in a minibatch, and metrics. `x` `[M, F]` are features."""
        q = nets.q(x, masks).gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)  # [M]
        loss = drl.losses.mean(0.5 * (q - rows["target"]).square(), rows.get("weight"))
        return loss, {"q_loss": loss, "q_mean": drl.losses.mean(q, rows.get("weight"))}

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        rollout = self.minibatches.rollout(batch)
        epochs = Epochs(self.minibatches, rollout)

        # targets: lambda-returns with V(s') = max_a Q(s', a)
        with torch.no_grad():
            _, next_x = rollout.features()
            mask = drl.action_mask(unjoined(batch)["next_obs"])
            next_value = drl.permitted(self.nets.q(next_x), mask).amax(-1)
            steps = (batch["reward"], batch["discount"], next_value, batch["cut"])
            rollout.rows["target"] = drl.losses.lambda_returns(*steps, self.config.q_lambda)

        for _ in range(self.config.epochs):
            epochs.run()  # a gradient step with each minibatch
        return epochs.update({})

"""PQN (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", arXiv 2407.04811): Q(lambda) on rollouts.

PQN is Q-learning without replay and target network. Layer norm (conf/algo/pqn.yaml) stabilises the Q network. A batch
is a rollout of epsilon-greedy actions. An update computes its Q(lambda) targets once, and then makes several epochs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.algos.base import Batch
from drl_cli.algos.on_policy._base import Metrics, OnPolicy, OnPolicyConfig
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.losses.critics import mean
from drl_cli.losses.policy import permitted
from drl_cli.losses.returns import lambda_returns
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.optim.gradients import Nets
from drl_cli.optim.schedules import linear
from drl_cli.replay.stacks import unjoined
from drl_cli.types import Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Fraction

ACTIONS = ("discrete",)
TABLES = ("fifo-once",)
EXPLORATION = ("epsilon",)


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """The options of PQN, which conf/algo/pqn.yaml explains."""

    q_lambda: Fraction
    epsilon_start: Fraction
    epsilon_end: Fraction
    epsilon_steps: Count


class Policy(NetworkPolicy):
    """Acts epsilon-greedily: a random action with probability epsilon, else the action with the largest Q value."""

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.explore({"epsilon": config.epsilon_start})

    def explore(self, values: Mapping[str, Any]) -> None:  # Any: a float, or an array
        self.epsilon = values["epsilon"]

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        values, memory = self.forward(obs, last)
        is_random = self.rng.random(len(values)) < self.epsilon
        best = permitted(values, action_mask(obs)).argmax(-1)
        return {"action": np.where(is_random, self.draw(obs), best), **memory}


class Algorithm(OnPolicy):
    """Trains the Q network from rollouts."""

    config: Config
    dropout_part = "q"

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.q = self.mlp(spec.action.size)
        self.build(policy=("q",), lr=config.lr, q=self.q)

    def prepare(self, batch: Batch, rollout: EncodedRollouts) -> Metrics:
        """Store the Q(lambda) targets of N transitions as the column `target` `[N]` of `rollout.rows`; return {}.

        The targets are lambda-returns with V(next_obs) = max_a Q(next_obs, a) over the legal actions.
        """
        _, next_features = rollout.features()
        next_mask = action_mask(unjoined(batch)["next_obs"])
        next_value = permitted(self.q(next_features), next_mask).amax(-1)
        reward, discount, cut = batch["reward"], batch["discount"], batch["cut"]
        rollout.rows["target"] = lambda_returns(reward, discount, next_value, cut, self.config.q_lambda)
        return {}

    def loss(self, nets: Nets, rows: Batch, masks: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        """Return the scalar loss of a minibatch, half the mean squared error of Q(s, a), and metrics."""
        weight = rows.get("weight")
        values = nets.q(self.features(nets, rows), masks)  # [M, A]
        q = values.gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)  # Q of the chosen actions, [M]
        loss = mean(0.5 * (q - rows["target"]).square(), weight)
        return loss, {"q_loss": loss, "q_mean": mean(q, weight)}

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        config = self.config
        epsilon = linear(env_steps, start=config.epsilon_start, end=config.epsilon_end, length=config.epsilon_steps)
        return {"epsilon": epsilon}

"""PQN (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", arXiv 2407.04811): Q(lambda) on rollouts.

PQN has neither replay nor a target network: layer norm stabilises the Q network. Each batch is a rollout of
epsilon-greedy actions. An update computes Q(lambda) targets once, and makes several epochs of minibatches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import LearnerConfig, NetworkAlgorithm
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.algos.stacks import unjoined
from drl_cli.losses.policy import permitted
from drl_cli.losses.returns import lambda_returns_of_tensors
from drl_cli.losses.value import half_square
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.optim.optimizer import NotFinite
from drl_cli.optim.schedules import linear
from drl_cli.types import Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction

ACTIONS = ("discrete",)
TABLES = ("fifo-once",)
EXPLORATION = ("epsilon",)


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """Options of PQN."""

    n_step: Literal[1]
    q_lambda: Fraction
    epochs: Count
    minibatch_size: Count | None
    seq_len: Count
    epsilon_start: Fraction
    epsilon_end: Fraction
    epsilon_steps: Count


class Policy(NetworkPolicy):
    """Chooses the action with the largest value, or with probability epsilon a random action."""

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


class Algorithm(NetworkAlgorithm):
    """Learns Q values in a trainer."""

    is_one_step = False

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config = config
        self.q = self.build({"q": self.head(spec.action.size)}, ("q",), config.lr)["q"]
        self.shuffle = self.params.generator("shuffle", self.seed + 1, on_cpu=True)
        self.step_of = self.context.chained(self._step, self)

    def update(self, batch: Batch, counts: Counts) -> Update:
        config = self.config
        rollout = EncodedRollouts(batch, self.encoder, self.context.group, config.seq_len)
        rollout.rows["target"] = self.targets(batch, rollout)
        size = config.minibatch_size or rollout.num * self.context.group.size
        epochs = (rows for _ in range(config.epochs) for rows in rollout.minibatches(self.shuffle, size))
        steps = [self.step_of(minibatch) for minibatch in epochs]
        done = [step for step in steps if step]
        means = {name: torch.stack([step[name] for step in done]).mean() for name in done[0]} if done else {}
        return Update(means, steps=len(done), skipped=len(steps) - len(done))

    def targets(self, batch: Batch, rollout: EncodedRollouts) -> Tensor:
        """Return the Q(lambda) targets of all rows, `[N]`: lambda-returns with V(next_obs) = max_a Q(next_obs, a)."""
        next_q = self.q.forward(rollout.features()[1])[0][0]
        next_value = permitted(next_q, action_mask(unjoined(batch)["next_obs"])).amax(-1)
        steps = (batch["reward"], batch["discount"], next_value, batch["cut"])
        return lambda_returns_of_tensors(*steps, self.config.q_lambda)

    def _step(self, minibatch: Batch) -> dict[str, Tensor]:
        """Make one gradient update from a minibatch `[M, ...]`; return metrics, or {} if the update was skipped."""
        view, rows = self.see(minibatch) if self.encoder.is_trainable else (None, dict(minibatch))
        rows["drop"] = self.masks(self.q, rows["target"], is_mine=rows.pop("is_mine", None))
        metrics, d_obs = self.gradients(rows)
        try:
            self.step(view, d_obs, metrics["q_loss"])
        except NotFinite:
            return {}
        return metrics

    def gradients(self, rows: Batch) -> tuple[dict[str, Tensor], Tensor | None]:
        """Write the gradient of half the squared error; return metrics, and d loss/d features or None."""
        learns, share, action = self.encoder.is_trainable, rows.get("valid_weight"), rows["action"].unsqueeze(-1)
        out, trace = self.q.forward(rows["obs"], rows["drop"])
        q = out[0].gather(-1, action).squeeze(-1)
        loss, slope = half_square(q - rows["target"])
        if share is not None:
            loss, slope, q = share * loss, share * slope, share * q
        d_out = torch.zeros_like(out[0]).scatter_(-1, action, slope.unsqueeze(-1) / len(q)).unsqueeze(0)
        d_obs = self.q.backward(trace, d_out, to_inputs=learns)
        return {"q_loss": loss.mean(), "q_mean": q.mean()}, d_obs if learns else None

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        config = self.config
        return {"epsilon": linear(env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps)}

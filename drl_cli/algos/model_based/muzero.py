"""MuZero (Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model").

The paper is arXiv 1911.08265. MuZero learns a model of the environment that predicts latent states, rewards, values and
policies. In each step, a tree search with this model (PUCT, with Dirichlet noise at the root) counts how often it
visits each action. The action is sampled from these visit counts, with a temperature that falls during the run. The
model learns the rewards, the visit counts as the policy, and n-step returns as the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.model_based._learner import ModelConfig, ModelLearner
from drl_cli.algos.model_based._policy import SearchPolicy, legal_actions, num_rows, stored
from drl_cli.optim.schedules import linear
from drl_cli.search.formulas import Puct
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Fraction, NonNegative, Positive

if TYPE_CHECKING:
    from drl_cli.search.model import Model
    from drl_cli.search.run import Found

ACTIONS = ("discrete",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")
EXPLORATION = ("temperature",)


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """The options of MuZero, which conf/algo/muzero.yaml explains."""

    noise_alpha: Positive
    noise_share: Fraction
    temperature_start: NonNegative
    temperature_end: NonNegative


class Policy(SearchPolicy):
    """Chooses actions by MuZero's search. For exploration, the root's prior has Dirichlet noise.

    An exploring action is drawn with a probability proportional to visits^(1 / temperature).
    """

    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:
        from drl_cli.search.run import sample_visits  # imports torch

        if not explores:
            found = search(self.config, self.model, obs, None)
            return found.action, found
        rows = num_rows(obs)
        noise = self.rng.dirichlet([self.config.noise_alpha] * self.action.size, rows)
        found = search(self.config, self.model, obs, noise)
        temperature = self.exploration.get("temperature", self.config.temperature_start)
        action = sample_visits(found.policy, temperature, self.rng.random(rows))
        return action, found


class Algorithm(ModelLearner):
    """Trains the learned model. Its search, for re-analysis, does not explore."""

    def search(self, model: Model, obs: Any) -> dict[str, Tensor]:
        return stored(search(self.config, model, obs, None))

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        start, end = self.config.temperature_start, self.config.temperature_end
        return {"temperature": linear(env_steps, start=start, end=end, length=self.context.total_env_steps)}


def search(config: Any, model: Model, obs: Any, noise: Array | None) -> Found:  # Any: Config, and observations
    """Make one tree search for each of the observations `[N, ...]`; return the results.

    `noise` `[N, A]` is Dirichlet noise for exploration, or None. `config.simulations` is the number of simulations.
    """
    from drl_cli.search.run import puct  # imports torch

    rule = Puct(noise_share=config.noise_share)
    return puct(model, obs, config.simulations, rule, noise=noise, legal=legal_actions(obs))

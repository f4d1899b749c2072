"""MuZero (Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model", arXiv
1911.08265).

MuZero learns a model of the environment in latent states: representation, dynamics and prediction. A tree search with
the model (PUCT), with Dirichlet noise at the root, counts the visits of each action. The action is sampled from the
visit counts, with a temperature that falls during the run. The model learns the rewards, the visit counts, and n-step
returns that bootstrap from the values of searches.
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
    """Options of MuZero."""

    noise_alpha: Positive
    noise_share: Fraction
    temperature_start: NonNegative
    temperature_end: NonNegative


class Policy(SearchPolicy):
    """Explores by noise on the root's prior, and by drawing actions in proportion to visits^(1 / temperature)."""

    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:
        from drl_cli.search.run import sample_visits  # imports torch

        if not explores:
            found = search(self.config, self.model, obs, None)
            return found.action, found
        rows = num_rows(obs)
        noise = self.rng.dirichlet([self.config.noise_alpha] * self.action.size, rows)
        found = search(self.config, self.model, obs, noise)
        temperature = self.exploration.get("temperature", self.config.temperature_start)
        return sample_visits(found.policy, temperature, self.rng.random(rows)), found


class Algorithm(ModelLearner):
    """Learns the model in a trainer."""

    def search(self, model: Model, obs: Any) -> dict[str, Tensor]:
        return stored(search(self.config, model, obs, None))

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        start, end = self.config.temperature_start, self.config.temperature_end
        return {"temperature": linear(env_steps, start, end, self.context.total_env_steps)}


def search(
    config: Any, model: Model, obs: Any, noise: Array | None
) -> Found:  # Any: Config, a tensor or dict of tensors
    """Search from observations `[N, ...]` with Dirichlet noise `[N, A]`, or None for no noise; return the results."""
    from drl_cli.search.run import puct  # imports torch

    return puct(model, obs, config.simulations, Puct(noise_share=config.noise_share), noise, legal_actions(obs))

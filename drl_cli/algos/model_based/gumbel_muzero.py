"""Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel", ICLR).

MuZero (Schrittwieser et al. 2020, arXiv 1911.08265) learns a model of the environment in latent states: representation,
dynamics and prediction. A tree search with the model finds each action. Gumbel MuZero samples the root's candidate
actions without replacement and divides the simulations among them by sequential halving. The policy learns from the
values of the search. As few as 2 simulations improve the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.model_based._learner import ModelConfig, ModelLearner
from drl_cli.algos.model_based._policy import SearchPolicy, legal_actions, num_rows, stored
from drl_cli.search.formulas import Gumbel
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Positive

if TYPE_CHECKING:
    from drl_cli.search.model import Model
    from drl_cli.search.run import Found

ACTIONS = ("discrete",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """Options of Gumbel MuZero."""

    considered_actions: Count
    value_scale: Positive


class Policy(SearchPolicy):
    """Explores by the Gumbel noise of the search."""

    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:
        size = (num_rows(obs), self.action.size)
        noise = self.rng.gumbel(size=size) if explores else np.zeros(size)
        found = search(self.config, self.model, obs, noise)
        return found.action, found


class Algorithm(ModelLearner):
    """Learns the model in a trainer."""

    def search(self, model: Model, obs: Any) -> dict[str, Tensor]:
        return stored(search(self.config, model, obs, np.zeros((num_rows(obs), self.action.size))))


def search(config: Any, model: Model, obs: Any, noise: Array) -> Found:  # Any: Config, and a tensor or dict of tensors
    """Search from observations `[N, ...]` with Gumbel noise `[N, A]` (zeros for no exploration); return the results."""
    from drl_cli.search.run import gumbel  # imports torch

    rule = Gumbel(config.considered_actions, value_scale=config.value_scale)
    return gumbel(model, obs, config.simulations, noise, rule, legal_actions(obs))

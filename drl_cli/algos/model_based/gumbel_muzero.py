"""Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel", ICLR).

MuZero (Schrittwieser et al. 2020, arXiv 1911.08265) learns a model of the environment that predicts latent states,
rewards, values and policies. A tree search with this model chooses each action. Gumbel MuZero changes the search: it
samples candidate actions at the root without replacement, and divides the simulations among them by sequential halving.
The policy learns the improved policy that follows from the Q values of the search. Two simulations are enough for an
improvement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.model_based import muzero
from drl_cli.algos.model_based._shared import legal_actions, stored
from drl_cli.search.formulas import Gumbel
from drl_cli.types import Array, num_rows
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Positive

if TYPE_CHECKING:
    from drl_cli.search.model import Model
    from drl_cli.search.run import Found

ACTIONS = ("discrete",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")


@dataclass(frozen=True, kw_only=True)
class Config(muzero.ModelConfig):
    """The options of Gumbel MuZero, which conf/algo/gumbel_muzero.yaml explains."""

    considered_actions: Count
    value_scale: Positive


class Policy(muzero.Policy):
    """Chooses actions by Gumbel MuZero's search. The Gumbel noise at the root explores."""

    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:
        shape = (num_rows(obs), self.action.size)
        noise = self.rng.gumbel(size=shape) if explores else np.zeros(shape)
        found = search(self.config, self.model, obs, noise)
        return found.action, found


class Algorithm(muzero.Algorithm):
    """Trains the learned model. Its search, for re-analysis, does not explore."""

    def search(self, model: Model, obs: Any) -> dict[str, Tensor]:
        no_noise = np.zeros((num_rows(obs), self.action.size))
        return stored(search(self.config, model, obs, no_noise))

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        return {}  # the search explores


def search(config: Any, model: Model, obs: Any, noise: Array) -> Found:  # Any: Config, and observations
    """Make one tree search for each of the observations `[N, ...]`; return the results.

    `noise` `[N, A]` is Gumbel noise for exploration, or zeros. `config.simulations` is the number of simulations.
    """
    from drl_cli.search.run import gumbel  # imports torch

    rule = Gumbel(config.considered_actions, value_scale=config.value_scale)
    return gumbel(model, obs, config.simulations, noise, rule, legal=legal_actions(obs))

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
from typing import Any

import numpy as np

import drl_cli.api as drl
from drl_cli.algos.model_based import _shared, muzero
from drl_cli.search.formulas import Gumbel
from drl_cli.types import num_rows

ACTIONS = ("discrete",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")


@dataclass(frozen=True, kw_only=True)
class Config(muzero.ModelConfig):
    """The options of Gumbel MuZero, which conf/algo/gumbel_muzero.yaml explains."""

    considered_actions: drl.Count
    value_scale: drl.Positive


def search(config: Any, model: Any, obs: Any, action: Any, explore: Mapping[str, Any] | None) -> _shared.Searched:
    """Search from observations `[N, ...]`; return what `muzero.search` returns. Gumbel noise at the root explores."""
    shape, rule = (num_rows(obs), action.size), Gumbel(config.considered_actions, value_scale=config.value_scale)
    noise = explore["rng"].gumbel(size=shape) if explore else np.zeros(shape)
    found = drl.search.gumbel(model, obs, config.simulations, noise, rule, legal=_shared.legal_actions(obs))
    return found.action, _shared.stored(found)


class Policy(muzero.Policy):
    """Chooses actions by Gumbel MuZero's search."""

    search = staticmethod(search)


class Algorithm(muzero.Algorithm):
    """Trains the learned model."""

    search = staticmethod(search)

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        return {}  # the search explores

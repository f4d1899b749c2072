"""The weights from which a run starts (`load_weights`), in the form of the run's algorithm."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.algos.lookup import load_algorithm
from drl_cli.algos.off_policy import sac
from drl_cli.algos.offline.iql import LOG_STD_MAX, LOG_STD_MIN
from drl_cli.config.config import Config
from drl_cli.networks.encoder import ActingEncoder
from drl_cli.networks.mlp import mlp_shapes, num_params, split
from drl_cli.run_folder.checkpoint import Weights, read_weights
from drl_cli.runtime.roles.normalization import Statistics, make_layout
from drl_cli.types import Array, EnvSpec, State


def weights_for(config: Config, spec: EnvSpec, folder: Path) -> Weights:
    """Return the weights in a checkpoint. If the run's algorithm is SAC, convert those of IQL and AWAC.

    SAC's actor gets the mean of the Gaussian. Its standard deviation, before the tanh, is that of the Gaussian in every
    state. The critics and target networks stay the same. Raise CheckpointError if a file is missing or damaged.
    """
    weights = read_weights(folder)
    if not issubclass(load_algorithm(config.algo.name).Algorithm, sac.Algorithm):
        return weights
    network, size, layout = config.network, spec.action.size, make_layout(config, spec)
    encoder = ActingEncoder(network, spec)
    shapes = [*mlp_shapes(encoder.size, network.hidden, size, layer_norm=network.layer_norm), (size,)]
    params, statistics = (weights.policy, None) if layout is None else Statistics.split(layout, weights.policy)
    head = encoder.load(params)
    if len(head) != num_params(shapes):
        return weights
    params = np.concatenate([params[: len(params) - len(head)], squashed_head(head, shapes)])
    converted = params if statistics is None else statistics.join(params)
    return Weights(converted, soft_networks(weights.networks, shapes, config.algo))


def squashed_head(head: Array, shapes: list[tuple[int, ...]]) -> Array:
    """Return the parameters of SAC's actor, from those `[size]` of IQL's actor and log standard deviations."""
    *hidden, weight, bias, log_std = split(head, shapes)
    weight = np.concatenate([weight, np.zeros_like(weight)], 1)
    parts = [*hidden, weight, bias, log_std.clip(LOG_STD_MIN, LOG_STD_MAX)]
    return np.concatenate([part.ravel() for part in parts])


def soft_networks(networks: State, shapes: list[tuple[int, ...]], algo: Any) -> State:
    """Return all networks of SAC, from those of an algorithm with a Gaussian policy; {} if it has no critics.

    The parameters of IQL and AWAC begin with encoder and actor, and end with the critics.
    """
    if "target.critic" not in networks:
        return {}
    targets = {name: len(array) for name, array in networks.items() if name.startswith("target.")}
    size = targets.pop("target.critic")
    first, params = sum(targets.values()), networks["params"]
    end, critic = first + num_params(shapes), params[-size:]
    log_alpha = np.array([math.log(algo.initial_alpha)], np.float32)
    parts = [params[:first], squashed_head(params[first:end], shapes), critic, log_alpha]
    return {**networks, "params": np.concatenate(parts)}

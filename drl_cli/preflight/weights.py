"""`load_weights=PATH`: find the checkpoint, and check that its parameters fit this run's policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drl_cli.algos.lookup import algorithms, installed, load_algorithm, title
from drl_cli.algos.off_policy import sac
from drl_cli.algos.offline import iql
from drl_cli.envs.config import NO_ENV
from drl_cli.errors import CHECKPOINT, CheckpointError, UsageError
from drl_cli.runs.run import Run
from drl_cli.runtime.config import Config
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.runtime.weights import weights_for
from drl_cli.settings.build import as_typed, to_yaml_keys
from drl_cli.types import EnvSpec, State, flatten
from drl_cli.utils.outside import NotFound
from drl_cli.utils.run_log import tell

SHAPING = (
    *("network.", "env.frame_stack", "env.normalize_"),
    *("algo.atoms", "algo.critics", "algo.dueling", "algo.noisy", "algo.quantiles"),
)
"""The beginnings of the keys that set the shapes of the saved parameters, besides the environment's."""


def check_weights(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError (exit 8) if the loaded parameters don't fit the policy. Warn if the environment differs."""
    if config.load_weights is None:
        return
    folder = Path(config.load_weights)
    trained = Run(folder.parent.parent).config
    algo, env = trained.get("algo.name"), trained.get("env.id")
    trained_by, name = str(algo), config.algo.name
    is_converted = algo is not None and not is_related(trained_by, name)
    if is_converted and not becomes_soft(trained_by, name):
        line = f"load_weights: {folder} is of algo={algo}, and this run has algo={name}; say algo={algo}"
        raise UsageError(line, CHECKPOINT)
    is_other_env = env not in (None, NO_ENV, config.env.id)
    try:
        weights = weights_for(config, spec, folder)
        make_policy(config, spec, 0).load(weights.policy)
    except CheckpointError as error:
        raise UsageError(f"load_weights: {error}", CHECKPOINT) from error
    except ValueError as error:
        advice = _differences(config, trained) or "env, algo, network and env.normalize_* must be as where it was saved"
        other = f" is of {env}, and this run has {config.env.id}" if is_other_env else ""
        raise UsageError(f"load_weights: {folder}{other}: {error}; {advice}", CHECKPOINT) from error
    if is_other_env:
        tell(f"warning: load_weights: {folder} is of {env}; it fits {config.env.id}, too")
    if weights.networks and (why := misfit(config, spec, weights.networks)):
        tell(f"warning: load_weights: {why}; only the policy is loaded, and critics start anew")
    elif is_converted:
        actor, critics = "the actor (with one standard deviation for all states)", "the critics and the target networks"
        taken, new = (f"{actor}, {critics}", "") if weights.networks else (actor, f"{critics}, ")
        tell(f"load_weights: from {title(trained_by)} come {taken}; {new}the temperature and the optimizers are new")
    else:
        what = "all networks" if weights.networks else "the policy"
        rest = "" if weights.networks else "other networks and "
        tell(f"load_weights: {what} of {folder} will be loaded; {rest}the optimizers are new")


def _differences(config: Config, trained: Mapping[str, Any]) -> str:  # Any: values of the config, by dotted key
    """Return which keys that shape the parameters differ from the run that saved them, and what to type; '' if none."""
    here = flatten({name: to_yaml_keys(getattr(config, name)) for name in ("network", "env", "algo")})
    other = {
        key: trained[key] for key, value in here.items() if key.startswith(SHAPING) and trained.get(key, value) != value
    }
    there = ", ".join(
        f"{key} is {as_typed(value)} there and {as_typed(here[key])} here" for key, value in other.items()
    )
    return there and f"{there}; say {' '.join(f'{key}={as_typed(value)}' for key, value in other.items())}"


def is_related(one: str, other: str) -> bool:
    """Return whether two algorithms are the same, or one extends the other, as CQL extends SAC.

    `one` comes from a file. If it is neither built-in nor installed, it is not imported, and counts as another one.
    """
    if one == other:
        return True
    if not _is_known(one):
        return False
    try:
        first, second = (load_algorithm(name).Algorithm for name in (one, other))
    except NotFound:
        return False
    return issubclass(first, second) or issubclass(second, first)


def becomes_soft(before: str, now: str) -> bool:
    """Return whether weights with a Gaussian policy can be converted to those of SAC, or of an extension of it."""
    if not _is_known(before):
        return False
    try:
        first, second = load_algorithm(before), load_algorithm(now)
    except NotFound:
        return False
    is_gaussian = vars(first).get("policy") is iql.policy
    return is_gaussian and issubclass(second.Algorithm, sac.Algorithm)


def _is_known(name: str) -> bool:
    """Return whether an algorithm is built-in or installed."""
    return name in algorithms() or name in installed()


def misfit(config: Config, spec: EnvSpec, networks: State) -> str | None:
    """Return why the networks of another run do not fit the algorithm of this run, or None."""
    from drl_cli.runtime.factories import make_trainer  # slow: imports torch
    from drl_cli.runtime.trial import single_trainer

    return make_trainer(single_trainer(config, threads=1), spec, "cpu", 0).load_networks(networks)

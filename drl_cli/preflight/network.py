"""Checks of the network, its memory and the optimizer against the environment, the algorithm and replay."""

from collections.abc import Iterator

from drl_cli.algos.learner import NetworkAlgorithm
from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.errors import UsageError
from drl_cli.networks.torsos import describe, torso_name
from drl_cli.optim.optimizer_config import option_problems
from drl_cli.replay.config import SequencesConfig
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec


def check_network(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError with all problems of the optimizer's options, the memory and the torso."""
    problems = option_problems(config.optimizer)
    if uses_network_group(config):
        problems += memory_problems(config)
        try:
            describe(config.network, spec)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise UsageError(problems)


def uses_network_group(config: Config) -> bool:
    """Return whether the algorithm builds its networks from the group `network`; a user's algorithm may not."""
    return issubclass(load_algorithm(config.algo.name).Policy, NetworkPolicy)


def network_text(config: Config, spec: EnvSpec) -> str:
    """Describe the network in one line: the layers that the observation passes, and the torso that `auto` chose."""
    if not uses_network_group(config):
        return f"that of {title(config.algo.name)}"
    chosen = f"auto is {torso_name(config.network, spec) or 'mlp'}: " if config.network.torso == "auto" else ""
    return chosen + describe(config.network, spec)


def memory_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting that does not go with the network's memory or with replay of sequences."""
    memory, trains = config.network.memory, load_algorithm(config.algo.name).Algorithm
    is_sequences = isinstance(config.replay, SequencesConfig)
    if memory != "none" and not (is_sequences or config.is_on_policy):
        yield f"network.memory={memory} learns from sequences of steps, not from single ones; say replay=sequences"
    if is_sequences and config.algo.n_step > 1 and not issubclass(trains, NetworkAlgorithm):
        yield f"algo.n_step={config.algo.n_step}: the steps of replay=sequences are single ones; say algo.n_step=1"
    if is_sequences and config.worker_priorities:
        yield "replay.initial_priority=worker: workers can't rate sequences; say replay.initial_priority=max"
    if memory != "none" and config.trainer.num > 1 and config.is_on_policy:
        yield f"network.memory={memory}: rollouts can't be shared by trainer.num={config.trainer.num}; say 1"

"""Whether the run's network, memory and optimizer fit its environment, algorithm and replay; before anything starts."""

from drl_cli.algos.learner import NetworkAlgorithm
from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.errors import UsageError
from drl_cli.networks.torsos import describe, torso_name
from drl_cli.optim.optimizer_config import option_problems
from drl_cli.replay.config import SequencesConfig
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec


def check_learning(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError with all problems."""
    problems = option_problems(config.optimizer)
    if uses_network(config):
        problems += memory_problems(config)
        try:
            describe(config.network, spec)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise UsageError(problems)


def uses_network(config: Config) -> bool:
    """Whether the algorithm's networks are those of the group `network`: all of ours are, a user's may not be."""
    return issubclass(load_algorithm(config.algo.name).Policy, NetworkPolicy)


def makes_windows(config: Config) -> bool:
    """Whether the algorithm makes n-step targets from the single steps of sequences: all of ours do."""
    return issubclass(load_algorithm(config.algo.name).Algorithm, NetworkAlgorithm)


def described(config: Config, spec: EnvSpec) -> str:
    """The network in a line: what the observation goes through, and which torso `auto` is."""
    if not uses_network(config):
        return f"that of {title(config.algo.name)}"
    chosen = f"auto is {torso_name(config.network, spec) or 'mlp'}: " if config.network.torso == "auto" else ""
    return chosen + describe(config.network, spec)


def memory_problems(config: Config) -> list[str]:
    """What a memory needs of the replay, and sequences of the rest, a line each."""
    problems, replay, memory = [], config.replay, config.network.memory
    is_sequences = isinstance(replay, SequencesConfig)
    if memory != "none" and not (is_sequences or config.is_on_policy):
        problems.append(
            f"network.memory={memory} learns from sequences of steps, not from single ones; say replay=sequences"
        )
    if is_sequences and config.algo.n_step > 1 and not makes_windows(config):
        problems.append(
            f"algo.n_step={config.algo.n_step}: the steps of replay=sequences are single ones; say algo.n_step=1"
        )
    if is_sequences and config.worker_priorities:
        problems.append("replay.initial_priority=worker: workers can't rate sequences; say replay.initial_priority=max")
    if memory != "none" and config.trainer.num > 1 and config.is_on_policy:
        problems.append(f"network.memory={memory}: rollouts can't be shared by trainer.num={config.trainer.num}; say 1")
    return problems

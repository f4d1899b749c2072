"""Checks of the algorithm, its network, recurrent memory and optimizer, and a trial update."""

import dataclasses
from collections.abc import Iterator

from drl_cli.algos.base import Policy
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.function_policy import FunctionPolicy
from drl_cli.algos.lookup import IN_ORDER, algorithms, load_algorithm, title
from drl_cli.errors import USER_CODE, Refused, RunError, UsageError, as_usage_error
from drl_cli.networks.config import TORSOS
from drl_cli.networks.torsos import describe, torso_name
from drl_cli.optim.group import ProcessGroup
from drl_cli.optim.optimizer_config import option_problems
from drl_cli.replay.frames import image_columns
from drl_cli.runs.start_text import uses_network_group
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import torch
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object
from drl_cli.utils.run_log import tell

MAX_TRIAL_STEPS = 4096
"""Maximum number of steps in all rows of the trial batch. For a larger batch, the time is extrapolated."""
SLOW_S = 2.0
"""A warning is printed if an update takes longer [s]."""


def warn_of_slow_updates(config: Config, spec: EnvSpec) -> None:
    """Time a trial update, and print a warning if it is slow, because Ctrl-C has to wait until an update ends."""
    seconds = update_seconds(config, spec)
    if seconds > SLOW_S:
        size = config.trainer.batch_size
        line = f"one update of trainer.batch_size={size} takes about {seconds:.2g} s here; a smaller batch is quicker"
        tell(f"warning: {line}")


def update_seconds(config: Config, spec: EnvSpec) -> float:
    """Return the estimated time of one update with one thread [s]. Raise UsageError if the update fails.

    Nothing is compiled, because that may take a minute. Also let the updated policy act, and pass on its exceptions.
    """
    from drl_cli.runtime.factories import make_trainer
    from drl_cli.runtime.roles.normalization import make_policy
    from drl_cli.runtime.trial import random_batch, single_trainer, try_policy

    config = dataclasses.replace(single_trainer(config, threads=1), load_weights=None)
    length = 1 if config.replay.steps is None else config.replay.steps.length
    rows = min(config.trainer.batch_size, max(2, MAX_TRIAL_STEPS // length))
    scale = config.trainer.batch_size / rows
    choice = config.trainer.compile and "replay"
    config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, batch_size=rows, compile=choice))
    try:
        device = "cpu" if config.ray.address else config.device  # the GPUs of a cluster may be on other nodes
        trainer = make_trainer(config, spec, device, 0)
        _, params = trainer.publish(0, 0)
        header, columns = random_batch(config, spec, params)
        # the first update also loads parts of torch, so take the minimum of two times
        seconds = scale * min(trainer.train(header, columns)[0].seconds for _ in range(2))
        params_header, params = trainer.publish(1, 0)
        policy = make_policy(config, spec, 0)
        policy.load(params)
        try_policy(config, spec, policy, params_header.exploration)
        return seconds
    except Refused as error:
        raise UsageError(f"{config.algo.name}: {error}") from error
    except RunError as error:
        raise UsageError(str(error), error.exit_code) from error


def check_priorities(config: Config) -> None:
    """Raise UsageError if workers should compute priorities but the algorithm's policy can't."""
    if config.worker_priorities and load_algorithm(config.algo.name).Policy.priorities is Policy.priorities:
        raise UsageError(
            f"{title(config.algo_name)}'s policy has no critic to compute replay.initial_priority=worker with; "
            "say replay.initial_priority=max"
        )


def try_algorithm(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if the algorithm can't be built, or if its policy can't load the trainer's parameters and act.

    In mode=sync and mode=async, drl-cli's own algorithms do not act here: this process would import torch for them
    alone, which takes longer than all other checks together.
    """
    name, memory = config.algo.name, config.network.memory
    module = load_algorithm(name)
    options = (config.algo, config.network, spec)
    is_ours = name in algorithms() and config.network.torso in TORSOS
    if is_ours and config.trainer.num == 1 and config.mode != "single":  # build only a policy without torch
        if memory == "none" and torso_name(config.network, spec) is None:
            with as_usage_error(Refused):
                module.Policy(*options, config.seed)
        return
    if memory != "none" and "state" not in module.Policy.extra_columns(*options):
        raise UsageError(f"network.memory={memory}: the policy of {name} has no memory; say network.memory=none")
    from drl_cli.runtime.trial import try_policy  # imports torch

    group = ProcessGroup(0, config.trainer.num)
    cpu, clock = torch.device("cpu"), config.clock
    context = AlgoContext(cpu, group, optimizer=config.optimizer, reward=config.reward, clock=clock)
    with as_usage_error(Refused, prefix=f"{name}: "), torch.random.fork_rng(devices=[]):
        algorithm = module.Algorithm(*options, config.seed, context)
        params, policy = algorithm.policy_params(), module.Policy(*options, config.seed)
    prefix = f"{name}: Policy.load does not take policy_params: "
    with as_usage_error(ValueError, prefix=prefix, exit_code=USER_CODE):
        policy.load(params)
    with as_usage_error(NotImplementedError, prefix=f"{name}: ", exit_code=USER_CODE):
        try_policy(config, spec, policy, algorithm.exploration(0))


def check_network(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError with all problems of the options of optimizer, memory, torsos and policy."""
    with as_usage_error(ModuleRaised, prefix="optimizer.name: ", exit_code=USER_CODE):
        problems = option_problems(config.optimizer)
    if (outside := config.reward.outside) is not None:
        with as_usage_error(NotFound, prefix="reward: "), as_usage_error(ModuleRaised, exit_code=USER_CODE):
            import_object(outside)
    problems += config.reward.problems() if load_algorithm(config.algo.name).REWARDS else _reward_problems(config)
    if uses_network_group(config) or issubclass(load_algorithm(config.algo.name).Policy, FunctionPolicy):
        problems += memory_problems(config)
    try:
        if uses_network_group(config):
            describe(config.network, spec)
        load_algorithm(config.algo.name).Policy.check(config.algo, config.network, spec)
    except ValueError as error:  # also Refused
        problems.append(str(error))
    if problems:
        raise UsageError(problems)


def _reward_problems(config: Config) -> list[str]:
    """Return a line if a reward module or its options are set for an algorithm that takes no reward module."""
    keys = ["reward"] if config.reward.name != "none" else [f"reward.{key}" for key in config.reward.options]
    if not keys:
        return []
    why = "a bonus in replay would become out of date"
    if config.is_on_policy:
        why = "it computes no advantages, to which the bonus's advantages could be added"
    instead = "say reward=none, or" if keys == ["reward"] else "leave this out, or say"
    return [
        f"{', '.join(keys)}: {title(config.algo_name)} takes no reward module, because {why}; "
        f"{instead} an algorithm that computes advantages from new rollouts, such as algo=ppo"
    ]


def no_memory(config: Config) -> str | None:
    """Return an error line if a recurrent network is asked of an algorithm that never learns from steps in order."""
    accepted, memory = load_algorithm(config.algo.name).TABLES, config.network.memory
    if memory == "none" or {*IN_ORDER} & {*accepted}:
        return None
    return f"network.memory={memory}: {title(config.algo_name)} has no memory; say network.memory=none"


def memory_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting that conflicts with a recurrent network or with replay of sequences."""
    memory, trains = config.network.memory, load_algorithm(config.algo.name).Algorithm
    is_sequences = config.replay.steps is not None
    if line := no_memory(config):
        yield line
    elif memory != "none" and not (is_sequences or config.is_on_policy):
        yield f"network.memory={memory} learns from sequences of steps, not from single ones; say replay=sequences"
    if is_sequences and config.algo.n_step > 1 and not trains.makes_n_steps:
        yield f"algo.n_step={config.algo.n_step}: the steps of replay=sequences are single ones; say algo.n_step=1"
    if config.worker_priorities and (config.replay.table == "sequences" or (is_sequences and memory != "none")):
        yield "replay.initial_priority=worker: workers can't rate sequences; say replay.initial_priority=max"
    if memory != "none" and config.trainer.num > 1 and config.is_on_policy:
        yield f"network.memory={memory}: trainer.num={config.trainer.num} can't share rollouts; say trainer.num=1"


def check_writes(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if replay can't replace a column that the algorithm's `WRITES` lists."""
    if config.writes and (lines := [*write_problems(config, spec)]):
        raise UsageError(lines)


def write_problems(config: Config, spec: EnvSpec) -> Iterator[str]:
    """Yield a line for each reason why replay can't replace the columns in `WRITES`."""
    from drl_cli.runtime.roles.worker import row_schema  # slow: imports gymnasium

    replay, writes = config.replay, load_algorithm(config.algo.name).WRITES
    subject = f"{title(config.algo_name)} writes {', '.join(writes)} to replay (WRITES)"
    if replay.is_queue:
        yield f"{subject}, but replay={replay.option} serves its rows and drops them; say replay=uniform or windows"
        return
    stored = replay.table_schema(row_schema(config, spec)).keys()
    if unknown := [name for name in writes if name not in stored]:
        yield f"{subject}, but replay={replay.option} has no {', '.join(unknown)}; it has {', '.join(stored)}"
    if images := sorted(image_columns(config.stackings(spec)).keys() & {*writes}):
        yield f"{subject}, but images can't be changed: {', '.join(images)}"
    steps = [name for name in writes if name not in ("state", *unknown)]  # a sequence has one `state`
    if steps and replay.num_copies > 1:
        yield (
            f"{subject}, but replay={replay.option} stores a step in up to {replay.num_copies} rows, and a write "
            "changes one of them; say replay=windows"
        )

"""Check the algorithm, and the weights that it starts with."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from drl_cli.algos.base import Policy
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.function_policy import FunctionPolicy
from drl_cli.algos.lookup import IN_ORDER, algorithms, installed, load_algorithm, title
from drl_cli.algos.off_policy import sac
from drl_cli.algos.offline import iql
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.config.config import Config
from drl_cli.config.rows import row_schema, stackings_of
from drl_cli.envs.config import NO_ENV
from drl_cli.errors import CHECKPOINT, USER_CODE, CheckpointError, Refused, RunError, UsageError, as_usage_error
from drl_cli.networks.config import TORSOS
from drl_cli.networks.torsos import describe, torso_name
from drl_cli.optim.optimizer_config import option_problems
from drl_cli.replay.frames import image_columns
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.start_text import uses_network_group
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.runtime.weights import weights_for
from drl_cli.settings.build import as_typed, to_yaml_keys
from drl_cli.types import EnvSpec, State, flatten
from drl_cli.utils.lazy import torch
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object
from drl_cli.utils.shown import tell

MAX_TRIAL_STEPS = 4096
"""Maximum number of steps in all rows of the trial batch. For a larger batch, the time is extrapolated."""
SLOW_S = 2.0
"""A warning is printed if an update takes longer [s]."""
LARGE_BATCH = 2**16
"""If the batch has more rows, an update is timed before every run, otherwise only in a dry run."""


def try_update(config: Config, spec: EnvSpec) -> None:
    """In a dry run, and for a large batch, make an update on the run's device. Warn if it is slow.

    Ctrl-C has to wait until an update ends. Raise UsageError if the update fails. Call this after all other checks:
    CUDA forbids a fork after its first use.
    """
    size = config.trainer.batch_size
    if (config.dry_run or size > LARGE_BATCH) and (seconds := update_seconds(config, spec)) > SLOW_S:
        line = f"one update of trainer.batch_size={size} takes about {seconds:.2g} s here; a smaller batch is quicker"
        tell(f"warning: {line}")


def update_seconds(config: Config, spec: EnvSpec) -> float:
    """Return the estimated time of one update with one thread [s]. Raise UsageError if the update fails.

    Nothing is compiled, because that may take a minute. Also let the updated policy act, and pass on its exceptions.
    """
    from drl_cli.runtime.factories import make_trainer
    from drl_cli.runtime.trial_update import random_batch, single_trainer, try_policy

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
    if config.replay.worker_priorities and load_algorithm(config.algo.name).Policy.priorities is Policy.priorities:
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
    from drl_cli.runtime.trial_update import try_policy  # imports torch

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
    if config.replay.worker_priorities and (config.replay.table == "sequences" or (is_sequences and memory != "none")):
        yield "replay.initial_priority=worker: workers can't rate sequences; say replay.initial_priority=max"
    if memory != "none" and config.trainer.num > 1 and config.is_on_policy:
        yield f"network.memory={memory}: trainer.num={config.trainer.num} can't share rollouts; say trainer.num=1"


def check_writes(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if replay can't replace a column that the algorithm's `WRITES` lists."""
    if config.writes and (lines := [*write_problems(config, spec)]):
        raise UsageError(lines)


def write_problems(config: Config, spec: EnvSpec) -> Iterator[str]:
    """Yield a line for each reason why replay can't replace the columns in `WRITES`."""
    replay, writes = config.replay, load_algorithm(config.algo.name).WRITES
    subject = f"{title(config.algo_name)} writes {', '.join(writes)} to replay (WRITES)"
    if replay.is_queue:
        yield f"{subject}, but replay={replay.option} serves its rows and drops them; say replay=uniform or windows"
        return
    stored = replay.table_schema(row_schema(config, spec)).keys()
    if unknown := [name for name in writes if name not in stored]:
        yield f"{subject}, but replay={replay.option} has no {', '.join(unknown)}; it has {', '.join(stored)}"
    if images := sorted(image_columns(stackings_of(config, spec)).keys() & {*writes}):
        yield f"{subject}, but images can't be changed: {', '.join(images)}"
    steps = [name for name in writes if name not in ("state", *unknown)]  # a sequence has one `state`
    if steps and replay.num_copies > 1:
        yield (
            f"{subject}, but replay={replay.option} stores a step in up to {replay.num_copies} rows, and a write "
            "changes one of them; say replay=windows"
        )


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
    taken_over = "all" if algo is None else inherited(trained_by, name)
    is_converted = taken_over == "actor"
    if taken_over is None:
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


def _differences(config: Config, trained: Mapping[str, Any]) -> str:
    """Return which keys that shape the parameters differ from the run that saved them, and what to type; '' if none."""
    here = flatten({name: to_yaml_keys(getattr(config, name)) for name in ("network", "env", "algo")})
    other = {
        key: trained[key] for key, value in here.items() if key.startswith(SHAPING) and trained.get(key, value) != value
    }
    there = ", ".join(
        f"{key} is {as_typed(value)} there and {as_typed(here[key])} here" for key, value in other.items()
    )
    return there and f"{there}; say {' '.join(f'{key}={as_typed(value)}' for key, value in other.items())}"


def inherited(before: str, now: str) -> Literal["all", "actor"] | None:
    """Return what an algorithm takes over from the weights of another one.

    All, if they are the same or one extends the other, as CQL extends SAC. The actor, if a Gaussian policy becomes that
    of SAC or of an extension of it. `before` comes from a file: it is only imported if it is built-in or installed.
    """
    if before == now:
        return "all"
    if before not in algorithms() and before not in installed():
        return None
    try:
        first, second = load_algorithm(before), load_algorithm(now)
    except NotFound:
        return None
    if issubclass(first.Algorithm, second.Algorithm) or issubclass(second.Algorithm, first.Algorithm):
        return "all"
    is_gaussian = vars(first).get("policy") is iql.policy
    return "actor" if is_gaussian and issubclass(second.Algorithm, sac.Algorithm) else None


def misfit(config: Config, spec: EnvSpec, networks: State) -> str | None:
    """Return why the networks of another run do not fit the algorithm of this run, or None."""
    from drl_cli.runtime.factories import make_trainer  # slow: imports torch
    from drl_cli.runtime.trial_update import single_trainer

    return make_trainer(single_trainer(config, threads=1), spec, "cpu", 0).load_networks(networks)

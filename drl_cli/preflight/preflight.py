"""What must hold before anything starts: the pace can't deadlock, the spaces fit, memory and disk suffice."""

import dataclasses
import os
import shutil
import sys
from typing import TYPE_CHECKING

from drl_cli.algos.base import Policy
from drl_cli.algos.lookup import load_algorithm, refusal, title
from drl_cli.envs.config import EnvError, EnvFault, MissingExtra
from drl_cli.errors import MISSING, USER_CODE, ClusterUnfit, UsageError
from drl_cli.preflight.algorithm import try_algorithm, update_seconds
from drl_cli.preflight.learning import check_learning
from drl_cli.preflight.recording import check_recording
from drl_cli.preflight.resources import check_resources
from drl_cli.preflight.weights import check_weights
from drl_cli.replay.config import FifoConfig, SequencesConfig, UniformConfig
from drl_cli.replay.frames import make_codec
from drl_cli.runtime.config import Config
from drl_cli.runtime.orchestrator.rate_limiter import required_band
from drl_cli.runtime.roles.exploration import exploration_problems
from drl_cli.types import EnvSpec, leaves

LARGE_BATCH = 2**16
"""Rows of a batch from which on an update is timed before every run."""
SLOW_S = 2.0
"""An update that takes longer is worth a warning."""

if TYPE_CHECKING:  # importing it takes long
    from drl_cli.runtime.place.launch import Cluster


def join(config: Config) -> "Cluster":
    """Join the cluster at `ray.address`; raises UsageError when it is not there or a node of it is not fit."""
    from drl_cli.runtime.place.launch import Cluster

    environment_spec(config)  # what is wrong here is said before the cluster is asked
    assert config.ray.address is not None
    try:
        return Cluster(config.ray.address, config.env, config.outside_modules, only_here=config.mode == "single")
    except ClusterUnfit as error:
        raise UsageError(error.problems, error.exit_code) from error


def preflight(config: Config) -> EnvSpec:
    """Check everything that can be checked without starting; raises UsageError with all problems of a kind."""
    if problems := [*pace_problems(config), *trainer_problems(config), *worker_problems(config)]:
        raise UsageError(problems)
    spec = environment_spec(config)
    for note in spec.notes:
        print(f"warning: {note}", file=sys.stderr)
    if problem := refusal(config.algo.name, spec, config.mode, config.replay.sampler):
        raise UsageError(problem)
    check_learning(config, spec)
    check_priorities(config)
    check_recording(config)
    check_evaluation(config, spec)
    if config.env.normalize_obs and all(column.dtype != "float32" for column in leaves(spec.obs).values()):
        raise UsageError(
            f"env.normalize_obs: {spec.id} gives no real numbers, only images, which are scaled to [0, 1] anyway, "
            "choices or booleans; say false"
        )
    check_weights(config, spec)
    check_device(config)
    check_compiler(config)
    check_compression(config)
    check_resources(config, spec)
    try_environment(config, spec)
    try_algorithm(config, spec)
    if config.dry_run or config.trainer.batch_size > LARGE_BATCH:
        warn_of_slow_updates(config, spec)
    return spec


def try_environment(config: Config, spec: EnvSpec) -> None:
    """Take some steps; raises UsageError (exit 4) where the environment can't, and warns of what is odd."""
    from drl_cli.envs.trial import try_env

    num, seconds = (min(2, config.worker.envs), 5.0) if config.dry_run else (1, 0.3)
    try:
        notes = try_env(config.env, spec, num=num, seconds=seconds, timeout_s=config.worker.step_timeout_s)
    except EnvFault as error:
        raise UsageError(f"{config.env.id}: {error}", USER_CODE) from error
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)


def warn_of_slow_updates(config: Config, spec: EnvSpec) -> None:
    """Make an update, and say how long one takes where that is long: Ctrl-C waits for it."""
    seconds = update_seconds(config, spec)
    if seconds > SLOW_S:
        size = config.trainer.batch_size
        line = f"one update of trainer.batch_size={size} takes about {seconds:.2g} s here; a smaller batch is quicker"
        print(f"warning: {line}", file=sys.stderr)


def environment_spec(config: Config, trains: bool = True) -> EnvSpec:
    """The environment's spaces; raises UsageError when it is not there, not usable (to train on), or raises."""
    from drl_cli.envs.make import read_spec

    try:
        return read_spec(config.env, trains)
    except MissingExtra as error:
        raise UsageError(str(error), MISSING) from error
    except EnvError as error:
        raise UsageError(str(error)) from error
    except EnvFault as error:
        raise UsageError(str(error), USER_CODE) from error
    except Exception as error:
        raise UsageError(f"{config.env.id} raised {type(error).__name__}: {error}", USER_CODE) from error


def check_evaluation(config: Config, spec: EnvSpec) -> None:
    """Raise when the environment of evaluations can't be made, or a policy of the training's can't play it."""
    if not config.manage.env_kwargs:
        return
    env = config.env.for_evaluation(config.manage.env_kwargs)
    try:
        theirs = environment_spec(dataclasses.replace(config, env=env), trains=False)
    except UsageError as error:
        problems = [f"manage.env_kwargs={dict(config.manage.env_kwargs)}: {problem}" for problem in error.problems]
        raise UsageError(problems, error.exit_code) from error
    if (theirs.obs, theirs.action) != (spec.obs, spec.action):
        what = "observations" if theirs.obs != spec.obs else "actions"
        raise UsageError(f"manage.env_kwargs: with them the environment has other {what} than in training")


def pace_problems(config: Config) -> list[str]:
    """Settings that would never get going, or stop for ever, with their numbers."""
    problems = []
    pace, rows, replay = config.orchestrator, config.rows_per_collect, config.replay
    if isinstance(replay, SequencesConfig) and replay.overlap >= replay.seq_len:
        problems.append(f"replay.overlap={replay.overlap} must be below replay.seq_len={replay.seq_len}")
        return problems
    if config.replay.capacity < pace.min_inserts:
        problems.append(
            f"replay.capacity={config.replay.capacity} is below orchestrator.min_inserts={pace.min_inserts}: "
            "no update would ever be made"
        )
    if isinstance(config.replay, FifoConfig):
        problems += queue_problems(config, config.replay)
    if config.block_rows < config.worker.envs:
        problems.append(
            f"worker.block_rows={config.block_rows} is below worker.envs={config.worker.envs}: "
            "a block holds at least one step of every environment"
        )
    if config.num_proxies and config.num_workers % config.num_proxies:
        problems.append(
            f"worker.num={config.num_workers} can't be shared equally by worker.proxies={config.num_proxies}"
        )
        return problems
    members = config.num_proxies or config.num_workers
    rows = rows * config.num_workers // members
    share = replay.num_rows // config.num_shards
    if share < rows + config.algo.n_step * config.worker.envs:
        of = f" / replay.shards={config.num_shards}" if config.num_shards > 1 else ""
        of += f" = {share} sequences" if isinstance(replay, SequencesConfig) else ""
        problems.append(f"replay.capacity={replay.capacity}{of} is below one hand-over of {rows} transitions")
    if config.is_on_policy:
        return problems
    problems += learning_problems(config)
    needed = required_band(pace.sample_insert_ratio, rows, config.updates_per_call)
    if pace.band is not None and pace.band < needed and config.mode == "async":
        problems.append(
            f"orchestrator.band={pace.band:g} is below {needed:g} = sample_insert_ratio {pace.sample_insert_ratio:g} "
            f"x {rows} rows per hand-over + {config.updates_per_call} updates per call: both sides would wait for ever"
        )
    return problems


def learning_problems(config: Config) -> list[str]:
    """Settings with which a run would end before its first update, or draw batches that it has not the rows for."""
    problems, pace, steps, size = [], config.orchestrator, config.total_env_steps, config.trainer.batch_size
    for name, most in (("replay.capacity", config.replay.capacity), ("total_env_steps", steps)):
        if size > most:
            problems.append(
                f"trainer.batch_size={size} is above {name}={most}: a batch would hold every row many times"
            )
    if config.load_weights is None and pace.min_inserts >= steps:
        problems.append(
            f"orchestrator.min_inserts={pace.min_inserts} is not below total_env_steps={steps}: "
            "no update would ever be made"
        )
    elif config.load_weights is None and config.num_updates < 1:
        problems.append(
            f"orchestrator.sample_insert_ratio={pace.sample_insert_ratio:g} x the transitions after "
            f"orchestrator.min_inserts={pace.min_inserts} is below 1 at total_env_steps={steps}: "
            "no update would ever be made"
        )
    return problems


def trainer_problems(config: Config) -> list[str]:
    """Why several trainers can't share the work."""
    num, size = config.trainer.num, config.trainer.batch_size
    if num == 1:
        return []
    problems = []
    if size % num:
        problems.append(f"trainer.batch_size={size} can't be shared equally by trainer.num={num}")
    if config.mode == "single":
        problems.append(f"trainer.num={num} needs processes of their own, and mode=single has none; say mode=sync")
    elif config.debug.in_process:
        problems.append(f"trainer.num={num} needs processes of their own, and debug.in_process=true has none")
    return problems


def check_priorities(config: Config) -> None:
    """Raise when workers are to give priorities and the policy can't."""
    if config.worker_priorities and load_algorithm(config.algo.name).Policy.priorities is Policy.priorities:
        raise UsageError(
            f"{title(config.algo.name)}'s policy has no critic to compute replay.initial_priority=worker with; "
            "say replay.initial_priority=max"
        )


def queue_problems(config: Config, replay: FifoConfig) -> list[str]:
    """Settings with which a queue would never fill a batch, or lose what it should serve."""
    problems = []
    batch, rows = config.trainer.batch_size, config.num_workers * config.rows_per_collect
    ahead = max(1, replay.max_staleness)
    if replay.max_staleness == 0 and config.mode == "async":
        problems.append(
            "replay.max_staleness=0 can't be kept in mode=async, whose workers collect while the trainer learns: all "
            "they collect would be dropped; say replay.max_staleness=1 or mode=sync"
        )
    hand_over = rows // (config.num_proxies or config.num_workers)
    if hand_over > ahead * batch and config.mode == "async":
        problems.append(
            f"a hand-over of {hand_over} transitions is more than replay.max_staleness {ahead} x trainer.batch_size "
            f"{batch}: in mode=async its last ones would be too old; lower worker.block_rows or say mode=sync"
        )
    if config.total_env_steps < batch:
        problems.append(
            f"total_env_steps={config.total_env_steps} is below trainer.batch_size={batch}: "
            "no update would ever be made"
        )
    if replay.capacity < (needed := ahead * batch + rows):
        problems.append(
            f"replay.capacity={replay.capacity} is below {needed} = {ahead} x trainer.batch_size {batch} that may wait "
            f"+ {rows} transitions of one collect of all workers: some would be lost"
        )
    return problems


def worker_problems(config: Config) -> list[str]:
    """Settings of single workers that this mode or algorithm does not allow."""
    module = load_algorithm(config.algo.name)
    problems = exploration_problems(config.worker.exploration, config.algo.name, module.EXPLORATION)
    if config.worker.fetch != "collect" and config.mode != "async":
        problems.append(
            f"worker.fetch={config.worker.fetch}: in mode={config.mode} all workers collect with the newest version, "
            "so that updates and versions keep step; say worker.fetch=collect, or mode=async"
        )
    return problems


def check_device(config: Config) -> None:
    """Raise when more CUDA devices are asked for than there are."""
    if config.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("device=cuda, but torch finds no CUDA device here; device=cpu works everywhere", MISSING)
        if (found := torch.cuda.device_count()) < config.trainer.num:
            raise UsageError(f"device=cuda: trainer.num={config.trainer.num}, but there are {found} devices", MISSING)


def check_compiler(config: Config) -> None:
    """Raise when what torch.compile needs is missing here; a cluster's trainer may be elsewhere."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if config.trainer.compile and config.ray.address is None and shutil.which(compiler) is None:
        line = f"trainer.compile=true needs a C++ compiler: there is no {compiler}. Install one, or name it by CXX=..."
        raise UsageError(line, MISSING)


def check_compression(config: Config) -> None:
    """Raise when the package that compresses is missing."""
    try:
        if isinstance(config.replay, UniformConfig):
            make_codec(config.replay.compress)
    except ModuleNotFoundError as error:
        line = "replay.compress=lz4 needs a package that is not installed:  pip install 'drl-cli[lz4]'"
        raise UsageError(line, MISSING) from error

"""Find settings with which workers and trainer would deadlock, lose data or never make an update."""

import math
from collections.abc import Iterator, Sequence

from drl_cli.algos.base import Policy
from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.config.config import Config
from drl_cli.config.exploration import exploration_problems
from drl_cli.replay.base import NO_UPDATE
from drl_cli.runtime.orchestrator.rate_limiter import required_band
from drl_cli.settings.env_names import typed_values
from drl_cli.settings.fill import follows_nodes


def pace_problems(config: Config) -> list[str]:
    """Return a line for each setting with which the run would never train, would deadlock, or would lose data."""
    replay, envs = config.replay, config.worker.envs
    if config.is_offline:  # reading and updates take turns
        return [*replay.filled(config.load).problems(config.load)]
    if envs > max(replay.num_transitions, config.min_inserts):  # otherwise the capacity is the wrong value
        return [
            f"worker.envs={envs}: one step of all environments is a block of {envs} transitions, which does not fit "
            f"in replay.capacity={replay.num_transitions}; lower worker.envs"
        ]
    if config.is_on_policy and envs > config.trainer.batch_size:
        size = config.trainer.batch_size
        return [
            f"worker.envs={envs}: one step of a worker's environments is more than trainer.batch_size={size}, so that "
            f"rollouts would have one step; say worker.envs={max(1, size // 16)}, or trainer.batch_size={16 * envs}"
        ]
    own = list(replay.filled(config.load).problems(config.load))
    if own and replay.steps:  # the number of rows can't be computed
        return own
    problems, capacity = [], replay.num_transitions
    if capacity < config.min_inserts:
        problems.append(
            f"replay.capacity={capacity} is below orchestrator.min_inserts={config.min_inserts}: {NO_UPDATE}"
        )
    problems += own
    if replay.steps:
        problems += config.algo.window_problems(replay.steps.seq_len)
    if config.is_on_policy:
        problems += rollout_problems(config)
    if config.worker.unroll is not None and config.worker.block_rows not in (None, config.block_rows):
        problems.append(
            f"worker.block_rows={config.worker.block_rows} is not {config.block_rows} = worker.unroll "
            f"{config.worker.unroll} x worker.envs {config.worker.envs}; say only one of the two"
        )
    if config.block_rows < config.worker.envs:
        problems.append(
            f"worker.block_rows={config.block_rows} is below worker.envs={config.worker.envs}: "
            "a block holds at least one step of every environment"
        )
    if config.worker.num_proxies and config.num_workers % config.worker.num_proxies and not config.worker.is_elastic:
        problems.append(
            f"worker.num={config.num_workers} can't be shared equally by worker.proxies={config.worker.num_proxies}"
        )
        return problems
    rows, share = config.load.block_rows, replay.num_rows // config.num_shards
    if share < (needed := rows + config.algo.n_step * config.worker.envs):
        of = f" / replay.shards={config.num_shards}" if config.num_shards > 1 else ""
        of += f" = {share} sequences" if replay.num_rows < capacity else ""
        enough = needed * config.num_shards * replay.row_stride
        line = f"replay.capacity={capacity}{of} is below one block of {rows} transitions"
        problems.append(f"{line}; say replay.capacity={enough} or more")
    return problems if config.is_on_policy else [*problems, *update_problems(config), *band_problems(config)]


def node_problems(config: Config, words: Sequence[str]) -> Iterator[str]:
    """Yield a line for each typed key that does not fit worker.num=auto. The config is from before `fill`."""
    typed, worker = typed_values(words), config.worker
    if "worker.max_num" in typed and worker.max_num is not None and worker.num != "auto":
        yield (
            f"worker.max_num={worker.max_num} has no effect: only the number of worker.num=auto has a maximum; "
            f"say worker.num=auto, or worker.num={worker.max_num} alone"
        )
    if follows_nodes(config) and worker.proxies != "auto":
        yield (
            f"worker.proxies={worker.proxies}: with worker.num=auto every node of the cluster has one proxy; leave it "
            "out, or say worker.num=N"
        )


def rollout_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting with which an on-policy algorithm would get wrong or other rollouts than asked."""
    if config.random_steps:
        yield (
            f"worker.random_steps={config.random_steps}: {title(config.algo_name)} is on-policy and would learn from "
            "random actions; say worker.random_steps=0"
        )
    if config.replay.sampler == "fifo-once" and config.replay.servings > 1:
        say = "say replay=fifo" if "fifo" in load_algorithm(config.algo.name).TABLES else "leave it out"
        yield f"replay.times={config.replay.servings}: replay=fifo-once serves each row once; {say}"
    block, share = config.block_rows, config.trainer.batch_size // config.trainer.num
    if config.worker.unroll is not None and share % block:
        whose = f"trainer.batch_size {config.trainer.batch_size}"
        whose += f" / trainer.num {config.trainer.num} = {share}" if config.trainer.num > 1 else ""
        fitting = -(-share // block) * block * config.trainer.num
        yield (
            f"worker.unroll={config.worker.unroll} x worker.envs {config.worker.envs} = {block} transitions per block: "
            f"{whose} is no multiple of it, so a batch would end inside an unroll; say trainer.batch_size={fitting}"
        )


def band_problems(config: Config) -> list[str]:
    """Return a line if `orchestrator.band` is so narrow that workers and trainers would deadlock."""
    pace, rows, batches = config.orchestrator, config.load.block_rows, config.updates_per_call
    needed = required_band(pace.sample_insert_ratio, rows, batches)
    if config.mode != "async" or pace.band is None or pace.band >= needed:
        return []
    return [
        f"orchestrator.band={pace.band:g} is below {needed:g} = sample_insert_ratio {pace.sample_insert_ratio:g} "
        f"x {rows} rows per block + {batches} updates per call: both sides would wait for ever"
    ]


def update_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting with which the run ends before its first update or has too few rows for a batch."""
    pace, steps, size = config.orchestrator, config.total_env_steps, config.trainer.batch_size
    for name, most in (("replay.capacity", config.replay.num_transitions), ("total_env_steps", steps)):
        if size > most:
            yield f"trainer.batch_size={size} is above {name}={most}: a batch would hold every row many times"
    if config.load_weights is not None:  # a run that only collects with the loaded policy is allowed
        return
    least = config.min_inserts + math.ceil(1 / pace.sample_insert_ratio)
    least += config.num_workers * config.worker.envs * (config.row_steps - 1)
    advice = f"say total_env_steps={max(least, size)} or more"
    warm = config.min_inserts
    if warm >= steps:
        yield f"orchestrator.min_inserts={warm} is not below total_env_steps={steps}: {NO_UPDATE}; {advice}"
    elif config.num_updates < 1:
        yield (
            f"orchestrator.sample_insert_ratio={pace.sample_insert_ratio:g} x the transitions after "
            f"orchestrator.min_inserts={warm} is below 1 at total_env_steps={steps}: {NO_UPDATE}; {advice}"
        )


def trainer_problems(config: Config) -> Iterator[str]:
    """Yield a line for each reason why several trainers can't share the updates."""
    num, size = config.trainer.num, config.trainer.batch_size
    if size % num:
        yield f"trainer.batch_size={size} can't be shared equally by trainer.num={num}"
    if num > 1 and config.mode == "single":
        yield f"trainer.num={num} needs processes of their own, and mode=single has none; say mode=sync"
    elif num > 1 and config.debug.in_process:
        yield f"trainer.num={num} needs processes of their own, and debug.in_process=true has none"


def worker_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting of the workers that the mode or the algorithm does not allow."""
    module = load_algorithm(config.algo.name)
    yield from exploration_problems(config.worker.exploration, config.algo.name, module.EXPLORATION)
    if config.worker.fetch != "collect" and config.mode != "async":
        yield (
            f"worker.fetch={config.worker.fetch}: in mode={config.mode} all workers collect with the newest policy; "
            "say worker.fetch=collect, or mode=async"
        )


def reanalysis_problems(config: Config) -> Iterator[str]:
    """Yield a line for each reason why re-analysers (`reanalyzer.num`) can't work in this run."""
    if not config.reanalyzer.num:
        return
    typed, replay, most = f"reanalyzer.num={config.reanalyzer.num}", config.replay, config.reanalyzed_per_call
    name, share = title(config.algo_name), getattr(config.algo, "reanalyze", 0.0)
    if load_algorithm(config.algo.name).Policy.reanalyze is Policy.reanalyze:
        yield f"{typed}: {name} stores no results of a search that could be found again; say reanalyzer.num=0"
        return
    if config.mode != "async":
        instead = "" if share or not hasattr(config.algo, "reanalyze") else ", with algo.reanalyze=0.5 for the trainer"
        yield f"{typed}: mode={config.mode} has no re-analysers; say mode=async, or reanalyzer.num=0{instead}"
    if share:
        yield f"algo.reanalyze={share:g}: with {typed} the trainer does not search again; say algo.reanalyze=0"
    if replay.table != "windows":
        yield f"{typed}: re-analysers draw windows, and replay={replay.option} has none; say replay=windows"
    elif most > replay.num_transitions:
        yield (
            f"reanalyzer.windows={config.reanalyzer.windows}: a call searches {most} steps, more than "
            f"replay.capacity={replay.num_transitions}"
        )

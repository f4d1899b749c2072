"""Checks of a dataset, and the size of the replay table for it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from drl_cli.algos.lookup import is_for_data, load_algorithm, module_path, title
from drl_cli.data.dataset import Dataset, reference_problem
from drl_cli.data.find import absolute
from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.preflight.resources import check_fits, replay_bytes, with_capacity
from drl_cli.replay.mixed import recorded_rows
from drl_cli.runtime.config import Config
from drl_cli.types import MASK, EnvSpec, leaves
from drl_cli.utils.machine import free_memory
from drl_cli.utils.shown import score_text


def open_data(config: Config) -> Dataset | None:
    """Open the dataset of a run, and read it once. Return None for a run without a dataset.

    Raise UsageError if there is no dataset, if it is damaged or empty, or if it does not fit the environment.
    """
    if problems := [*data_problems(config)]:
        raise UsageError(problems)
    if not config.data.sources:
        return None
    from drl_cli.runtime.factories import opened  # slow: imports torch and gymnasium

    return opened(config, is_checked=False)


def with_absolute_paths(config: Config, run: Path | None = None) -> Config:
    """Make the paths of datasets absolute, as `absolute` does. Raise DatasetError if a resumed run has lost one."""
    if not config.data.sources:
        return config
    paths = tuple(absolute(source, run) for source in config.data.sources)
    source = paths[0] if isinstance(config.data.source, str) else paths
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))


def data_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting that does not fit a run with, or without, a dataset."""
    source, mode = config.data.source, config.mode
    if config.data.reference == "auto" and not config.has_env:
        yield "data.reference=auto measures a random policy, and there is no environment; say env=ID"
    if (returns := config.data.reference_returns) is not None and (line := reference_problem(returns)):
        yield f"data.{line}"
    if not config.is_offline:
        if not config.has_env:
            yield f"env=none: mode={mode} needs an environment; only mode=offline trains without one"
        if source is not None:
            yield from mixing_problems(config)
        return
    if not source:
        yield "mode=offline learns from a dataset: say data=PATH, data=minari:ID or data=run:RUN"
    if config.trainer.num > 1:
        yield f"trainer.num={config.trainer.num} needs processes of their own, and mode=offline has none; leave it out"
    if config.replay.changes_goals and not config.has_env:
        yield "replay=hindsight computes rewards with the environment; say env=ID"
    if config.stop.return_ is not None and not config.has_env:
        yield "stop.return: without an environment there are no evaluations; say env=ID, or leave it out"


def mixing_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting that does not fit batches with a share of recorded rows."""
    size, share = config.trainer.batch_size, config.data.share
    if config.is_on_policy:
        why = "on-policy: it learns from the newest rollouts of its own policy, and not from recorded steps"
        yield f"data={config.data.text}: {title(config.algo_name)} is {why}; leave data out"
    elif not 0 < recorded_rows(size, share) < size:
        yield f"data.share={share:g} of trainer.batch_size={size} is no row, or all rows; say data.share=0.5"
    if config.replay.changes_goals:
        yield f"data={config.data.text}: replay=hindsight can't mix recorded rows in; say replay=uniform"
    if (config.replay.shards or 1) > 1:
        yield f"replay.shards={config.replay.shards}: the only shard with data holds the dataset, too; leave it out"


def check_data(config: Config, spec: EnvSpec, dataset: Dataset) -> None:
    """Raise UsageError if the algorithm can't learn from the recorded columns, or if a batch is too large."""
    problems = []
    if config.mixes_data and config.stackings(spec):
        problems.append("data: frame stacks can't be mixed with recorded rows; say env.frame_storage=none")
    extra = load_algorithm(config.algo.name).Policy.extra_columns(config.algo, config.network, spec)
    if lacking := sorted(extra.keys() - {"state"}):
        problems.append(
            f"{title(config.algo_name)} learns from columns that its own policy computes ({', '.join(lacking)}), "
            "and a dataset does not have them; say an off-policy algorithm, such as algo=td3 or algo=dqn"
        )
    if config.is_offline and (size := config.trainer.batch_size) > (steps := dataset.facts.steps):
        line = f"trainer.batch_size={size} is above the {steps} steps of {dataset.facts.source}"
        problems.append(f"{line}: a batch would hold every row many times; say trainer.batch_size={steps} or less")
    if problems:
        raise UsageError(problems)


def check_identity(saved: object, dataset: Dataset | None) -> None:
    """Raise UsageError (exit 8) if a run resumes with another dataset. `saved` is the entry `data` of run.json."""
    if dataset is None or not isinstance(saved, dict) or saved.get("identity") == dataset.facts.identity:
        return
    now, before = dataset.facts, saved.get("source")
    line = f"resume: {now.source} has changed since the run began: it has {now.steps:,} steps in {now.episodes:,} "
    line += f"episodes; {before} had {saved.get('steps', 0):,} in {saved.get('episodes', 0):,}"
    raise UsageError(f"{line}; give the run its dataset by data=PATH, or start a new run", CHECKPOINT)


def with_table(config: Config, spec: EnvSpec, dataset: Dataset) -> Config:
    """Replace `replay.capacity=null` by the size of the dataset, or by what fits in half of the free memory.

    With workers, the table of their rows has its usual size. Raise UsageError if the whole dataset does not fit, too.
    """
    if config.mixes_data:
        from drl_cli.runtime.factories import with_whole_table  # slow: imports torch and gymnasium

        needed = replay_bytes(with_whole_table(config, dataset), spec)
        check_fits(f"data={config.data.text}", needed, free_memory(), "say mode=offline, which reads it in parts")
        return with_capacity(config, spec)
    from drl_cli.runtime.roles.reader import rows_of  # slow: imports gymnasium

    if config.replay.capacity is not None:
        return config
    needed = rows_of(config, dataset) * config.replay.row_stride
    full = dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=needed))
    share = free_memory() / 2 / max(1, replay_bytes(full, spec))
    capacity = needed if share >= 1 else max(1, int(needed * share))
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=capacity))


def with_reference(config: Config, dataset: Dataset) -> Config:
    """Replace `data.reference=null` by the reference returns of the dataset, if there are any."""
    if config.data.reference is not None:
        return config
    return dataclasses.replace(config, data=dataclasses.replace(config.data, reference=dataset.facts.reference))


def describe(dataset: Dataset) -> dict[str, object]:
    """Return the facts about a dataset for run.json."""
    facts = dataset.facts
    return {
        "source": facts.source,
        "identity": facts.identity,
        "env": facts.env,
        "steps": facts.steps,
        "episodes": facts.episodes,
    }


def spaces_of(dataset: Dataset) -> dict[str, object]:
    """Return the spaces of a dataset for spaces.json. They are the arguments of SpacesOnly."""
    from drl_cli.envs.trees import inner, space_to_json

    observations, actions = dataset.spaces
    has_mask = MASK in leaves(dataset.spec.obs) and MASK not in (inner(observations) or {})
    return {"observations": space_to_json(observations), "actions": space_to_json(actions), "has_mask": has_mask}


def data_advice(config: Config) -> list[str]:
    """Return a warning if the algorithm and the presence of a dataset do not fit each other.

    An algorithm for datasets needs a dataset or the weights of another run. In mode=offline, other algorithms of this
    package overestimate actions that the dataset does not have (Fujimoto et al. 2019, arXiv 1812.02900).
    """
    name, path = title(config.algo_name), module_path(config.algo.name)
    if is_for_data(config.algo.name) and not config.data.sources and not config.load_weights:
        return [f"warning: {name} is made for datasets, and this run has none; data=PATH or load_weights=RUN gives one"]
    if config.is_offline and path.startswith("drl_cli.") and not is_for_data(config.algo.name):
        advice = "algo=auto takes one that does; see docs/learning-from-data.md"
        return [f"warning: {name} does not keep its actions near those of the dataset and often fails here; {advice}"]
    return []


def data_text(config: Config, dataset: Dataset) -> list[str]:
    """Return lines about the dataset, for the start of the run."""
    from drl_cli.runtime.roles.reader import rows_of  # slow: imports gymnasium

    facts, returns = dataset.facts, dataset.facts.whole_returns
    figures = (
        f", return {score_text(returns.mean())} [{score_text(returns.min())}, {score_text(returns.max())}]"
        if len(returns)
        else ""
    )
    part = f"; {config.data.share:.0%} of every batch" if config.mixes_data else ""
    lines = [
        f"data: {facts.source}: {facts.steps:,} steps in {facts.episodes:,} episodes "
        f"({facts.terminations:,} terminated){figures}{part}"
    ]
    if config.is_offline and (rows := rows_of(config, dataset)) > config.replay.num_rows:
        share = f"{config.replay.num_rows / rows:.0%} of the dataset"
        lines.append(f"replay.capacity={config.replay.num_transitions}: replay holds {share}, which is read repeatedly")
    return lines

"""Checks of a dataset."""

from collections.abc import Iterator

from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.data.dataset import Dataset, reference_problem
from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.replay.tables import recorded_rows
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec


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

"""Check that replay can replace the columns that an algorithm writes."""

from collections.abc import Iterator

from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.errors import UsageError
from drl_cli.replay.frames import image_columns
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec


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

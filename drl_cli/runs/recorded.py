"""Find the datasets that drl-record wrote: those of a run, and all of them."""

import sys
from pathlib import Path

from drl_cli.data.find import MINARI, RUN, dataset_of_run, datasets_in, local_drafts, local_ids
from drl_cli.runs.end_text import relative_path
from drl_cli.runs.find import find_newest
from drl_cli.utils.shown import print


def dataset_path(source: str, output_dir: str) -> str:
    """Return `source`, or the path of a run's newest dataset in place of `run:RUN`. Print a note if it has others.

    `latest` is the newest run that has a dataset. Raise UsageError if there is no such run, or if it has no dataset.
    """
    if not source.startswith(RUN):
        return source
    folder = find_newest(source.removeprefix(RUN), output_dir, lambda run: bool(datasets_in(run / "data")))
    path, num = dataset_of_run(f"{RUN}{relative_path(folder)}"), len(datasets_in(folder / "data"))
    if num > 1:
        print(f"note: {source} is {path}, the newest of {num} datasets of this run", file=sys.stderr)
    return str(path)


def all_datasets(output_dir: str) -> list[str]:
    """Return the datasets of runs, those of environments below `output_dir`/data, and those in Minari's folder."""
    root = Path(output_dir)
    folders = [*sorted(root.glob("*/*/*/data")), *sorted(root.glob("data/*"))]
    found = [relative_path(path.absolute()) for folder in folders for path in datasets_in(folder)]
    return [*found, *(f"{MINARI}{id}" for id in local_ids()), *map(str, local_drafts())]

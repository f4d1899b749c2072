"""Find the datasets that drl-record wrote: those of a run, and all of them."""

from pathlib import Path

from drl_cli.data.find import MINARI, RUN, dataset_of_run, datasets_in, local_drafts, local_ids
from drl_cli.runs.end_text import relative_path
from drl_cli.runs.find import find_run


def dataset_path(source: str, output_dir: str) -> str:
    """Return `source`, or the path of the dataset of a run in place of `run:RUN`.

    Raise UsageError if there is no such run, or if the run has no dataset or several.
    """
    if not source.startswith(RUN):
        return source
    folder = find_run(source.removeprefix(RUN), output_dir)
    return str(dataset_of_run(f"{RUN}{relative_path(folder)}"))


def all_datasets(output_dir: str) -> list[str]:
    """Return the datasets of runs, those of environments below `output_dir`/data, and those in Minari's folder."""
    root = Path(output_dir)
    folders = [*sorted(root.glob("*/*/*/data")), *sorted(root.glob("data/*"))]
    found = [relative_path(path.absolute()) for folder in folders for path in datasets_in(folder)]
    return [*found, *(f"{MINARI}{id}" for id in local_ids()), *map(str, local_drafts())]

"""Find the datasets that drl-record wrote: those of a run, and all of them."""

from pathlib import Path

from drl_cli.data.dataset import DatasetError
from drl_cli.data.minari_format import PREFIX, data_folder, local_ids
from drl_cli.runs.end_text import relative_path
from drl_cli.runs.find import find_run

RUN = "run:"
"""`run:RUN` names the dataset that was recorded for a run."""


def dataset_path(source: str, output_dir: str) -> str:
    """Return `source`, or the path of the dataset of a run in place of `run:RUN`.

    Raise DatasetError if there is no such run, or if the run has no dataset or several.
    """
    if not source.startswith(RUN):
        return source
    folder = find_run(source.removeprefix(RUN), output_dir)
    found, run = _in_folder(folder / "data"), relative_path(folder)
    if not found:
        raise DatasetError(f"{source}: nothing was recorded for this run; type  drl-record run={run} episodes=100")
    if len(found) > 1:
        paths = ", ".join(relative_path(path) for path in found)
        raise DatasetError(f"{source}: {len(found)} datasets were recorded for this run; say one of them: {paths}")
    return str(found[0])


def all_datasets(output_dir: str) -> list[str]:
    """Return the datasets of runs, those of environments below `output_dir`/data, and those in Minari's folder."""
    root = Path(output_dir)
    folders = [*sorted(root.glob("*/*/*/data")), *sorted(root.glob("data/*"))]
    found = [relative_path(path.absolute()) for folder in folders for path in _in_folder(folder)]
    return [*found, *(f"{PREFIX}{id}" for id in local_ids())]


def _in_folder(folder: Path) -> list[Path]:
    """Return the datasets directly in a folder."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in paths if path.name[0] != "." and (path.suffix == ".npz" or data_folder(path))]

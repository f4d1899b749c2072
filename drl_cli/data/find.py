"""Find datasets by their names. It does not import gymnasium, so that checking a command line stays fast."""

import os
from pathlib import Path

from drl_cli.data.dataset import DatasetError

MINARI, RUN = "minari:", "run:"
METADATA, EPISODES = "metadata.json", "episodes.jsonl"
FORMATS = "a dataset is minari:ID, run:RUN, a folder that drl-record or Minari wrote, a file .npz or .hdf5"


def datasets_root() -> Path:
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def local_drafts() -> list[Path]:
    return sorted(path.parent for path in datasets_root().glob(f"**/{EPISODES}"))


def local_ids() -> list[str]:
    root = datasets_root()
    return sorted(str(path.parents[1].relative_to(root)) for path in root.glob(f"**/data/{METADATA}"))


def data_folder(folder: Path) -> Path | None:
    """Return the folder with the data of a Minari dataset, or None if there is no dataset in `folder`."""
    return next((path for path in (folder / "data", folder) if (path / METADATA).is_file()), None)


def is_draft(folder: Path) -> bool:
    return (folder / EPISODES).is_file()


def path_of(source: str) -> Path:
    """Return the path of a dataset that is not `minari:ID`."""
    return dataset_of_run(source) if source.startswith(RUN) else Path(source).expanduser()


def consent_file(source: str) -> Path:
    """Return the file of a dataset to which the user's consent belongs."""
    if source.startswith(MINARI):
        return datasets_root() / source.removeprefix(MINARI) / "data" / METADATA
    path = path_of(source)
    if is_draft(path):
        return path / EPISODES
    folder = data_folder(path)
    return path if folder is None else folder / METADATA


def absolute(source: str, run: Path | None = None) -> str:
    """Return the source with an absolute path, so that it means the same in every folder.

    If the path does not exist, and `run` is a run's folder, look for a file of the same name there and in the folders
    above it. Raise DatasetError if there is none.
    """
    if source.startswith(MINARI):
        return source
    path = path_of(source)
    if run is None or path.exists():
        return str(path.absolute())
    if found := next((near for folder in (run, *run.parents) if (near := folder / path.name).exists()), None):
        return str(found)
    raise DatasetError(f"no dataset {path}, and no {path.name} in {run} or the folders above it; say data=PATH")


def datasets_in(folder: Path) -> list[Path]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        path for path in paths if path.name[0] != "." and (path.suffix == ".npz" or data_folder(path) or is_draft(path))
    ]


def dataset_of_run(source: str) -> Path:
    """Return the newest dataset of `run:FOLDER` with a run's folder. Raise DatasetError if it has none."""
    run = source.removeprefix(RUN)
    if not (Path(run) / "run.json").is_file():
        raise DatasetError(f"{source}: {run} is no run's folder")
    found = datasets_in(Path(run) / "data")
    if not found:
        raise DatasetError(f"{source}: nothing was recorded for this run; type  drl-record run={run} episodes=100")
    return max(found, key=lambda path: (not is_draft(path), path.stat().st_mtime_ns))

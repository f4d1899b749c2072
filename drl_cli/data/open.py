"""Open a dataset by the name that the user typed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.data.combined import JoinedDataset
from drl_cli.data.dataset import Dataset, DatasetError, reference_problem
from drl_cli.data.draft import Draft
from drl_cli.data.find import FORMATS, MINARI, RUN, data_folder, dataset_of_run, is_draft
from drl_cli.data.flat import FlatRecording
from drl_cli.data.hdf5 import Hdf5Recording
from drl_cli.data.minari_format import MinariRecording, find_minari
from drl_cli.data.npz import Npz
from drl_cli.data.recorded import RecordedDataset
from drl_cli.data.recording import Recording, pieces_of
from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.recorded import StepMap, inferred_space
from drl_cli.envs.trees import space_from_json
from drl_cli.errors import MISSING
from drl_cli.types import Array


def open_dataset(
    source: str,
    env: EnvConfig | None = None,
    *,
    is_checked: bool = False,
    download: bool = False,
    reference: Sequence[float] | None = None,
) -> RecordedDataset:
    """Return a dataset. Raise DatasetError if it is missing, damaged or empty, or does not fit the environment.

    With `env`, the environment's spaces are used, and the dataset must fit them. Without, the dataset's own spaces are
    used, or spaces that fit the values. Unless `is_checked` is true, all steps are read once, to find values that are
    not finite or outside their space. With `download`, Minari downloads a missing dataset `minari:ID`. `reference` has
    the returns of a random policy and of an expert, and replaces the returns that the dataset gives.
    """
    try:
        recording = open_recording(source, download)
        if reference is not None:
            recording.reference = as_reference(reference)
        dataset = RecordedDataset(recording, _steps(recording, env))
        if not is_checked:
            dataset.check()
    except OSError as error:
        raise DatasetError(f"{source} can't be read: {error.strerror or error}") from error
    return dataset


def open_datasets(
    sources: Sequence[str], env: EnvConfig | None = None, *, is_checked: bool = False, download: bool = False
) -> Dataset:
    """Return the dataset that `open_dataset` opens, or several datasets joined.

    Raise DatasetError, too, if their spaces differ.
    """
    found = [open_dataset(source, env, is_checked=is_checked, download=download) for source in sources]
    first, *others = found
    for other in others:
        if lines := first.steps.differences(other.steps.observation_space, other.steps.action_space):
            what = f"{other.facts.source} can't be joined with {first.facts.source}"
            raise DatasetError([f"{what}: {line}" for line in lines])
    return JoinedDataset(found) if others else first


def as_reference(returns: Sequence[float]) -> tuple[float, float]:
    """Return the returns of a random policy and of an expert. Raise DatasetError if they are something else."""
    if line := reference_problem(returns):
        raise DatasetError(line)
    return returns[0], returns[1]


def open_recording(source: str, download: bool = False) -> Recording:
    """Return the recording that `source` names. Raise DatasetError or OSError."""
    if source.startswith(MINARI):
        return MinariRecording(source, find_minari(source.removeprefix(MINARI), download) / "data")
    path = dataset_of_run(source) if source.startswith(RUN) else Path(source).expanduser()
    if (source == "latest" and not path.exists()) or (path / "run.json").is_file():
        raise DatasetError(f"'{source}' is a run, not a dataset; say data=run:{source}")
    if not path.exists():
        raise DatasetError(f"no dataset '{source}'; {FORMATS}")
    if folder := data_folder(path):
        return MinariRecording(source, folder)
    if not (path.is_file() or is_draft(path)):
        raise DatasetError(f"{source} is no dataset; {FORMATS}")
    if path.suffix == ".npz" or is_draft(path):
        return NpzRecording(source, path)
    if path.suffix in (".hdf5", ".h5"):
        return Hdf5Recording(source, path)
    raise DatasetError(f"{source} is no dataset; {FORMATS}")


class NpzRecording(FlatRecording):
    """The recording in an .npz file or a draft. What drl-record adds is in the array `metadata`, a text with json."""

    def __init__(self, name: str, path: Path) -> None:
        self._file: Npz | Draft = Draft(path) if is_draft(path) else Npz(path)
        self.stamp = self._file.stamp
        super().__init__(name, self._file)
        if "metadata" in self._file:
            try:
                self._read_metadata(json.loads(self._file.text("metadata")))
            except (ValueError, KeyError, TypeError, AttributeError, EnvError) as error:
                raise DatasetError(f"{name} is damaged: its metadata can't be read ({error})") from error

    def verify(self) -> None:
        self._file.verify()

    def _read_metadata(self, metadata: dict[str, Any]) -> None:
        observations, actions = (space_from_json(metadata[f"{kind}_space"]) for kind in ("observation", "action"))
        self.spaces, self.env, self.has_mask = (observations, actions), metadata["env"], metadata["has_mask"]
        self.provenance, reference = metadata["drl_cli"], metadata["reference"]
        self.pieces = pieces_of(self.provenance)
        self.reference = reference and (float(reference[0]), float(reference[1]))


def _steps(recording: Recording, env: EnvConfig | None) -> StepMap:
    """Return the map of the environment's spaces, of the recorded spaces, or of spaces that fit the values."""
    try:
        if env is not None:
            steps = StepMap.of_env(env)
            if recording.spaces is not None and (lines := steps.differences(*recording.spaces)):
                raise DatasetError([f"{recording.name}: {line}" for line in lines])
            return steps
        id = recording.env or recording.name
        return StepMap.of_spaces(id, *(recording.spaces or _inferred(recording)), recording.has_mask)
    except MissingExtra as error:
        raise DatasetError(str(error), MISSING) from error
    except EnvError as error:
        raise DatasetError(f"{recording.name}: {error}") from error


def _inferred(recording: Recording) -> tuple[Any, Any]:  # Any: spaces of Gymnasium
    """Return spaces that fit all values of a recording."""
    if not len(recording):
        raise DatasetError(f"{recording.name} is empty: it has no steps")
    bounds: list[dict[str, tuple[str, tuple[int, ...], Array, Array]]] = [{}, {}]
    for part in recording.parts():
        steps = recording.read(part.start, part.stop)
        for found, parts in zip(bounds, (steps.obs, steps.action), strict=True):
            for path, values in parts.items():
                low, high = values.min(0), values.max(0)
                if path in found:
                    low, high = np.minimum(low, found[path][2]), np.maximum(high, found[path][3])
                found[path] = (str(values.dtype), values.shape[1:], low, high)
    return inferred_space(bounds[0], False), inferred_space(bounds[1], True)

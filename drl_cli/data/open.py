"""Open a dataset by the name that the user typed."""

from pathlib import Path

import numpy as np

from drl_cli.data.dataset import Dataset, DatasetError
from drl_cli.data.flat import FlatRecording
from drl_cli.data.npz import Npz
from drl_cli.data.recorded import RecordedDataset
from drl_cli.data.recording import Recording
from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.recorded import StepMap, inferred_space
from drl_cli.errors import MISSING
from drl_cli.types import Array

FORMATS = "a dataset is a file .npz"


def open_dataset(source: str, env: EnvConfig | None = None, *, is_checked: bool = False) -> Dataset:
    """Return a dataset. Raise DatasetError if it is missing, damaged or empty, or does not fit the environment.

    With `env`, the environment's spaces are used, and the dataset must fit them. Without, the dataset's own spaces are
    used, or spaces that fit the values. Unless it `is_checked`, all steps are read once, which finds values that are
    not finite or not in their space.
    """
    try:
        recording = open_recording(source)
        dataset = RecordedDataset(recording, _steps(recording, env))
        if not is_checked:
            dataset.check()
    except OSError as error:
        raise DatasetError(f"{source} can't be read: {error.strerror or error}") from error
    return dataset


def open_recording(source: str) -> Recording:
    """Return the recording that `source` names. Raise DatasetError or OSError."""
    path = Path(source).expanduser()
    if not path.exists():
        raise DatasetError(f"no dataset '{source}'; {FORMATS}")
    if path.suffix == ".npz":
        return NpzRecording(source, path)
    raise DatasetError(f"{source} is no dataset; {FORMATS}")


class NpzRecording(FlatRecording):
    """The recording in an .npz file."""

    def __init__(self, name: str, path: Path) -> None:
        self._file = Npz(path)
        self.stamp = self._file.stamp
        super().__init__(name, self._file)

    def verify(self) -> None:
        self._file.verify()


def _steps(recording: Recording, env: EnvConfig | None) -> StepMap:
    """Return the map of the environment's spaces, of the recorded spaces, or of spaces that fit the values."""
    try:
        if env is not None:
            steps = StepMap.of_env(env)
            if recording.spaces is not None and (lines := steps.differences(*recording.spaces)):
                raise DatasetError([f"{recording.name}: {line}" for line in lines])
            return steps
        return StepMap.of_spaces(recording.env or recording.name, *(recording.spaces or _inferred(recording)))
    except MissingExtra as error:
        raise DatasetError(str(error), MISSING) from error
    except EnvError as error:
        raise DatasetError(f"{recording.name}: {error}") from error


def _inferred(recording: Recording) -> tuple[object, object]:
    """Return spaces that fit all values of a recording."""
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

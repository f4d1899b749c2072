"""Open a dataset by the name that the user typed: the steps of a recording, checked, in the units of a policy."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.data.dataset import Dataset, DatasetError, Facts, JoinedDataset, reference_problem
from drl_cli.data.draft import Draft
from drl_cli.data.find import FORMATS, MINARI, consent_file, data_folder, is_draft, path_of
from drl_cli.data.minari_format import MinariRecording, find_minari
from drl_cli.data.recording import FlatRecording, Hdf5Recording, Npz, Recording, closed, pieces_of
from drl_cli.envs.config import EnvConfig, EnvError, EnvFault, MissingExtra
from drl_cli.envs.recorded import StepMap, inferred_space
from drl_cli.envs.trees import space_from_json
from drl_cli.errors import MISSING
from drl_cli.types import Array, Columns, column_name


class RecordedDataset(Dataset):
    """The steps of a recording, converted by `steps`. Raise DatasetError if they do not fit the spaces."""

    def __init__(self, recording: Recording, steps: StepMap) -> None:
        self._recording, self.steps, self.spec = recording, steps, steps.spec
        self.spaces = steps.observation_space, steps.action_space
        reward = recording.reward
        truncated, self.ends = closed(recording.name, recording.terminated, recording.truncated)
        self._check_parts()
        self._truncated = truncated
        if (bad := _first(~np.isfinite(reward))) is not None:
            raise DatasetError(f"{recording.name}: the reward of step {bad:,} is {reward[bad]}")
        self.facts = Facts(
            source=recording.name,
            identity=self._identity(),
            env=recording.env,
            steps=len(recording),
            episodes=len(self.ends),
            terminations=int(recording.terminated.sum()),
            truncations=int(truncated.sum()),
            returns=np.add.reduceat(reward, np.append(0, self.ends[:-1])),
            is_whole=np.isin(np.arange(len(self.ends)), recording.pieces, invert=True),
            reference=recording.reference,
        )

    def read(self, first: int, last: int) -> Columns:
        recorded = self._recording.read(first, last)
        try:
            obs, next_obs = (self.steps.obs(parts) for parts in (recorded.obs, recorded.next_obs))
            action, clamped = self.steps.actions(recorded.action)
        except EnvFault as error:
            raise DatasetError(f"{self._recording.name} does not fit {self.spec.id}: {error}") from error
        self.clamped += clamped
        return {
            **{column_name("obs", path): part for path, part in obs.items()},
            "action": action,
            "reward": self._recording.reward[first:last].astype(np.float32),
            **{column_name("next_obs", path): part for path, part in next_obs.items()},
            "terminated": self._recording.terminated[first:last].copy(),
            "truncated": self._truncated[first:last].copy(),
        }

    def check(self) -> None:
        """Read everything once. Raise DatasetError if the file is damaged or a value is not in its space."""
        self._recording.verify()
        for part in self._recording.parts():
            self.read(part.start, part.stop)
        self.clamped = 0

    def _check_parts(self) -> None:
        found = self._recording.read(0, 1)
        expected = (
            ("observations", found.obs, self.steps.obs_paths),
            ("actions", found.action, self.steps.action_paths),
        )
        for name, parts, paths in expected:
            if missing := sorted(set(paths) - parts.keys()):
                has, needs = (", ".join(sorted(keys)) or "one array" for keys in (set(parts), set(paths)))
                first = f"no {missing[0]!r} in its {name}" if missing[0] else f"its {name} have parts"
                raise DatasetError(f"{self._recording.name}: {first}: it has {has}, {self.spec.id} has {needs}")

    def _identity(self) -> str:
        recording, content = self._recording, hashlib.sha256(self._recording.stamp.encode())
        for column in (recording.reward, recording.terminated, self._truncated):
            content.update(column.tobytes())
        return content.hexdigest()


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
    if line := reference_problem(returns):
        raise DatasetError(line)
    return returns[0], returns[1]


def open_recording(source: str, download: bool = False) -> Recording:
    """Return the recording that `source` names. Raise DatasetError or OSError."""
    if source.startswith(MINARI):
        return MinariRecording(source, find_minari(source.removeprefix(MINARI), download) / "data")
    path = path_of(source)
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


def _first(bad: Array) -> int | None:
    return int(bad.argmax()) if bad.any() else None


def time_limit(source: object) -> int | None:
    """Return the number of steps after which the episodes of the dataset were cut, None if no limit can be seen.

    `source` is the value of the key `data.source`. The limit is the length of the longest episode, if it was truncated.
    A dataset that can't be read has no limit here, and the checks of the dataset report the reason later.
    """
    sources = [source] if isinstance(source, str) else source
    if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
        return None
    try:
        found = [_longest(one, consent_file(one).stat().st_mtime_ns) for one in sources]
    except (DatasetError, OSError):
        return None
    steps, is_cut = max(found, default=(0, False))
    return steps if is_cut else None


@cache
def _longest(source: str, stamp: int) -> tuple[int, bool]:
    """Return the steps of the longest whole episode of a dataset, and whether such an episode was truncated.

    `stamp` changes with the file, so that a file with other contents is read again.
    """
    recording = open_recording(source)
    truncated, ends = closed(source, recording.terminated, recording.truncated)
    is_whole = np.isin(np.arange(len(ends)), recording.pieces, invert=True)
    pairs = zip(np.diff(ends, prepend=0)[is_whole].tolist(), truncated[ends - 1][is_whole].tolist(), strict=True)
    return max(pairs, default=(0, False))

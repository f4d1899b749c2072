"""RecordedDataset: the steps of a recording in the units of a policy, checked."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from drl_cli.data.dataset import Dataset, DatasetError, Facts
from drl_cli.data.recording import Recording, closed
from drl_cli.envs.config import EnvFault
from drl_cli.envs.recorded import StepMap
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
        with self._as_dataset_error():
            obs, next_obs = (self.steps.obs(parts) for parts in (recorded.obs, recorded.next_obs))
            action, clamped = self.steps.actions(recorded.action)
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
        """Raise DatasetError if the recording has other parts than the spaces."""
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

    @contextmanager
    def _as_dataset_error(self) -> Iterator[None]:
        try:
            yield
        except EnvFault as error:
            raise DatasetError(f"{self._recording.name} does not fit {self.spec.id}: {error}") from error


def _first(bad: Array) -> int | None:
    return int(bad.argmax()) if bad.any() else None

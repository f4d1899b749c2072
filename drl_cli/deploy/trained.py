"""The trained policy of a run, for the commands that act with one."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl_cli.errors import CHECKPOINT, CheckpointError, UsageError
from drl_cli.preflight.environment import environment_spec
from drl_cli.runs.find import check_format, find_run, find_step, read_config
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import load_model
from drl_cli.types import Array, EnvSpec

if TYPE_CHECKING:  # it brings gymnasium
    from drl_cli.deploy.policy import TrainedPolicy


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds of a policy, and what it was trained for; `checkpoint` is the step folder itself."""

    run: Path
    checkpoint: Path
    config: Config
    spec: EnvSpec
    params: Array
    manifest: dict[str, Any]

    def at(self, checkpoint: Path) -> "Trained":
        """The same of another step folder; raises UsageError (exit 8) where it can't be read."""
        params, manifest = _read(checkpoint)
        return dataclasses.replace(self, checkpoint=checkpoint, params=params, manifest=manifest)

    def policy(self) -> "TrainedPolicy":
        """The policy; raises UsageError (exit 8) where the parameters do not fit the run's config."""
        from drl_cli.deploy.policy import TrainedPolicy

        try:
            return TrainedPolicy(self.config, self.spec, self.params, self.checkpoint, self.manifest)
        except ValueError as error:
            raise UsageError(f"{self.checkpoint}: does not fit the run's config: {error}", CHECKPOINT) from error


def open_trained(run: str, checkpoint: str = "best", output_dir: str = "outputs") -> Trained:
    """The checkpoint of a run, its environment's spaces read anew; raises UsageError."""
    folder = find_run(run, output_dir)
    step = find_step(folder, checkpoint)
    check_format(step)
    config = read_config(folder)
    params, manifest = _read(step)
    plain = dataclasses.replace(config, env=dataclasses.replace(config.env, frame_stack="none"))  # for replay alone
    return Trained(folder, step, config, environment_spec(plain, trains=False), params, manifest)


def _read(checkpoint: Path) -> tuple[Array, dict[str, Any]]:
    try:
        return load_model(checkpoint)
    except CheckpointError as error:
        raise UsageError(str(error), CHECKPOINT) from error


def all_steps(folder: Path) -> list[Path]:
    """The step folders of a run in the order of their env steps."""
    return sorted(path for path in (folder / "checkpoints").glob("step_*") if path.is_dir())

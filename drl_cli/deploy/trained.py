"""The trained policy of a run, for the commands that act with it."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl_cli.envs.config import EnvError, EnvFault, MissingExtra
from drl_cli.errors import CHECKPOINT, MISSING, RESOURCES, USER_CODE, CheckpointError, UsageError, users_errors
from drl_cli.preflight.environment import environment_spec
from drl_cli.runs.find import check_format, find_run, find_step, read_config
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import load_model
from drl_cli.types import Array, EnvSpec

if TYPE_CHECKING:  # it imports gymnasium
    from drl_cli.deploy.policy import TrainedPolicy


@dataclass(frozen=True)
class Trained:
    """The parameters of a checkpoint, with the config and spaces of its run. `checkpoint` is a `step_*` folder."""

    run: Path
    checkpoint: Path
    config: Config
    spec: EnvSpec
    params: Array
    manifest: dict[str, Any]

    def at(self, checkpoint: Path) -> "Trained":
        """Return another checkpoint of the same run. Raise UsageError (exit 8) if it can't be read."""
        params, manifest = _read(checkpoint)
        return dataclasses.replace(self, checkpoint=checkpoint, params=params, manifest=manifest)

    def stages(self) -> list["Trained"]:
        """Return the run's checkpoints by their env steps, one for each number of env steps."""
        folders = sorted(path for path in (self.run / "checkpoints").glob("step_*") if path.is_dir())
        stages = {int(stage.manifest["env_steps"]): stage for stage in map(self.at, folders)}
        return [stages[env_steps] for env_steps in sorted(stages)]

    def policy(self) -> "TrainedPolicy":
        """Return the policy. Raise UsageError (exit 8) if the parameters do not fit the run's config."""
        from drl_cli.deploy.policy import TrainedPolicy

        try:
            return TrainedPolicy(self.config, self.spec, self.params, self.checkpoint, self.manifest)
        except ValueError as error:
            raise UsageError(f"{self.checkpoint}: does not fit the run's config: {error}", CHECKPOINT) from error

    @contextmanager
    def acting(self, path: Path) -> Iterator[None]:
        """Turn errors of the environment, and of writing to `path`, into UsageErrors with their exit codes."""
        from drl_cli.envs.frames import CantRender

        with users_errors(self.config.outside_modules):
            try:
                yield
            except CantRender as error:
                raise UsageError(str(error)) from error
            except MissingExtra as error:
                raise UsageError(str(error), MISSING) from error
            except (EnvFault, EnvError) as error:
                raise UsageError(f"{self.config.env.id}: {error}", USER_CODE) from error
            except OSError as error:
                raise UsageError(f"{path}: {error}", RESOURCES) from error


def open_trained(run: str, checkpoint: str = "best", output_dir: str = "outputs") -> Trained:
    """Open a checkpoint of a run, and read the spaces from its environment. Raise UsageError."""
    folder = find_run(run, output_dir)
    step = find_step(folder, checkpoint)
    check_format(step)
    config = read_config(folder)
    params, manifest = _read(step)
    plain = dataclasses.replace(config, env=dataclasses.replace(config.env, frame_stack="none"))
    return Trained(folder, step, config, environment_spec(plain, trains=False), params, manifest)


def _read(checkpoint: Path) -> tuple[Array, dict[str, Any]]:
    try:
        return load_model(checkpoint)
    except CheckpointError as error:  # drl_cli.load raises UsageError only
        raise UsageError(error.problems, CHECKPOINT) from error

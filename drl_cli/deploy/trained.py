"""Open the trained policy of a run, for the commands that act with it."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl_cli.algos.lookup import title
from drl_cli.envs.config import EnvError, EnvFault, MissingExtra
from drl_cli.errors import (
    CHECKPOINT,
    MISSING,
    RESOURCES,
    USER_CODE,
    CheckpointError,
    UsageError,
    as_usage_error,
    users_errors,
)
from drl_cli.preflight.environment import environment_spec
from drl_cli.runs.find import check_format, find_saved_step, read_config
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import load_model
from drl_cli.types import EnvSpec

if TYPE_CHECKING:  # slow: imports gymnasium
    from drl_cli.deploy.policy import TrainedPolicy


def open_policy(
    run: str,
    checkpoint: str = "best",
    output_dir: str = "outputs",
    simulations: int | None = None,
    trust: bool = False,
) -> "TrainedPolicy":
    """Return the policy of a run's checkpoint. Raise UsageError if it can't be opened.

    `simulations` replaces the number of simulations of a policy that searches.
    """
    step, config = find_step_and_config(run, checkpoint, output_dir, trust)
    return open_step(step, with_simulations(config, simulations))


def with_simulations(config: Config, simulations: int | None) -> Config:
    """Return the config with another number of simulations of each search, unless it is None.

    Raise UsageError if the algorithm does not search.
    """
    if simulations is None:
        return config
    if not hasattr(config.algo, "simulations"):
        raise UsageError(f"simulations={simulations}: {title(config.algo_name)} does not search; leave it out")
    changed: dict[str, Any] = {"simulations": simulations}  # Any: an option that only some algorithms have
    return dataclasses.replace(config, algo=dataclasses.replace(config.algo, **changed))


def find_step_and_config(run: str, checkpoint: str, output_dir: str, trust: bool = False) -> tuple[Path, Config]:
    """Return the folder of a run's checkpoint, and the run's config. Raise UsageError if they can't be read.

    With `trust`, the user agrees to the modules that the config names.
    """
    folder, step = find_saved_step(run, checkpoint, output_dir)
    check_format(step)
    return step, read_config(folder, trust)


def open_step(step: Path, config: Config) -> "TrainedPolicy":
    """Return the policy of a checkpoint's folder. Raise UsageError if it can't be opened."""
    if not config.has_env:
        advice = f"drl-train load_weights={step} env=ID begins a run in an environment"
        raise UsageError(f"{step}: its run had no environment (env=none), so its policy can't act; {advice}")
    plain = dataclasses.replace(config, env=dataclasses.replace(config.env, frame_storage="none"))
    return _policy(step, config, environment_spec(plain, trains=False))


def stages(policy: "TrainedPolicy") -> list["TrainedPolicy"]:
    """Return the policies of all checkpoints of the same run, ordered by their position, without duplicates."""
    folders = sorted(path for path in (policy.run / "checkpoints").glob("step_*") if path.is_dir())
    found = [_policy(folder, policy.config, policy.spec) for folder in folders]
    by_position = {int(stage.manifest[policy.config.clock.unit]): stage for stage in found}
    return [by_position[position] for position in sorted(by_position)]


def _policy(checkpoint: Path, config: Config, spec: EnvSpec) -> "TrainedPolicy":
    """Return the policy of a checkpoint. Raise UsageError (exit 8) if it can't be read or does not fit the config."""
    from drl_cli.deploy.policy import TrainedPolicy

    prefix = f"{checkpoint}: does not fit the run's config: "
    with (
        users_errors(config.outside_modules),
        as_usage_error(CheckpointError, exit_code=CHECKPOINT),  # drl_cli.load raises only UsageError
        as_usage_error(ValueError, prefix=prefix, exit_code=CHECKPOINT),
    ):
        params, manifest = load_model(checkpoint)
        return TrainedPolicy(config, spec, params, checkpoint, manifest)


@contextmanager
def acting(config: Config, path: Path) -> Iterator[None]:
    """In this context, convert errors of the environment and of writing `path` to UsageErrors with exit codes."""
    from drl_cli.envs.frames import CantRender

    with (
        users_errors(config.outside_modules),
        as_usage_error(CantRender),
        as_usage_error(MissingExtra, exit_code=MISSING),
        as_usage_error(EnvFault, EnvError, prefix=f"{config.env.id}: ", exit_code=USER_CODE),
        as_usage_error(OSError, prefix=f"{path}: ", exit_code=RESOURCES),
    ):
        yield

"""Open the trained policy of a run, for the commands that act with it."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl_cli.algos.lookup import title
from drl_cli.config.config import Config
from drl_cli.envs.config import ACTIONS_OF, SPACES_ONLY, EnvError, EnvFault, MissingExtra
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
from drl_cli.run_folder import SPACES_FILE
from drl_cli.run_folder.checkpoint import load_model
from drl_cli.run_folder.find import check_format, find_saved_step, read_config
from drl_cli.run_folder.saved_run import read_json
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose
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


def acting_config(config: Config, run: Path, env: str | None) -> Config:
    """Return the config of a run with the environment that `env=` names, or with its own if `env` is None.

    Raise UsageError if there is no such environment, if the run has none, or if the spaces are others.
    """
    if env is None and not config.has_env:
        raise UsageError(f"{run.name}: the run had no environment (env=none), so there is none to act in; say env=ID")
    if env is None:
        return config
    command = read_command([f"env={env}"])
    check_command(command)
    named = compose(command.overrides).env
    part = dataclasses.replace(config.env, name=named.name, id=named.id, kwargs=named.kwargs, wrappers=named.wrappers)
    changed = dataclasses.replace(config, env=part)
    own = config if config.has_env else _with_spaces_only(config, run)
    before, after = (environment_spec(each, trains=False) for each in (own, changed))
    kinds = ((each.action.kind, each.action.size, each.action.choices) for each in (before, after))
    for name, is_same in (("observations", before.obs == after.obs), ("actions", len({*kinds}) == 1)):
        if not is_same:
            raise UsageError(f"env={env}: its {name} are others than those of {run.name}")
    if config.has_env or before.action.kind != "box":
        return changed
    in_its_units = {"_name_": ACTIONS_OF, "actions": own.env.kwargs["actions"]}
    return dataclasses.replace(changed, env=dataclasses.replace(part, wrappers=(*part.wrappers, in_its_units)))


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
    if not config.has_env:
        config = _with_spaces_only(config, step.parents[1])
    plain = dataclasses.replace(config, env=dataclasses.replace(config.env, frame_storage="none"))
    return _policy(step, config, environment_spec(plain, trains=False))


def _with_spaces_only(config: Config, run: Path) -> Config:
    """Return the config of a run without an environment with the spaces of its dataset as the environment.

    Raise UsageError if the run has not saved the spaces, or if their file is damaged (exit 8).
    """
    from drl_cli.envs.recorded import SpacesOnly  # slow: imports gymnasium

    if not (arguments := read_json(run / SPACES_FILE)):
        raise UsageError(f"{run}: the run had no environment (env=none), and has no {SPACES_FILE}; say env=ID")
    with as_usage_error(EnvError, TypeError, prefix=f"{run / SPACES_FILE} is damaged: ", exit_code=CHECKPOINT):
        SpacesOnly(**arguments)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, id=SPACES_ONLY, kwargs=arguments))


def stages(policy: "TrainedPolicy") -> list["TrainedPolicy"]:
    """Return the policies of all checkpoints of the same run, ordered by their position, without duplicates."""
    folders = sorted(path for path in (policy.run / "checkpoints").glob("step_*") if path.is_dir())
    found = [_policy(folder, policy.config, policy.spec) for folder in folders]
    by_position = {int(stage.manifest[policy.config.clock.unit]): stage for stage in found}
    return [by_position[position] for position in sorted(by_position)]


def _policy(checkpoint: Path, config: Config, spec: EnvSpec) -> "TrainedPolicy":
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
    from drl_cli.envs.faults import CantRender

    with (
        users_errors(config.outside_modules),
        as_usage_error(CantRender),
        as_usage_error(MissingExtra, exit_code=MISSING),
        as_usage_error(EnvFault, EnvError, prefix=f"{config.env.id}: ", exit_code=USER_CODE),
        as_usage_error(OSError, prefix=f"{path}: ", exit_code=RESOURCES),
    ):
        yield

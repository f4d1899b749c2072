"""Checks of the environment: its spaces, its first steps and its evaluation variant."""

import dataclasses
import re

from drl_cli.algos.lookup import title
from drl_cli.envs.config import NO_ENV, EnvError, EnvFault, MissingExtra
from drl_cli.errors import MISSING, USER_CODE, UsageError, as_usage_error
from drl_cli.networks.images import as_image, is_large
from drl_cli.replay.builders import RETURN
from drl_cli.replay.windows import goal_problems
from drl_cli.runtime.config import Config
from drl_cli.settings.env_names import is_mujoco
from drl_cli.settings.first_try import WITHOUT_REWARDS
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils.headless import has_display
from drl_cli.utils.outside import missing_arguments, raised
from drl_cli.utils.run_log import tell
from drl_cli.utils.spelling import did_you_mean

OWN_SCALE = ("dreamer", "flashsac", "mrq", "muzero", "gumbel_muzero", "sampled_muzero")
"""The algorithms that scale rewards by themselves."""


def environment_spec(config: Config, trains: bool = True) -> EnvSpec:
    """Return the environment's spec. Raise UsageError if the environment is missing, fails, or can't be used."""
    from drl_cli.envs.trials.apart import ProcessEnded, spec_apart

    if not config.has_env:
        raise UsageError(f"env={NO_ENV}: there is no environment; say env=ID")
    if config.env.kwargs.get("render_mode") == "human" and is_mujoco(config.env.id) and not has_display():
        advice = "leave it out, and record a video with drl-play run=RUN"
        raise UsageError(f"env.kwargs.render_mode=human needs a display; {advice}", MISSING)
    try:
        return spec_apart(config.env, trains, config.worker.step_timeout_s)
    except EnvError as error:
        raise UsageError(str(error)) from error
    except ProcessEnded as error:
        raise UsageError(f"{config.env.id}: {error}", USER_CODE) from None  # its traceback has nothing of the user
    except (MissingExtra, EnvFault) as error:
        raise UsageError(str(error), MISSING if isinstance(error, MissingExtra) else USER_CODE) from error
    except Exception as error:
        if line := argument_line(config, error):
            raise UsageError(line) from error
        raise UsageError(f"{config.env.id} {raised(error)}", USER_CODE) from error


def argument_line(config: Config, error: Exception) -> str | None:
    """Return an error line with the environment's arguments, if `env.kwargs` lacks one or has a wrong one."""
    from drl_cli.envs.make import arguments

    if names := missing_arguments(error):
        values = " ".join(f"env.kwargs.{name}=..." for name in names if name in arguments(config.env.id))
        return f"env.kwargs: {config.env.id} needs {', '.join(names)}; say {values}" if values else None
    match = re.search(r"unexpected keyword argument '(\w+)'", str(error)) if isinstance(error, TypeError) else None
    if match is None or match[1] not in config.env.kwargs or not (known := arguments(config.env.id)):
        return None
    hint = did_you_mean(match[1], known)
    line = f"env.kwargs.{match[1]}: {config.env.id} has no argument '{match[1]}'.{hint}"
    return f"{line}   arguments: {', '.join(known)}"


def try_environment(config: Config, spec: EnvSpec) -> None:
    """Take random steps. Raise UsageError (exit 4) if the environment fails. Warn if it behaves unusually."""
    from drl_cli.envs.trials.apart import ProcessEnded, try_apart

    num, seconds = (min(2, config.worker.envs), 5.0) if config.dry_run else (1, 0.3)
    env = config.env
    if config.algo.name in (*WITHOUT_REWARDS, *OWN_SCALE):  # no warning about the size of rewards
        env = dataclasses.replace(env, normalize_reward=True)
    with as_usage_error(EnvFault, prefix=f"{config.env.id}: ", exit_code=USER_CODE):
        try:
            limit_s, dry = config.worker.step_timeout_s, config.dry_run
            notes = try_apart(env, spec, num=num, seconds=seconds, timeout_s=limit_s, is_thorough=dry)
        except ProcessEnded as error:
            raise UsageError(f"{config.env.id}: {error}", USER_CODE) from None
    for note in notes:
        tell(f"warning: {note}")


def warn_of_single_images(config: Config, spec: EnvSpec) -> None:
    """Print a warning if an observation is one large image and the network has no memory: one image has no motion."""
    parts = leaves(spec.obs)
    images = {path: as_image(parts[path]) for path, stack in spec.frame_stacks.items() if stack.k == 1}
    is_single = any(
        image and image.channels in (1, 3) and image.frames == 1 and is_large(image) for image in images.values()
    )
    if is_single and config.has_env and config.network.memory == "none":
        advice = "env.frame_stack=4 joins the last four" if "" in images else "network=lstm remembers earlier images"
        tell(f"warning: {config.env.name}: each observation is one image, in which no motion shows; {advice}")


def check_goals(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if replay changes goals, and the environment has no goals or can't compute their rewards."""
    if not config.replay.changes_goals:
        return
    from drl_cli.envs.goals import GoalOutcome
    from drl_cli.envs.trials.apart import ProcessEnded, apart

    if RETURN in config.data_columns:
        name = title(config.algo_name)
        raise UsageError(f"replay=hindsight: {name} learns from returns, which other goals change; say replay=uniform")
    if problems := [*goal_problems(spec)]:
        raise UsageError(problems)
    with as_usage_error(EnvError), as_usage_error(EnvFault, exit_code=USER_CODE):
        try:
            apart(config.env, config.worker.step_timeout_s, lambda tick: GoalOutcome(config.env, tick).close())
        except ProcessEnded as error:
            raise UsageError(f"{config.env.id}: {error}", USER_CODE) from None


def check_evaluation(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if the evaluation environment can't be made, or if its spaces differ from those in training."""
    if not config.manage.env_kwargs:
        return
    env = config.env.for_evaluation(config.manage.env_kwargs)
    try:
        evaluated = environment_spec(dataclasses.replace(config, env=env), trains=False)
    except UsageError as error:
        given = f"manage.env_kwargs={dict(config.manage.env_kwargs)}: "
        own = f"{given}env.kwargs."  # an argument that the environment does not have
        problems = [f"{given}{line}".replace(own, "manage.env_kwargs.") for line in error.problems]
        raise UsageError(problems, error.exit_code) from error
    for name, before, after in (("observations", spec.obs, evaluated.obs), ("actions", spec.action, evaluated.action)):
        if before != after:
            raise UsageError(f"manage.env_kwargs: with them the environment has other {name} than in training")

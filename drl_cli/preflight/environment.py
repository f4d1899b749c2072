"""Check the environment or the dataset that a run learns from."""

import dataclasses
import re
from collections.abc import Iterator

from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.config.config import Config
from drl_cli.config.rows import data_columns, stackings_of
from drl_cli.data.dataset import Dataset, reference_problem
from drl_cli.envs.config import NO_ENV, EnvError, EnvFault, MissingExtra
from drl_cli.errors import CHECKPOINT, MISSING, USER_CODE, UsageError, as_usage_error
from drl_cli.networks.inputs import as_image, is_large
from drl_cli.replay.builders import RETURN
from drl_cli.replay.tables import recorded_rows
from drl_cli.replay.windows import goal_problems
from drl_cli.settings.env_names import is_mujoco
from drl_cli.settings.first_try import WITHOUT_REWARDS
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils.machine import has_display
from drl_cli.utils.outside import missing_arguments, raised
from drl_cli.utils.shown import tell
from drl_cli.utils.spelling import did_you_mean

OWN_SCALE = ("dreamer", "tdmpc2", "flashsac", "mrq", "muzero", "gumbel_muzero", "sampled_muzero")
"""The algorithms that scale rewards by themselves."""


def environment_spec(config: Config, trains: bool = True) -> EnvSpec:
    """Return the environment's spec. Raise UsageError if the environment is missing, fails, or can't be used."""
    from drl_cli.envs.apart import ProcessEnded, spec_apart

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
    from drl_cli.envs.apart import ProcessEnded, try_apart

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
    from drl_cli.envs.apart import ProcessEnded, apart
    from drl_cli.envs.goals import GoalOutcome

    if RETURN in data_columns(config):
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


def open_data(config: Config) -> Dataset | None:
    """Open the dataset of a run, and read it once. Return None for a run without a dataset.

    Raise UsageError if there is no dataset, if it is damaged or empty, or if it does not fit the environment.
    """
    if problems := [*data_problems(config)]:
        raise UsageError(problems)
    if not config.data.sources:
        return None
    from drl_cli.runtime.factories import opened  # slow: imports torch and gymnasium

    return opened(config, is_checked=False)


def data_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting that does not fit a run with, or without, a dataset."""
    source, mode = config.data.source, config.mode
    if config.data.reference == "auto" and not config.has_env:
        yield "data.reference=auto measures a random policy, and there is no environment; say env=ID"
    if (returns := config.data.reference_returns) is not None and (line := reference_problem(returns)):
        yield f"data.{line}"
    if not config.is_offline:
        if not config.has_env:
            yield f"env=none: mode={mode} needs an environment; only mode=offline trains without one"
        if source is not None:
            yield from mixing_problems(config)
        return
    if not source:
        yield "mode=offline learns from a dataset: say data=PATH, data=minari:ID or data=run:RUN"
    if config.trainer.num > 1:
        yield f"trainer.num={config.trainer.num} needs processes of their own, and mode=offline has none; leave it out"
    if config.replay.changes_goals and not config.has_env:
        yield "replay=hindsight computes rewards with the environment; say env=ID"
    if config.stop.return_ is not None and not config.has_env:
        yield "stop.return: without an environment there are no evaluations; say env=ID, or leave it out"


def mixing_problems(config: Config) -> Iterator[str]:
    """Yield a line for each setting that does not fit batches with a share of recorded rows."""
    size, share = config.trainer.batch_size, config.data.share
    if config.is_on_policy:
        why = "on-policy: it learns from the newest rollouts of its own policy, and not from recorded steps"
        yield f"data={config.data.text}: {title(config.algo_name)} is {why}; leave data out"
    elif not 0 < recorded_rows(size, share) < size:
        yield f"data.share={share:g} of trainer.batch_size={size} is no row, or all rows; say data.share=0.5"
    if config.replay.changes_goals:
        yield f"data={config.data.text}: replay=hindsight can't mix recorded rows in; say replay=uniform"
    if (config.replay.shards or 1) > 1:
        yield f"replay.shards={config.replay.shards}: the only shard with data holds the dataset, too; leave it out"


def check_data(config: Config, spec: EnvSpec, dataset: Dataset) -> None:
    """Raise UsageError if the algorithm can't learn from the recorded columns, or if a batch is too large."""
    problems = []
    if config.mixes_data and stackings_of(config, spec):
        problems.append("data: frame stacks can't be mixed with recorded rows; say env.frame_storage=none")
    extra = load_algorithm(config.algo.name).Policy.extra_columns(config.algo, config.network, spec)
    if lacking := sorted(extra.keys() - {"state"}):
        problems.append(
            f"{title(config.algo_name)} learns from columns that its own policy computes ({', '.join(lacking)}), "
            "and a dataset does not have them; say an off-policy algorithm, such as algo=td3 or algo=dqn"
        )
    if config.is_offline and (size := config.trainer.batch_size) > (steps := dataset.facts.steps):
        line = f"trainer.batch_size={size} is above the {steps} steps of {dataset.facts.source}"
        problems.append(f"{line}: a batch would hold every row many times; say trainer.batch_size={steps} or less")
    if problems:
        raise UsageError(problems)


def check_identity(saved: object, dataset: Dataset | None) -> None:
    """Raise UsageError (exit 8) if a run resumes with another dataset. `saved` is the entry `data` of run.json."""
    if dataset is None or not isinstance(saved, dict) or saved.get("identity") == dataset.facts.identity:
        return
    now, before = dataset.facts, saved.get("source")
    line = f"resume: {now.source} has changed since the run began: it has {now.steps:,} steps in {now.episodes:,} "
    line += f"episodes; {before} had {saved.get('steps', 0):,} in {saved.get('episodes', 0):,}"
    raise UsageError(f"{line}; give the run its dataset by data=PATH, or start a new run", CHECKPOINT)

"""The environment that a command line names: errors for unknown names, and values that follow from its spaces."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from drl_cli.envs.config import NO_ENV, EnvConfig
from drl_cli.errors import MISSING, USER_CODE, UsageError
from drl_cli.networks.inputs import as_image, is_large
from drl_cli.settings.algorithm import DEFAULT_ALGORITHMS
from drl_cli.settings.build import Key, judge, option_values
from drl_cli.settings.command_line import OVERRIDE
from drl_cli.settings.conf import conf_dir, defaults, option_file, option_text, read_yaml
from drl_cli.settings.value_types import group_of
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils.hydra_grammar import is_sweep, parts, unquoted
from drl_cli.utils.outside import ModuleRaised, NotFound, source_file
from drl_cli.utils.spelling import nearest, tables

if TYPE_CHECKING:  # slow: imports gymnasium
    from drl_cli.envs.apart import Seen

OLD_ATARI = re.compile(
    r"(?P<game>[A-Z]\w*?)(-ram)?(NoFrameskip|Deterministic)-v\d+"
    r"|(?P<known>Pong|Breakout|SpaceInvaders|Seaquest|Qbert|MsPacman|BeamRider|Enduro|Asteroids|Freeway)-v[04]"
)
MUJOCO = re.compile(
    r"(?P<task>Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedPendulum|InvertedDoublePendulum|Pusher|Reacher"
    r"|Swimmer|Walker2d)-v(?P<version>[1-5])"
)
SIMILAR = 0.8
"""The similarity from which a name may mean a task of dm_control."""
FAMILIES = ("mujoco", "images")
"""Kinds of environments that share tuned values: sections of `conf/tuned/<algo>.yaml`."""


def check_env(name: str, ours: Sequence[str]) -> None:
    """Raise UsageError if an environment is neither in Gymnasium nor in the module before the colon of its name.

    The exit code is 3 if the environment's package is not installed. `ours` are the options of the group `env`.
    """
    from drl_cli.envs.make import exists, registered

    if (old := MUJOCO.fullmatch(name)) and (old["version"] in "123" or name == "Pusher-v4"):
        raise UsageError(f"{name} is of an older Gymnasium; say env={old['task']}-v5")
    if old := OLD_ATARI.fullmatch(name):
        new = f"ALE/{old['game'] or old['known']}-v5"
        say_package(new, f"{name} is now {new}, which")
        raise UsageError(f"{name} is now {new}; say env={new}")
    if name == NO_ENV or (name and exists(name)):
        return
    if near_id := _nearest_task(name):
        raise UsageError(f"no environment '{name}'. Did you mean env={near_id}?")
    if (task := _dm_task(name)) is not None:
        id = f"dm_control/{task['domain']}-{task['task']}-v0"
        say_package(id, name if name == id else f"{name} is env={id}, which")
        if exists(id):
            raise UsageError(f"no environment '{name}'. Did you mean env={id}?")
    say_package(name, name)
    if meant := _as_module(name):
        raise UsageError(f"no environment '{name}'. Did you mean env={meant}?")
    if ":" in name:
        module = name.partition(":")[0]
        raise UsageError(f"no environment '{name}': there is no module '{module}' to import")
    if listed := module_envs(name):
        lines = ", ".join(f"env={name}:{id}" for id in listed[:4])
        raise UsageError(f"no environment '{name}': it is a module. Did you mean {lines}?")
    all_ids = registered()
    best = nearest(name, [*ours, *all_ids])
    near = nearest(name, ours if best and best[0] in ours else all_ids, 2)
    hint = f" Did you mean {', '.join(near)}?" if near else "   drl-list envs has all; one of your own is my_mod:MyEnv"
    raise UsageError(f"no environment '{name}'.{hint}" if name else "env: say which, as env=Pendulum-v1")


def _dm_task(name: str) -> re.Match[str] | None:
    """Match a way to write a task of dm_control. Its id is dm_control/DOMAIN-TASK-v0."""
    domains = "|".join(tables()["dm_control"])
    task = r"(?P<task>(?!v\d)[a-z0-9_]+)(-v\d+)?"
    return re.fullmatch(rf"((dm_control|dmc)[/:])?(?P<domain>{domains})[-_/]{task}", name)


def _nearest_task(name: str) -> str | None:
    """Return the id of the task of dm_control that is similar to a name; None if the name is right, or none is similar.

    The package need not be installed.
    """
    tasks = [f"{domain}-{task}" for domain, names in tables()["dm_control"].items() for task in names.split()]
    text = re.sub(r"^(dm_control|dmc)[/:]|-v\d+$", "", name)
    match = _dm_task(name)
    if not re.search(r"[-_/]", text) or (match and f"{match['domain']}-{match['task']}" in tasks):
        return None
    found = nearest(text, tasks, cutoff=SIMILAR)
    return f"dm_control/{found[0]}-v0" if found else None


def say_package(name: str, subject: str) -> None:
    """Raise UsageError if a known package has the environment. Advise to install it (exit 3), or to name its module.

    Games and dm_control tasks need no module name, because drl-cli imports their module.
    """
    from drl_cli.envs.catalog import package_of

    if (package := package_of(name)) is None:
        return
    module = package.module
    if source_file(module) is None:
        quoted = f"'{package.install}'" if "[" in package.install else package.install
        then = "" if package.is_ours else f"   then env={module}:{name}"
        raise UsageError(f"{subject} needs {module}:  pip install {quoted}{then}", MISSING)
    if not package.is_ours:
        raise UsageError(f"{name} is of the module {module}, which has to be named: env={module}:{name}")


def _as_module(name: str) -> str | None:
    """Return `my_mod:Name` for `my_mod.py:Name` or `my_mod.Name`. Return None for a name of another form."""
    place, colon, id = name.partition(":")
    if place.endswith(".py") or (colon and "/" in place):
        dotted = place.removesuffix(".py").strip("./").replace("/", ".")
        return f"{dotted}:{id or next(iter(module_envs(dotted)), 'MyEnv')}" if dotted else None
    module, dot, attribute = name.rpartition(".")
    return f"{module}:{attribute}" if dot and not colon and _is_users(module) else None


def module_envs(module: str) -> list[str]:
    """Return the ids and classes of environments in the user's module, or [] if the module is missing or raises."""
    from drl_cli.envs.make import names_in

    try:
        return names_in(module) if _is_users(module) else []
    except (NotFound, ModuleRaised):
        return []


def _is_users(module: str) -> bool:
    """Return whether a module exists and is not in Python's standard library, where some imports have side effects."""
    if not all(part.isidentifier() for part in module.split(".")):
        return False
    return module.partition(".")[0] not in sys.stdlib_module_names and source_file(module) is not None


def default_algorithm(overrides: Sequence[str], file: Path | None = None) -> str | None:
    """Return the algorithm that the action space chooses, or None if the default of train.yaml stays.

    The default stays if there is a main config `file`, or if the command line names an algorithm, an experiment or no
    environment.
    """
    typed = typed_values(overrides)
    if file is not None or "env" not in typed or {"algo", "algo.name", "experiment"} & typed.keys():
        return None
    spec = typed_spec(tuple(overrides))
    return DEFAULT_ALGORITHMS.get(spec.action.kind) if spec is not None else None


@cache
def typed_spec(overrides: tuple[str, ...]) -> EnvSpec | None:
    """Return the spec of the environment that a command line names, or None if it can't be read.

    The checks of the environment report an error later, with its exit code. Raise UsageError (exit 4) at once if the
    environment aborts or hangs.
    """
    from drl_cli.envs.apart import ProcessEnded, spec_apart

    if (named := typed_env(overrides)) is None:
        return None
    try:
        config: EnvConfig = judge(Key("env", group_of(EnvConfig)), named[0])
    except UsageError:
        return None
    try:
        return spec_apart(config, True, named[1])
    except ProcessEnded as error:
        raise UsageError(f"{config.id}: {error}", USER_CODE) from None
    except Exception:  # the user's environment may raise anything
        return None


def trial_of(env: Mapping[str, Any], timeout_s: Any) -> "Seen | None":
    """Return the result of `trial_apart` for the values of the group `env`, or None if they or the environment fail.

    `timeout_s` is the time limit [s] of a step, as a value of a config that is not checked yet.
    """
    return _trial(yaml.safe_dump(dict(env)), str(timeout_s))


@cache
def _trial(env: str, timeout_s: str) -> "Seen | None":
    from drl_cli.envs.apart import spec_apart, trial_apart

    with suppress(Exception, SystemExit):  # the checks of the values and of the environment report what is wrong
        config: EnvConfig = judge(Key("env", group_of(EnvConfig)), yaml.safe_load(env))
        limit_s = float(timeout_s)
        return trial_apart(config, spec_apart(config, True, limit_s), limit_s)
    return None


def typed_env(overrides: tuple[str, ...]) -> tuple[dict[str, Any], float] | None:
    """Return the values of the group `env` that a command line names, and the time limit [s] of a step.

    Return None if a value is wrong, which the checks of the values report later.
    """
    typed = typed_values(overrides)
    name = unquoted(parts(typed.get("env", defaults()["env"]))[0])
    try:
        node = option_values("env", name) if option_file("env", name) is not None else env_options(name)
        for key, text in typed.items():
            if key.startswith("env.") and not is_sweep(text):
                _put(node, key.split(".")[1:], yaml.safe_load(text))
        timeout_s = typed.get("worker.step_timeout_s", option_values("worker", "default")["step_timeout_s"])
        return node, float(timeout_s)
    except (UsageError, ValueError, yaml.YAMLError):
        return None


def family_values(overrides: Sequence[str], choices: Mapping[str, str]) -> str | None:
    """Return the option of the group `tuned` for MuJoCo tasks or for images, or None if none applies.

    `choices` has the option of each group. Tuned values for the environment's name, and tuned=none, take precedence.
    """
    tuned = choices.get("tuned")
    if tuned is None or option_text("tuned", tuned) is not None or "env" not in typed_values(overrides):
        return None
    has = [name for name in FAMILIES if option_text("tuned", f"{choices.get('algo')}-{name}") is not None]
    if "mujoco" in has and is_mujoco(choices.get("env", "")):
        return f"{choices.get('algo')}-mujoco"
    return f"{choices.get('algo')}-images" if "images" in has and has_large_images(tuple(overrides)) else None


def is_mujoco(name: str) -> bool:
    """Return whether the tuned values for MuJoCo tasks apply to an environment."""
    return name.startswith("dm_control/") or MUJOCO.fullmatch(name) is not None


def has_large_images(overrides: tuple[str, ...]) -> bool:
    """Return whether the environment that a command line names has images of at least 36x36 pixels."""
    spec = typed_spec(overrides)
    images = map(as_image, leaves(spec.obs).values()) if spec is not None else ()
    return any(found is not None and is_large(found) for found in images)


def typed_values(overrides: Sequence[str]) -> dict[str, str]:
    """Return the value of each key on a command line, as it was typed."""
    matches = (OVERRIDE.fullmatch(arg) for arg in overrides)
    return {match["key"]: match["value"] or "" for match in matches if match is not None}


def env_options(name: str) -> dict[str, Any]:
    """Return the options of an environment without a yaml: Pong's options for Atari games, else LunarLander's."""
    model = "Pong" if name.startswith("ALE/") else "LunarLander"
    options = read_yaml(conf_dir() / "env" / f"{model}.yaml")
    return {**options, "name": name, "id": name}


def _put(node: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value at `path` in nested mappings, and copy each inner mapping first. Any: the value of any key."""
    *groups, name = path
    for group in groups:
        inner = node.get(group)
        node[group] = dict(inner) if isinstance(inner, Mapping) else {}
        node = node[group]
    node[name] = value

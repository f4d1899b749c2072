"""The keys in which runs differ, without the values that follow from a run's algorithm, environment and mode."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.groups import SHORT, compared, differing_keys, named_keys, typed_keys
from drl_cli.settings.conf import LOADER, bases, conf_dir, defaults, option_file, option_text
from drl_cli.settings.env_names import FAMILIES
from drl_cli.settings.fill import INSERTS, RANDOM, warm_up
from drl_cli.settings.first_try import OF_TRIAL, SHORT_RUN, WITH_TUNED, values_for, with_tuned
from drl_cli.types import flatten

SHOWN = ("env.name", "env.id", "algo.name", SHORT["algo"], "mode")
"""Keys from which other values follow. Lists of runs show them in columns."""
CHOSEN = {*WITH_TUNED, *SHORT_RUN}
"""Keys whose values drl-cli chooses if neither the user nor a file sets them."""
FILLED = (
    *("worker.num", "worker.max_num", "worker.proxies", "trainer.threads"),
    *("replay.capacity", "replay.max_staleness", "data.reference"),
    *CHOSEN,
)
"""Keys whose defaults null and auto are replaced by values that fit the machine, the run or the dataset."""
WARM_UP = (INSERTS, RANDOM)
"""Keys that a short run replaces (`short_warm_up`)."""


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the values in which each run differs from the others, by key.

    A value is left out if it follows from the keys in SHOWN and is the same in all runs with equal SHOWN keys.
    """
    configs = [compared(run) for run in runs]
    alike = defaultdict[tuple[str, ...], list[dict[str, Any]]](list)
    names = [tuple(str(config.get(key)) for key in SHOWN) for config in configs]
    for name, config in zip(names, configs, strict=True):
        alike[name].append(config)
    varied = {name: set(differing_keys(found)) for name, found in alike.items()}
    keys = [key for key in named_keys(configs) if key not in SHOWN]
    found = []
    for run, name, config in zip(runs, names, configs, strict=True):
        typed = typed_keys(run)
        own = {key for key in varied[name] if not is_filled(key, config)} | {*FILLED, *WARM_UP} & typed
        found.append({key: config[key] for key in keys if key in config and (key in own or not follows(key, config))})
    return found


def is_filled(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether drl-cli may have replaced the value of a key by this one, which nobody typed."""
    if key in WARM_UP and config[key] == _short_warm_up(config):
        return True
    if key in CHOSEN and key not in OF_TRIAL:  # a trial of the environment gives other values
        plain = _of_length(config)
        if config[key] not in (with_tuned(plain).get(key), values_for(plain).get(key)):
            return False
    return key in FILLED and any(values.get(key) in (None, "auto") for values in implied(*_names(config)))


def follows(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether the value of a key follows from the algorithm, the environment and the mode of the config."""
    if is_filled(key, config):
        return True
    for values in implied(*_names(config)):
        if key not in values and key.startswith("algo."):  # the algorithm has no yaml
            return True
        if key in values and _plain(values[key]) == _plain(config[key]):
            return True
    return False


def _names(config: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the algorithm, the environment and the mode of a config."""
    return str(config.get(SHORT["algo"])), str(config.get(SHORT["env"])), str(config.get("mode"))


def _of_length(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that `values_for` reads."""
    named = {key: config.get(key) for key in ("mode", "total_env_steps", "total_updates")}
    algo = {"name": config.get("algo.name")}
    return {**named, "replay": {"sampler": config.get("replay.sampler")}, "algo": algo}


def _short_warm_up(config: Mapping[str, Any]) -> int | None:
    steps, rows = (config.get(key) for key in ("total_env_steps", "trainer.batch_size"))
    return warm_up(steps, rows) if isinstance(steps, int) and isinstance(rows, int) else None


@cache
def implied(algo: str, env: str, mode: str) -> list[dict[str, Any]]:
    """Return the values of a run for which the user typed only these three words, by dotted key.

    Without tuned values for the environment, also return the values with the tuned values for each family.
    """
    chosen = {**defaults(), "env": env if option_file("env", env) else "LunarLander", "mode": mode, "algo": algo}
    main = yaml.load((conf_dir() / "train.yaml").read_text(), LOADER)
    values = flatten({key: value for key, value in main.items() if key != "defaults"})
    for group, option in chosen.items():
        values |= values_set_by(group, option) if group != "tuned" else {}
    if option_text("tuned", f"{algo}-{env}") is not None:
        return [values | values_set_by("tuned", f"{algo}-{env}")]
    return [values, *(values | values_set_by("tuned", f"{algo}-{family}") for family in FAMILIES)]


def values_set_by(group: str, option: str) -> dict[str, Any]:
    """Return the values that `group=option` sets in all groups, by dotted key."""
    text = option_text(group, option) or ""
    node = yaml.load(text, LOADER) or {}
    values: dict[str, Any] = {}
    for base in bases(node):
        values |= values_set_by(group, base)
    for entry in (entry for entry in node.get("defaults", ()) if isinstance(entry, dict)):
        for other, name in entry.items():
            values |= values_set_by(str(other).split()[-1].lstrip("/"), str(name))
    own = {key: value for key, value in node.items() if key != "defaults"}
    return values | flatten(own if "# @package _global_" in text else {group: own})


def _plain(value: Any) -> Any:  # Any: a value of a yaml file
    """Return a value for a comparison: yaml reads 1e-3 as text, and `on` as a truth value."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bool):
        return "on" if value else "off"
    try:
        return float(value)
    except (TypeError, ValueError):
        return value

"""Exploration values that differ between workers. All workers collect for the same trainer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.config.sections import Exploration


def worker_values(
    setting: Exploration, values: Mapping[str, float], index: int, num: int, envs: int = 1
) -> dict[str, Any]:  # Any: a float, or an array [envs]
    """Return the exploration values of worker `index` of `num`, given the `values` of the algorithm's schedules.

    "ladder" gives value ** (1 + 7 i / (N - 1)) to worker i of N, as in Ape-X (Horgan et al. 2018, arXiv 1803.00933,
    section 4.1). "env_ladder" does the same for environment i of N environments in total. From a list, worker i gets
    entry i modulo the length. Values that are missing in the entry follow the schedules. If more workers join, worker i
    gets the values of worker i modulo N.
    """
    if setting is None:
        return dict(values)
    exponent = exponents(setting, index, num, envs)
    if exponent is not None:
        return {name: value**exponent for name, value in values.items()}
    entry = setting[index % len(setting)] if isinstance(setting, tuple) else {}
    return {**values, **entry}


def exponents(setting: Exploration, index: int, num: int, envs: int) -> Any:  # Any: a float, or an array [envs]
    """Return the ladder exponent of worker `index` (or one per environment with env_ladder). None without a ladder."""
    if setting == "ladder":
        return _exponent(index, num)
    if setting == "env_ladder":
        return np.array([_exponent(index * envs + env, num * envs) for env in range(envs)])
    return None


def _exponent(index: int, num: int) -> float:
    return 1 + 7 * (index % num) / max(1, num - 1)


def all_exponents(setting: Exploration, num: int, envs: int) -> list[Any] | None:  # Any: a float, or a list of floats
    """Return the ladder exponents of all workers, for run.json; None without a ladder."""
    workers = [exponents(setting, index, num, envs) for index in range(num)]
    return None if workers[0] is None else [np.round(exponent, 6).tolist() for exponent in workers]


def describe(setting: Exploration, index: int, num: int, envs: int = 1) -> str:
    """Return how the exploration of worker `index` differs from the schedules, for the worker's log."""
    exponent = exponents(setting, index, num, envs)
    if setting == "ladder":
        return f"value ** {exponent:.3g}"
    if setting == "env_ladder":
        return f"value ** {exponent[0]:.3g} to {exponent[-1]:.3g}, by environment"
    return str(worker_values(setting, {}, index, num)) if setting else "the schedule"


def average(setting: Exploration, values: Mapping[str, float], num: int, envs: int = 1) -> dict[str, float]:
    """Return the exploration values averaged over the workers, for the reports."""
    if setting is None:
        return dict(values)
    workers = [worker_values(setting, values, index, num, envs) for index in range(num)]
    return {name: sum(float(np.mean(worker[name])) for worker in workers) / num for name in values}


def exploration_problems(setting: Exploration, algo: str, known: tuple[str, ...]) -> list[str]:
    """Return why `worker.exploration` does not fit an algorithm with the exploration values `known`."""
    if setting is None:
        return []
    if not known:
        return [f"worker.exploration: {algo} has no exploration values, so its workers can't differ; say null"]
    if isinstance(setting, str):
        return []
    if not setting:
        return ["worker.exploration: an empty list; say null, or one entry for each way to explore"]
    unknown = sorted({name for entry in setting for name in entry if name not in known})
    hint = f"only exploration values may differ between workers, {algo} has: {', '.join(known)}"
    return [f"worker.exploration: workers can't differ in '{name}'; {hint}" for name in unknown]

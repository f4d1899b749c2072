"""Exploration that differs between workers: all of them learn together, each explores in its own way."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.runtime.sections import Exploration

LADDERS = ("ladder", "env_ladder")


def personal(
    setting: Exploration, values: Mapping[str, float], index: int, num: int, envs: int = 1
) -> dict[str, Any]:  # Any: a float, or an array [envs]
    """The exploration values of worker `index` of `num`, from those that the algorithm's schedules give.

    "ladder": value ** (1 + 7 i / (N - 1)), Ape-X (Horgan et al. 2018, arXiv 1803.00933, section 4.1). "env_ladder":
    the same over the `envs` environments of all workers, a value for each: there each worker has one. A list: worker i
    takes entry i modulo its length; what that does not name follows the schedule.
    """
    if setting is None:
        return dict(values)
    if setting in LADDERS:
        exponent = exponents(setting, index, num, envs)
        return {name: value**exponent for name, value in values.items()}
    assert not isinstance(setting, str)
    return {**values, **setting[index % len(setting)]}


def describe(setting: Exploration, index: int, num: int, envs: int = 1) -> str:
    """What `personal` does to the values of worker `index` of `num`, for its log."""
    if setting is None:
        return "the schedule"
    if setting == "ladder":
        return f"value ** {ladder(index, num):.3g}"
    if setting == "env_ladder":
        steps = exponents(setting, index, num, envs)
        return f"value ** {steps[0]:.3g} to {steps[-1]:.3g}, by environment"
    return str(dict(setting[index % len(setting)]))


def ladder(index: int, num: int) -> float:
    """Exponent of number `index` of `num`: from 1 to 8; where there is but one it has 1."""
    return 1 + 7 * index / max(1, num - 1)


def exponents(setting: Exploration, index: int, num: int, envs: int) -> Any:  # Any: a float, or an array [envs]
    """Those of a worker on one of the LADDERS."""
    if setting == "ladder":
        return ladder(index, num)
    return np.array([ladder(index * envs + env, num * envs) for env in range(envs)])


def rungs(setting: Exploration, num: int, envs: int) -> list[Any] | None:  # Any: a float, or a list of floats
    """The exponents of all workers in turn, for run.json; None where there is no ladder."""
    if setting not in LADDERS:
        return None
    return [np.round(exponents(setting, index, num, envs), 6).tolist() for index in range(num)]


def average(setting: Exploration, values: Mapping[str, float], num: int, envs: int = 1) -> dict[str, float]:
    """The exploration values averaged over the workers, for the reports."""
    if setting is None:
        return dict(values)
    workers = [personal(setting, values, index, num, envs) for index in range(num)]
    return {name: sum(float(np.mean(worker[name])) for worker in workers) / num for name in values}


def exploration_problems(setting: Exploration, algo: str, has: tuple[str, ...]) -> list[str]:
    """Why these workers can't explore so with an algorithm that `has` these exploration values; what may differ."""
    if setting is None:
        return []
    if not has:
        return [f"worker.exploration: {algo} has no exploration values, so its workers can't differ; say null"]
    if isinstance(setting, str):
        return []
    if not setting:
        return ["worker.exploration: an empty list; say null, or one entry for each way to explore"]
    unknown = sorted({name for entry in setting for name in entry if name not in has})
    may = f"only exploration values may differ between workers, {algo} has: {', '.join(has)}"
    return [f"worker.exploration: workers can't differ in '{name}'; {may}" for name in unknown]

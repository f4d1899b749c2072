"""Exploration that differs between workers: all of them learn together, each explores in its own way."""

from collections.abc import Mapping

from drl_cli.runtime.config import Exploration


def personal(setting: Exploration, values: Mapping[str, float], index: int, num: int) -> dict[str, float]:
    """The exploration values of worker `index` of `num`, from those that the algorithm's schedules give.

    "ladder": value ** (1 + 7 i / (N - 1)), Ape-X (Horgan et al. 2018, arXiv 1803.00933, section 4.1). A list: worker i
    takes entry i modulo its length; what that does not name follows the schedule.
    """
    if setting is None:
        return dict(values)
    if setting == "ladder":
        return {name: value ** ladder(index, num) for name, value in values.items()}
    return {**values, **setting[index % len(setting)]}


def describe(setting: Exploration, index: int, num: int) -> str:
    """What `personal` does to the values of worker `index` of `num`, for its log."""
    if setting is None:
        return "the schedule"
    return f"value ** {ladder(index, num):.3g}" if setting == "ladder" else str(dict(setting[index % len(setting)]))


def ladder(index: int, num: int) -> float:
    """Exponent of worker `index` of `num`: from 1 to 8; a single worker has 1."""
    return 1 + 7 * index / max(1, num - 1)


def average(setting: Exploration, values: Mapping[str, float], num: int) -> dict[str, float]:
    """The exploration values averaged over the workers, for the reports."""
    if setting is None:
        return dict(values)
    workers = [personal(setting, values, index, num) for index in range(num)]
    return {name: sum(worker[name] for worker in workers) / num for name in values}


def exploration_problems(setting: Exploration, algo: str, has: tuple[str, ...]) -> list[str]:
    """Why these workers can't explore so with an algorithm that `has` these exploration values; what may differ."""
    if setting is None:
        return []
    if not has:
        return [f"worker.exploration: {algo} has no exploration values, so its workers can't differ; say null"]
    if setting == "ladder":
        return []
    if not setting:
        return ["worker.exploration: an empty list; say null, or one entry for each way to explore"]
    unknown = sorted({name for entry in setting for name in entry if name not in has})
    may = f"only exploration values may differ between workers, {algo} has: {', '.join(has)}"
    return [f"worker.exploration: workers can't differ in '{name}'; {may}" for name in unknown]

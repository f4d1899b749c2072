"""The algorithms that can learn an environment, with their recorded results."""

import sys
from contextlib import suppress
from typing import Any

from drl_cli.algos.lookup import ACTIONS, NotAlgorithm, is_for_data, is_on_policy, load_algorithm
from drl_cli.errors import UsageError
from drl_cli.runs.auto import ENOUGH, choose, choose_offline, results
from drl_cli.runs.text_table import number, table
from drl_cli.settings.algorithm import algorithm_names, algorithm_of
from drl_cli.settings.check import check_option
from drl_cli.settings.env_names import typed_spec
from drl_cli.utils.outside import ModuleRaised, NotFound
from drl_cli.utils.shown import score_text

MOST_LINES = 20
"""The largest number of lines for one environment."""


def fitting(env: str, mode: str) -> list[str]:
    """Return lines about the algorithms that can learn an environment: the choice of algo=auto, then by their results.

    Raise UsageError if there is no such environment.
    """
    if problems := check_option("env", env):
        raise UsageError(problems)
    spec = typed_spec((f"env={env}",))
    if spec is None:
        raise UsageError(f"env={env}: its spaces can't be read; drl-train env={env} dry_run=true says why")
    kind, is_offline = spec.action.kind, mode == "offline"
    names = [name for name in algorithm_names() if _learns(name, kind, mode)]
    best, reason = choose_offline(env) if is_offline else choose(env, None)
    found = [] if is_offline else [each for each in results() if each["env"] == env and each["algo"] in names]
    found.sort(key=lambda each: (each["algo"] != best, *_rank(each)))
    rows = [_row(each) for each in found[: MOST_LINES - 6]]
    others = [name for name in names if name not in {each["algo"] for each in found}]
    others.sort(key=lambda name: (name != best, is_offline and not is_for_data(algorithm_of(name))))
    lines = [f"{env}: {spec.action.text} actions, mode={mode}; algo=auto takes {best}: {reason}"]
    if rows:
        head = ("algo", "reached", "return", "env steps", "seconds", "seeds")
        lines += table(head, rows, sys.stdout, ("algo",)).splitlines()
    lines += [f"{len(found) - len(rows)} more with results"] if len(found) > len(rows) else []
    lines += [f"without recorded results: {', '.join(others)}"] if others else []
    return lines if names else [f"no algorithm has {ACTIONS[kind]} actions in mode={mode}"]


def _learns(name: str, kind: str, mode: str) -> bool:
    """Return whether an algorithm has this kind of actions and learns in this mode."""
    with suppress(NotFound, NotAlgorithm, ModuleRaised, UsageError):
        module = load_algorithm(algorithm_of(name))
        is_refused = mode == "offline" and is_on_policy(module.TABLES)
        return kind in module.ACTIONS and mode in module.MODES and not is_refused
    return False  # a broken installed algorithm


def _rank(result: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that sorts results: those of enough seeds first, then by steps to the threshold, or by return."""
    is_reached = result["threshold"] is not None
    return result["seeds"] < ENOUGH, not is_reached, result["steps"] if is_reached else -result["return"]


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    threshold = "-" if result["threshold"] is None else f"{result['threshold']:g}"
    numbers = (score_text(result["return"]), number(result["steps"]), number(result["seconds"]))
    return result["algo"], threshold, *numbers, str(result["seeds"])

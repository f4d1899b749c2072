"""Runs that differ in nothing but their seed belong together; what else differs is what they are compared by."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drl_cli.runs.run import Run

SHORT = {"env": "env.name", "algo": "algo.name"}
"""Names for keys, as one types them."""

NOT_COMPARED = (
    *("seed", "output_dir", "resume", "from_config", "confirm", "dry_run", "explain"),
    *("logger", "checkpoint", "console", "debug", "sweep", "hpo", "manage.video_period"),
)
"""Keys and groups that say where a run is, how it was started, and what it writes."""

MEASURED = ("trainer.threads",)
"""Keys whose `auto` a run replaces by what it measured: they differ by chance, so they count only where typed."""


@dataclass(frozen=True)
class Group:
    """Runs on one environment that have equal values of the keys they are grouped by; `values` are the keys shown."""

    env: str
    values: Mapping[str, Any]
    runs: list[Run] = field(compare=False)

    @property
    def label(self) -> str:
        """The keys shown, as they are typed."""
        return text(self.values)

    def common(self, key: str) -> Any:
        """The value of a key that all runs of the group have; None where they differ."""
        values = [run.config.get(key) for run in self.runs]
        return values[0] if all(value == values[0] for value in values) else None


def grouped(runs: Iterable[Run], by: Sequence[str] = ()) -> list[Group]:
    """The groups, sorted by environment and label.

    They are made by all that differs between runs of one environment and algorithm, or by the environment and the keys
    `by` alone. A label says what differs so. Algorithms bring options and values along that others don't have: their
    name stands for all of it.
    """
    found = list(runs)
    has_algos = len({run.config.get("algo.name") for run in found}) > 1
    groups = []
    for room in _parts(found, ["env.name"] if by else ["env.name", "algo.name"]):
        keys = [name_of(key) for key in by] or differing_keys([compared(run) for run in room])
        shown_keys = ["algo.name", *keys] if has_algos and not by else keys or ["algo.name", "mode"]
        for members in _parts(room, keys):
            config = members[0].config
            groups.append(Group(str(config.get("env.name")), {key: config.get(key) for key in shown_keys}, members))
    return sorted(groups, key=lambda group: (group.env, [_order(value) for value in group.values.values()]))


def compared(run: Run) -> dict[str, Any]:
    """What a run is told apart by: its config, less the seed, and less what only says where and how it is written."""
    typed = {arg.lstrip("+").partition("=")[0] for arg in run.record.get("command", []) if isinstance(arg, str)}
    return {key: value for key, value in run.config.items() if _counts(key) and (key not in MEASURED or key in typed)}


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys with more than one value, in the order of the config.

    A key that some don't have (an option of another sampler) counts by the values of those that do; in free mappings
    (env.kwargs) to have none is a value.
    """
    keys = dict.fromkeys(key for config in configs for key in config)

    def values(key: str) -> set[str]:
        is_free = ".kwargs." in key
        return {json.dumps(config.get(key)) for config in configs if key in config or is_free}

    return [key for key in keys if len(values(key)) > 1]


def pooled_keys(groups: Sequence[Group]) -> list[str]:
    """Keys that differ between runs of one group: what its numbers are taken over, beside seeds."""
    found = dict.fromkeys(key for group in groups for key in differing_keys([compared(run) for run in group.runs]))
    return list(found)


def unshown_keys(groups: Sequence[Group]) -> list[str]:
    """Keys in no label that differ between groups of an environment, beside the algorithms' own options."""
    rooms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for group in groups:
        rooms[group.env] += [compared(run) for run in group.runs]
    known = {*pooled_keys(groups), *(key for group in groups for key in group.values)}
    found = dict.fromkeys(key for room in rooms.values() for key in differing_keys(room))
    return [key for key in found if key not in known and not key.startswith("algo.")]


def name_of(key: str) -> str:
    """The key of the config that a short name means."""
    return SHORT.get(key, key)


def text(values: Mapping[str, Any]) -> str:
    """`key=value` of each, as one types it."""
    names = {long: short for short, long in SHORT.items()}
    return " ".join(f"{names.get(key, key)}={shown(value)}" for key, value in values.items())


def shown(value: Any) -> str:
    """A value as one types it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _counts(key: str) -> bool:
    return not any(f"{key}.".startswith(f"{name}.") for name in NOT_COMPARED)


def _parts(runs: Iterable[Run], keys: Sequence[str]) -> list[list[Run]]:
    """Runs with equal values of these keys together."""
    parts: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        parts[tuple(json.dumps(run.config.get(key)) for key in keys)].append(run)
    return list(parts.values())


def _order(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return (not is_number, float(value) if is_number else 0.0, str(value))

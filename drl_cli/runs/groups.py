"""Groups of runs that differ only in their seed, labelled by the config keys in which the groups differ."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from drl_cli.config.config import DESCRIBING
from drl_cli.run_folder.saved_run import Run
from drl_cli.settings.build import as_typed, is_within
from drl_cli.settings.fill import INSERTS, RANDOM
from drl_cli.settings.first_try import SHORT_RUN, WITH_TUNED
from drl_cli.utils import hydra_grammar
from drl_cli.utils.run_clock import Unit
from drl_cli.utils.spelling import did_you_mean, synonyms

SHORT = {"env": "env.name", "algo": "algo.preset", "reward": "reward.name"}
"""The short names of keys, which the user may type."""

NOT_COMPARED = (
    *("seed", "output_dir", "resume", "from_config", "confirm", "trust", "dry_run", "explain"),
    *("logger", "checkpoint", "console", "debug", "sweep", "hpo", "manage.video_period"),
    *DESCRIBING,
)
"""Keys and groups that are ignored: they set only where a run works, how it is started, and its output."""

UNREAD: dict[Unit, tuple[str, ...]] = {
    "env_steps": ("total_updates",),
    "opt_steps": ("total_env_steps", "worker", "orchestrator"),
}
"""Keys and groups that a run does not read, by the unit of its clock: a run that counts updates has no workers."""
OF_DATASET = ("data.share", "data.download", "data.reference")
"""Keys that a run without a dataset does not read."""

CHOSEN = ("trainer.threads", "device")
"""Keys whose `auto` becomes a value that depends on the machine. They are compared if the user typed them."""

SHOWN = ("env.name", "env.id", "algo.name", SHORT["algo"], "mode")
"""Keys from which other values follow. Lists of runs show them in columns."""
FILLED = {
    *("worker.num", "worker.max_num", "worker.proxies", "trainer.threads"),
    *("replay.capacity", "replay.max_staleness", "data.reference"),
    *(*WITH_TUNED, *SHORT_RUN, INSERTS, RANDOM),
}
"""Keys whose values drl-cli may choose for the machine, the run or the dataset."""


def key_hint(word: str, keys: Collection[str], more: Iterable[str] = ()) -> str:
    """Return ' Did you mean KEY?' for a word that is none of the runs' `keys`, or ''.

    The word may be the last part of a key or a name of another tool. A misspelled word may also mean one of `more`.
    """
    same = sorted(
        (key for key in keys if key.rpartition(".")[2] == word), key=lambda key: (key.startswith("reward."), key)
    )
    if found := [*same, *synonyms(word, keys)]:
        return f" Did you mean {found[0]}?"
    return did_you_mean(word, [*keys, *more])


@dataclass(frozen=True)
class Group:
    """Runs on one environment with equal values of the grouping keys.

    The label is the name of the runs. Without a name, or if other groups have the same name, it shows `values`, too.
    """

    env: str
    values: Mapping[str, Any]
    runs: list[Run] = field(compare=False)
    name: str = ""
    is_name_unique: bool = True

    @property
    def label(self) -> str:
        return self.label_without(())

    def label_without(self, keys: Container[str]) -> str:
        """Return the label without the values of these keys."""
        values = {} if self.name and self.is_name_unique else self.values
        text = override_text({key: value for key, value in values.items() if key not in keys})
        return " ".join(filter(None, (self.name, text)))

    def common(self, key: str) -> Any:
        """Return the value of the key if all runs have the same value, otherwise None."""
        values = [run.config.get(key) for run in self.runs]
        return values[0] if all(value == values[0] for value in values) else None


def grouped(runs: Iterable[Run], by: Sequence[str] = ()) -> list[Group]:
    """Group the runs by environment and the keys `by`. Return the groups, sorted by environment and label.

    If `by` is empty, group by environment, algorithm, name, and each key that differs within an environment and
    algorithm.
    """
    found = list(runs)
    has_algos = len({run.config.get(SHORT["algo"]) for run in found}) > 1
    groups = []
    for related in _split(found, ["env.name"] if by else [SHORT["env"], SHORT["algo"]]):
        keys = [SHORT.get(key, key) for key in by] or named_keys([compared(run) for run in related])
        label_keys = [SHORT["algo"], *keys] if has_algos and not by else keys or [SHORT["algo"], "mode"]
        for members in _split(related, keys if by else [*keys, "name"]):
            config = members[0].config
            name, read = "" if by else config.get("name") or "", compared(members[0])
            values = {key: config.get(key) for key in label_keys if by or key in read or key not in config}
            groups.append(Group(str(config.get("env.name")), values, members, name))
    num_named = Counter((group.env, group.name) for group in groups)
    groups = [replace(group, is_name_unique=num_named[group.env, group.name] == 1) for group in groups]
    return sorted(groups, key=lambda group: (group.env, [*map(_order, group.values.values())], group.name))


def compared(run: Run) -> dict[str, Any]:
    """Return the run's config without the seed, and without keys that do not affect learning in this run."""
    chosen = {*CHOSEN} - typed_keys(run)
    unread = (*NOT_COMPARED, *UNREAD[run.unit], *([] if run.config.get("data.source") else OF_DATASET))
    return {key: value for key, value in run.config.items() if not _is_one_of(key, unread) and key not in chosen}


@cache
def _is_one_of(key: str, keys: tuple[str, ...]) -> bool:
    return is_within(key, keys)


def typed_keys(run: Run) -> set[str]:
    """Return the keys on the command line that started the run."""
    return hydra_grammar.typed_keys(run.record.get("command", []))


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys with different values. A missing key matters only in free mappings such as `env.kwargs`."""
    keys = dict.fromkeys(key for config in configs for key in config)

    def values(key: str) -> set[str]:
        is_free = ".kwargs." in key
        found = [config.get(key) for config in configs if key in config or is_free]
        return {json.dumps(value) for value in {id(value): value for value in found}.values()}  # many are one object

    return [key for key in keys if len(values(key)) > 1]


def named_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the differing keys without the options that follow from the name of the reward module.

    An option follows if all configs with the same module have the same value.
    """
    name, keys = SHORT["reward"], differing_keys(configs)
    by_module: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for config in configs:
        by_module[config.get(name)].append(config)
    own = {name, *(key for found in by_module.values() for key in differing_keys(found))}
    return [key for key in keys if name not in keys or not is_within(key, ("reward",)) or key in own]


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the values in which each run differs from the others, by key.

    These are the values that the user typed, and those in which runs with equal SHOWN keys differ. Of the FILLED keys,
    only those count that were typed for a run.
    """
    typed = [typed_keys(run) - {*SHORT, "mode"} | {SHORT["reward"]} for run in runs]
    filled = FILLED.difference(*typed)
    configs = [compared(run) for run in runs]
    names = [tuple(str(config.get(key)) for key in SHOWN) for config in configs]
    alike = defaultdict[tuple[str, ...], list[dict[str, Any]]](list)
    for name, config in zip(names, configs, strict=True):
        alike[name].append(config)
    varied = {name: {*differing_keys(members)} - filled for name, members in alike.items()}
    keys = [key for key in named_keys(configs) if key not in SHOWN]
    found = []
    for words, name, config in zip(typed, names, configs, strict=True):
        own = [key for key in keys if key in config and (key in varied[name] or is_within(key, tuple(words)))]
        found.append({key: config[key] for key in own})
    return found


def without_repeats(runs: Sequence[Run]) -> list[Run]:
    """Return the newest run of each seed. More runs of a seed would count as seeds, and narrow the interval."""
    newest = {seed_of(run): run.id for run in sorted(runs, key=lambda run: run.id)}
    return [run for run in runs if newest[seed_of(run)] == run.id]


def seed_of(run: Run) -> Any:  # Any: an int, or text
    """Return the run's seed, or its id if its config has no seed."""
    seed = run.config.get("seed")
    return run.id if seed is None else seed


def pooled_keys(groups: Sequence[Group]) -> list[str]:
    """Return the keys, other than the seed, that differ between runs of one group."""
    return list(dict.fromkeys(key for group in groups for key in differing_keys([compared(run) for run in group.runs])))


def unshown_keys(groups: Sequence[Group]) -> list[str]:
    """Return the keys, except `algo.*`, that differ between groups of one environment but are in no label."""
    by_env: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for group in groups:
        by_env[group.env] += [compared(run) for run in group.runs]
    known = {*pooled_keys(groups), *(key for group in groups for key in group.values)}
    found = dict.fromkeys(key for configs in by_env.values() for key in named_keys(configs))
    return [key for key in found if key not in known and not key.startswith("algo.")]


def override_text(values: Mapping[str, Any]) -> str:
    """Return the text `key=value` for each key, with short names, as the user would type it."""
    names = {long: short for short, long in SHORT.items()}
    return " ".join(f"{names.get(key, key)}={as_typed(value)}" for key, value in values.items())


def _split(runs: Iterable[Run], keys: Sequence[str]) -> list[list[Run]]:
    parts: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        parts[tuple(json.dumps(run.config.get(key)) for key in keys)].append(run)
    return list(parts.values())


def _order(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return (not is_number, float(value) if is_number else 0.0, str(value))

"""Refuse a key that the user typed and that the run does not read, by the rules in unread_rules.py.

Values from presets, tuned values, files and defaults are not judged.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from drl_cli.algos.lookup import title
from drl_cli.preflight.unread_rules import RULES, Rule, SpecRule
from drl_cli.runtime.config import Config
from drl_cli.settings.build import as_typed, to_yaml_keys
from drl_cli.settings.command_line import OVERRIDE
from drl_cli.types import EnvSpec, flatten


def typed_keys(words: Sequence[str]) -> list[str]:
    """Return the keys that the words of a command line set, in order, each once."""
    matches = (OVERRIDE.fullmatch(word) for word in words)
    return list(dict.fromkeys(match["key"] for match in matches if match is not None and match["value"] is not None))


def unread_keys(config: Config, words: Sequence[str], spec: EnvSpec | None = None) -> list[str]:
    """Return an error line for each typed key that this run does not read. `words` are those that the user typed.

    Without `spec`, leave out the rules that depend on the environment. A null leaves the choice to the run, so that
    it is never an error.
    """
    values = flatten(to_yaml_keys(config))
    lines = (_line(key, values[key], config, spec) for key in typed_keys(words) if values.get(key) is not None)
    return [line for line in lines if line is not None]


def _line(key: str, value: Any, config: Config, spec: EnvSpec | None) -> str | None:
    for rule in _rules(key, config):
        if isinstance(rule, SpecRule) and spec is not None:
            is_read = rule.is_read_in(config, spec)
        else:
            is_read = rule.is_read(config)
        if not is_read and value not in rule.harmless:
            names = {"algo": title(config.algo_name), "mode": config.mode, "envs": _all_envs(config)}
            reason, say = rule.reason.format(**names), rule.say.format(**names)
            return f"{key}={as_typed(value)} {rule.verdict}: {reason}; {say}"
    return None


def _rules(key: str, config: Config) -> Iterator[Rule]:
    for rule in RULES:
        is_named = key in rule.keys or any(name.endswith(".") and key.startswith(name) for name in rule.keys)
        if is_named and (not rule.algos or config.algo.name in rule.algos):
            yield rule


def _all_envs(config: Config) -> int:
    return config.worker.known_num * config.worker.envs

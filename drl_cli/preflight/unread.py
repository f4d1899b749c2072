"""Refuse a key that the user typed and that the run does not read, by the rules in unread.yaml.

Values from presets, tuned values, files and defaults are not judged.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.config.config import Config
from drl_cli.data.find import MINARI
from drl_cli.networks.torsos import torso_name
from drl_cli.settings.build import as_typed, to_yaml_keys
from drl_cli.settings.conf import read_yaml
from drl_cli.settings.env_names import typed_values
from drl_cli.types import EnvSpec, flatten, leaves
from drl_cli.utils.gpu import expects_gpu


def unread_keys(config: Config, words: Sequence[str], spec: EnvSpec | None = None) -> list[str]:
    """Return an error line for each typed key that this run does not read. `words` are those that the user typed.

    Without `spec`, leave out the rules that depend on the environment. A null leaves the choice to the run, so that
    it is never an error.
    """
    values = {key: as_typed(value) for key, value in flatten(to_yaml_keys(config)).items()}
    names = {"algo": title(config.algo_name), "mode": config.mode}
    names["envs"] = str(config.worker.known_num * config.worker.envs)
    lines = []
    for key in typed_values(words):
        if values.get(key, "null") == "null":
            continue
        for rule in rules():
            if _names(rule, key) and values[key] not in rule["harmless"].split() and _holds(rule, config, spec, values):
                why, say = (rule[part].format(**names) for part in ("why", "say"))
                lines.append(f"{key}={values[key]} {rule['verdict']}: {why}; {say}")
                break
    return lines


@cache
def rules() -> list[dict[str, str]]:
    """Return the rules in unread.yaml, with the parts that a rule may leave out."""
    optional = {"if": "", "say": "leave it out", "harmless": "", "verdict": "has no effect"}
    found = read_yaml(Path(__file__).with_name("unread.yaml"))
    return [{**optional, **{name: as_typed(value) for name, value in rule.items()}} for rule in found]


def _names(rule: Mapping[str, str], key: str) -> bool:
    """Return whether a rule names a key, or the group in which the key is."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in rule["keys"].split(", "))


def _holds(rule: Mapping[str, str], config: Config, spec: EnvSpec | None, values: Mapping[str, str]) -> bool:
    """Return whether all terms of a rule hold. A term about something that this run does not have does not hold."""
    for term in rule["if"].split():
        name, _, listed = term.partition("=")
        is_other = name.endswith("!")
        name = name.removesuffix("!")
        value = values.get(name)
        if name in OF_CONFIG:
            value = as_typed(OF_CONFIG[name](config))
        elif name in OF_ENV:
            value = as_typed(OF_ENV[name](config, spec)) if spec is not None else None
        asked = [values.get(each, each) for each in listed.split("|")]
        if value is None or (value in asked) == is_other:
            return False
    return True


def _makes_one_step(config: Config) -> bool:
    """Return whether each rollout gives one gradient step, in which the policy still is the policy of the rollout."""
    algo: Any = config.algo
    is_whole = algo.minibatch_size is None or algo.minibatch_size >= config.trainer.batch_size
    is_same = config.mode != "async" if algo.name == "ppo" else getattr(algo, "target_period", 1) == 1
    return bool(algo.epochs == 1 and is_whole and is_same and config.network.memory == "none")


def _explores_alone(config: Config) -> bool:
    """Return whether a ladder has only one worker or environment, so that nothing explores differently."""
    worker = config.worker
    is_alone = worker.num == 1 and (worker.exploration == "ladder" or worker.envs == 1)
    return isinstance(worker.exploration, str) and is_alone


OF_CONFIG: Mapping[str, Callable[[Config], bool]] = {
    "on_policy": lambda config: config.is_on_policy,
    "has_data": lambda config: bool(config.data.sources),
    "reads_minari": lambda config: any(source.startswith(MINARI) for source in config.data.sources),
    "has_env": lambda config: config.has_env,
    "explores_alone": _explores_alone,
    "makes_one_step": _makes_one_step,
    "changes_goals": lambda config: config.replay.changes_goals,
    "serves_steps": lambda config: config.replay.steps is not None,
    "weights_rows": lambda config: bool(load_algorithm(config.algo.name).WEIGHTS),
    "gpu": lambda config: expects_gpu(config.device),
}
"""Facts about a config that no key says alone."""
OF_ENV: Mapping[str, Callable[[Config, EnvSpec], Any]] = {
    "action": lambda config, spec: spec.action.kind,
    "has_torso": lambda config, spec: torso_name(config.network, spec) is not None,
    "has_images": lambda config, spec: any(len(column.shape) > 1 for column in leaves(spec.obs).values()),
    "has_vectors": lambda config, spec: any(column.dtype == "float32" for column in leaves(spec.obs).values()),
}
"""Facts about an environment."""

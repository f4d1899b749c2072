"""The cases of golden.py: their names, configs, and specs of observations and actions."""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from drl_cli.algos.lookup import load_algorithm
from drl_cli.config.config import Config
from drl_cli.envs.make import read_spec
from drl_cli.runtime.trial_update import single_trainer
from drl_cli.settings.algorithm import algorithm_of
from drl_cli.settings.compose import compose
from drl_cli.settings.conf import LOADER, bases, option_text, options
from drl_cli.settings.first_try import with_tuned
from drl_cli.types import ActionSpec, Column, EnvSpec, FrameStack, flatten

TABLE = Path(__file__).with_name("learn.yaml")
FIXED = ("mode=single", "seed=1", "device=cpu", "trainer.threads=1", "trainer.products=torch")
NEUTRAL = ("mode=", "worker.num=", "reanalyzer.", "manage.", "logger.", "checkpoint.")
"""Words that do not change what an update does."""
RAW = "env.normalize_obs=false env.normalize_reward=false"
UNSCALED = f"tuned=none {RAW}"
PINNED = (*RAW.split(), "trainer.batch_size=256")
"""Words of the rows with mode=offline, which were measured before other values became the defaults."""
MOST_PERIOD = 10
KINDS = {"box": "Pendulum-v1", "discrete": "CartPole-v1"}


def vector(size: int, action: int) -> tuple[Column, ActionSpec]:
    return Column((size,), "float32"), ActionSpec("box", action, f"Box({action},)")


def board(channels: int, actions: int) -> tuple[Column, ActionSpec]:
    return Column((10, 10, channels), "bool"), ActionSpec("discrete", actions, f"Discrete({actions})")


GOALS = {name: Column((size,), "float32") for name, size in (("achieved_goal", 3), ("desired_goal", 3))}
SPECS: dict[str, tuple[Any, ActionSpec]] = {
    "HalfCheetah-v5": vector(17, 6),
    "Hopper-v5": vector(11, 3),
    "Walker2d-v5": vector(17, 6),
    "Ant-v5": vector(105, 8),
    "FetchReach-v4": ({**GOALS, "observation": Column((10,), "float32")}, ActionSpec("box", 4, "Box(4,)")),
    "MinAtar-Breakout": board(4, 3),
    "MinAtar-SpaceInvaders": board(6, 4),
    "MinAtar-Freeway": board(7, 3),
    "MinAtar-Asterix": board(4, 5),
    "MinAtar-Seaquest": board(10, 6),
    "Pong": (Column((4, 84, 84), "uint8"), ActionSpec("discrete", 6, "Discrete(6)")),
    "CarRacing-v3": (Column((96, 96, 3), "uint8"), ActionSpec("box", 3, "Box(3,)")),
}
"""Observations and actions of environments whose packages are optional, by the environment's name."""


def spec_of(config: Config) -> EnvSpec:
    if config.env.name not in SPECS:
        return read_spec(config.env)
    obs, action = SPECS[config.env.name]
    stacks = {"": FrameStack(0, 4)} if config.env.name == "Pong" else {}
    return EnvSpec(config.env.id, obs, action, stacks)


def small(config: Config) -> Config:
    """Return the config of an algorithm's case.

    The network and the batches are small, and the learning rate is ten times higher, so that few updates take the
    policy far enough for a clip or a target network to have an effect.
    """
    sizes = {"minibatch_size": 32, "epochs": 2, "horizon": 2}
    given = {name: getattr(config.algo, name, None) for name in sizes}
    own = {name: min(size, given[name]) for name, size in sizes.items() if given[name] is not None}
    batch_size = 64
    if "horizon" in own:  # DreamerV3 imagines from each step of a window
        batch_size, config = 8, dataclasses.replace(config, replay=dataclasses.replace(config.replay, seq_len=4))
    return dataclasses.replace(
        config,
        algo=dataclasses.replace(config.algo, **own, lr=10 * config.algo.lr),
        network=dataclasses.replace(config.network, hidden=(32, 32), memory_size=16),
        trainer=dataclasses.replace(config.trainer, batch_size=batch_size),
        worker=dataclasses.replace(config.worker, envs=4),
    )


def config_of(case: str, words: Sequence[str] = ()) -> tuple[Config, dict[str, float | None]]:
    """Return the config of a case with further words of drl-train, and the values of its command that a case hides."""
    own = algorithms().get(case)
    typed = (own or case).split()
    config = single_trainer(compose([*typed, *(as_tuned(typed) if own else []), *FIXED, *words]), 1)
    values = hidden(config)
    if config.env.name in SPECS and config.replay.rows == "hindsight":  # the environment would compute rewards
        config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, rows="transitions"))
    config = config if own is None else small(config)
    if "target_period" in values:
        period = min(values["target_period"], MOST_PERIOD)
        config = dataclasses.replace(config, algo=dataclasses.replace(config.algo, target_period=period))
    return config, values


def as_tuned(typed: Sequence[str]) -> list[str]:
    """Return the values that the algorithm's options have beside tuned values, if its file leaves them open."""
    name = next(word.removeprefix("algo=") for word in typed if word.startswith("algo="))
    values = values_set_by("algo", name)
    tuned = with_tuned({"algo": {"name": algorithm_of(name)}})
    return [f"{key}={value}" for key, value in tuned.items() if values.get(key, 0) is None]


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


def hidden(config: Config) -> dict[str, Any]:
    """Return the period of the target network, which is replaced by MOST_PERIOD, and the pace of an off-policy run."""
    period = getattr(config.algo, "target_period", None)
    found = {} if period is None else {"target_period": period}
    if config.is_on_policy:
        return found
    pace = {"sample_insert_ratio": config.orchestrator.sample_insert_ratio, "min_inserts": config.min_inserts}
    return {**found, **pace, "capacity": config.replay.capacity}


def commands() -> list[str]:
    """Return the cases that are commands: those of learn.yaml, and one for each tuned set that they do not use."""
    rows = [row for row in yaml.safe_load(TABLE.read_text())["rows"].values() if "peer" not in row]
    found = list(dict.fromkeys(map(command, rows)))
    used = {word for name in found for word in [tuned_set(name)] if word}
    return found + [standing_in(name) for name in options("tuned") if name != "none" and name not in used]


def command(row: Mapping[str, Any]) -> str:
    """Return the case of a row of learn.yaml: its command without the words that do not change an update."""
    typed = list(flat(row["overrides"]))
    is_offline = "mode=offline" in typed
    words = [word for word in typed if not (word.startswith(NEUTRAL) or (is_offline and word in PINNED))]
    return " ".join([f"env={row['env']}", f"algo={row['algo']}", *words, *([RAW] if is_offline else [])])


def flat(given: Iterable[Any]) -> Iterable[str]:  # Any: an override, or a list of them
    for one in given:
        yield from flat(one) if isinstance(one, list) else [one]


def tuned_set(case: str) -> str | None:
    """Return the tuned set of a command, or None."""
    words = dict(word.split("=", 1) for word in case.split())
    family = "mujoco" if words["env"].endswith("-v5") else None
    names = [words.get("tuned"), f"{words['algo']}-{words['env']}", family and f"{words['algo']}-{family}"]
    if words.get("tuned") == "none":
        return None
    return next((name for name in names if name and option_text("tuned", name) is not None), None)


def standing_in(name: str) -> str:
    """Return a command that uses this tuned set."""
    algo, env = name.split("-", 1)
    images = "Pong" if "discrete" in load_algorithm(algorithm_of(algo)).ACTIONS else "CarRacing-v3"
    env = {"mujoco": "HalfCheetah-v5", "images": images}.get(env, env)
    return f"env={env} algo={algo} tuned={name}"


@cache
def algorithms() -> dict[str, str]:
    """Return the cases of algorithms, each with its command."""
    found = {}
    for name in options("algo"):
        kinds = [kind for kind in KINDS if kind in load_algorithm(algorithm_of(name)).ACTIONS]
        for kind in kinds:
            found[name if len(kinds) == 1 else f"{name} {kind}"] = f"env={KINDS[kind]} algo={name} {UNSCALED}"
    return found

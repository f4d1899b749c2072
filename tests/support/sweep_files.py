"""What a sweep leaves in its folder, and an environment of a user whose jobs need a file."""

import csv
import json

ENV = """
import gymnasium
from gymnasium.envs.classic_control.pendulum import PendulumEnv


def make(map=None):
    return open(map) and PendulumEnv() if map else PendulumEnv()


gymnasium.register("Near-v0", make, max_episode_steps=50)
"""


def rows(cwd):
    (file,) = cwd.glob("outputs/multirun/*/sweep.csv")
    with file.open() as text:
        return list(csv.DictReader(text))


def record(cwd, name):
    """Return the content of the only study.json or population.json."""
    (file,) = cwd.glob(f"outputs/multirun/*/{name}.json")
    return json.loads(file.read_text())


def runs(cwd):
    return sorted(path.parent for path in cwd.glob("outputs/*/*/*/run.json"))


def weights(cwd):
    seeds = {json.loads((run / "run.json").read_text())["seed"]: run for run in runs(cwd)}
    return {seed: (run / "checkpoints/last/model.safetensors").read_bytes() for seed, run in seeds.items()}

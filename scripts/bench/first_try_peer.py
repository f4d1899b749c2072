"""One first try of stable-baselines3, sb3-contrib or SBX with their defaults, for first_try.py.

    PEERS/bin/python scripts/bench/first_try_peer.py ENV sb3:sac STEPS SEED

The last line of the output is {"return": R, "seconds": S}: the mean return of 20 greedy episodes at the end, and the
time of learning. SBX needs `pip install sbx-rl`.
"""

import importlib
import json
import sys
import time

import first_try_envs
import gymnasium
import torch
from first_try_names import EPISODES, GYMNASIUM
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

PACKAGES = {"sb3": ("stable_baselines3", "sb3_contrib"), "sbx": ("sbx",)}
NAMES = {"qr_dqn": "QRDQN"}


def make(name: str) -> gymnasium.Env:
    if name in first_try_envs.TASKS:
        return Monitor(first_try_envs.TASKS[name]())
    id, kwargs, _ = GYMNASIUM[name]
    return Monitor(gymnasium.make(id, **kwargs))


def kind(word: str) -> type:
    """Return the class of PACKAGE:ALGORITHM."""
    package, _, name = word.partition(":")
    name = NAMES.get(name, name.upper())
    modules = [importlib.import_module(each) for each in PACKAGES[package]]
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def main() -> None:
    name, word, steps, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    model = kind(word)("MlpPolicy", make(name), seed=seed, device="cpu")
    started = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - started
    env = make(name)
    env.reset(seed=10**6 + seed)
    mean, _ = evaluate_policy(model, env, EPISODES)
    print(json.dumps({"return": float(mean), "seconds": seconds}))


if __name__ == "__main__":
    main()

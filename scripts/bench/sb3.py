"""Train an algorithm of stable-baselines3 or sb3-contrib with the settings of a drl-cli config, for learn.py.

    PEERS/bin/python scripts/bench/sb3.py SETTINGS.json FOLDER --seed 0 [--minutes 8]

The config names the algorithm; sb3_models.py has those that exist here. The run continues from FOLDER and ends with
its budget or after some minutes; FOLDER then has everything for the next call. The policy is evaluated every
manage.eval_period steps and at the end of the budget, and FOLDER/eval.csv gets a line with columns of drl-cli's
eval.csv. FOLDER/state.json and the last line of the output have `env_steps`, `seconds` (of learning, over all calls)
and `evaluations`, a list with the columns of eval.csv.
"""

import argparse
import csv
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_models import KINDS, envs, model
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy


class Scoring(BaseCallback):
    """Append evaluations to the list `done` and to the file eval.csv. Stop at the time `end`.

    An evaluation has `env_steps`, `wall_s` (seconds of learning before it) and statistics of the returns. `spent_s` is
    the time of earlier calls, `seconds` the time of evaluations. Times are from `perf_counter`.
    """

    def __init__(
        self, settings: dict[str, Any], seed: int, file: Path, done: list[dict[str, float]], spent_s: float, end: float
    ) -> None:
        super().__init__()
        self.period, self.episodes = settings["manage"]["eval_period"], settings["manage"]["eval_episodes"]
        self.budget, self.file, self.done, self.end, self.seconds = settings["total_env_steps"], file, done, end, 0.0
        self.started = time.perf_counter() - spent_s
        self.make_envs = lambda: envs(settings, 20, 10**6 + seed)

    def _on_training_start(self) -> None:
        self.due = self.after(self.model.num_timesteps)

    def after(self, steps: int) -> int:
        """Return the steps of the first evaluation after `steps`."""
        return min(self.budget, (steps // self.period + 1) * self.period)

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.due:
            began = time.perf_counter()
            returns, _ = evaluate_policy(
                self.model, self.make_envs(), self.episodes, warn=False, return_episode_rewards=True
            )
            of_returns = {name: float(getattr(np, name)(returns)) for name in ("mean", "std", "min", "max", "median")}
            wall_s = began - self.started - self.seconds
            self.done.append(
                {"env_steps": self.num_timesteps, "wall_s": wall_s, **of_returns, "episodes": len(returns)}
            )
            with self.file.open("w", newline="") as file:
                table = csv.DictWriter(file, list(self.done[0]))
                table.writeheader()
                table.writerows(self.done)
            self.due = self.after(self.num_timesteps)
            self.seconds += time.perf_counter() - began
        return time.perf_counter() < self.end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--after", type=int, default=0, help="steps of a new run before the clock starts")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if importlib.util.find_spec("minatar"):
        from minatar.gym import register_envs

        register_envs()
    settings, state = json.loads(args.settings.read_text()), args.folder / "state.json"
    if state.exists():
        done = json.loads(state.read_text())
        kind, num = KINDS[settings["algo"]["name"]], settings["worker"]["envs"]
        learner = kind.load(args.folder / "model", envs(settings, num, args.seed + done["env_steps"]))
        if hasattr(learner, "replay_buffer"):
            learner.load_replay_buffer(args.folder / "replay")
    else:
        args.folder.mkdir(parents=True, exist_ok=True)
        done, learner = {"env_steps": 0, "seconds": 0.0, "evaluations": []}, model(settings, args.seed)
        if args.after:
            learner.learn(args.after)
    budget = settings["total_env_steps"]
    if done["env_steps"] < budget:
        started = time.perf_counter()
        file, end = args.folder / "eval.csv", started + 60 * args.minutes
        scoring = Scoring(settings, args.seed, file, done["evaluations"], done["seconds"], end)
        learner.learn(budget - done["env_steps"], scoring, reset_num_timesteps=False)
        seconds = done["seconds"] + time.perf_counter() - started - scoring.seconds
        done = {"env_steps": learner.num_timesteps, "seconds": seconds, "evaluations": scoring.done}
        learner.save(args.folder / "model")
        if hasattr(learner, "replay_buffer"):
            learner.save_replay_buffer(args.folder / "replay")
        state.write_text(json.dumps(done))
    print(json.dumps(done))


if __name__ == "__main__":
    main()

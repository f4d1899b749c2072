"""Train an algorithm of stable-baselines3 or sb3-contrib with the settings of a drl-cli config, for learn.py.

    PEERS/bin/python scripts/bench/sb3.py SETTINGS.json FOLDER --seed 0 [--minutes 8] [--scored-from 750000]

The config names the algorithm; sb3_models.py has those that exist here. The run continues from FOLDER and ends with
its budget or after some minutes; FOLDER then has everything for the next call. Every manage.eval_period steps from
--scored-from on, or at the end of the budget, the policy is evaluated. The last line is JSON: `env_steps`, `seconds`
(of learning, over all calls) and `returns`, the mean of the greedy episodes of each evaluation.
"""

import argparse
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import torch
from sb3_models import KINDS, envs, model
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy


class Scoring(BaseCallback):
    """Append the mean of an evaluation to `returns` periodically from step `start` on. Stop at the time `end`.

    `seconds` is the time of evaluations. Times are from `perf_counter`.
    """

    def __init__(self, settings: dict[str, Any], seed: int, returns: list[float], start: int, end: float) -> None:
        super().__init__()
        self.period, self.episodes = settings["manage"]["eval_period"], settings["manage"]["eval_episodes"]
        self.returns, self.start, self.end, self.seconds = returns, start, end, 0.0
        self.make_envs = lambda: envs(settings, 20, 10**6 + seed)

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.start + len(self.returns) * self.period:
            began = time.perf_counter()
            mean, _ = evaluate_policy(self.model, self.make_envs(), self.episodes, warn=False)
            self.returns.append(float(mean))
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
    parser.add_argument("--scored-from", type=int)
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
        done, learner = {"env_steps": 0, "seconds": 0.0, "returns": []}, model(settings, args.seed)
        if args.after:
            learner.learn(args.after)
    budget = settings["total_env_steps"]
    if done["env_steps"] < budget:
        started = time.perf_counter()
        scoring = Scoring(settings, args.seed, done["returns"], args.scored_from or budget, started + 60 * args.minutes)
        learner.learn(budget - done["env_steps"], scoring, reset_num_timesteps=False)
        seconds = done["seconds"] + time.perf_counter() - started - scoring.seconds
        done = {"env_steps": learner.num_timesteps, "seconds": seconds, "returns": scoring.returns}
        learner.save(args.folder / "model")
        if hasattr(learner, "replay_buffer"):
            learner.save_replay_buffer(args.folder / "replay")
        state.write_text(json.dumps(done))
    print(json.dumps(done))


if __name__ == "__main__":
    main()

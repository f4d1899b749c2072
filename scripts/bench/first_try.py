"""First tries: what the plain command learns in environments that nobody has tuned.

    python scripts/bench/first_try.py [--env NAME ...] [--algo sac ...] [--steps 30000] [--seeds 3]
                                          [--again] [--peers PYTHON] [WORD ...]

The environments are the six of first_try_envs.py and six of gymnasium, with tuned=none. The score of a run is
(return - random) / (reference - random), where the return is that of the last evaluation of 20 greedy episodes, and
`random` that of random actions. The reference is that of the hand-made controller, or the one in GYMNASIUM.

`--algo sb3:sac` runs the defaults of stable-baselines3 with the Python of --peers, `sbx:sac` those of SBX.

Every run is a row of outputs/first_try/records.json, so that an interrupted call goes on. WORDs are further words of
drl-train, to see what one default is worth.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import first_try_envs
import gymnasium
import numpy as np
from first_try_names import EPISODES, GYMNASIUM

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

ON_CHOICES = {"sac": "dqn", "tqc": "qr_dqn"}
"""The algorithm for choices in place of one for a box."""


def make(name: str) -> Any:
    if name in first_try_envs.TASKS:
        return first_try_envs.TASKS[name]()
    id, kwargs, _ = GYMNASIUM[name]
    return gymnasium.make(id, **kwargs)


def mean_return(env: Any, is_expert: bool) -> float:
    """Return the mean return of random actions, or of the environment's controller."""
    returns = []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=episode)
        env.action_space.seed(episode)
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, ends, cut, _ = env.step(env.expert(obs) if is_expert else env.action_space.sample())
            total, is_over = total + float(reward), ends or cut
        returns.append(total)
    return float(np.mean(returns))


def bounds(name: str) -> tuple[float, float]:
    """Return the returns with the scores 0 and 1."""
    env = make(name)
    return mean_return(env, False), mean_return(env, True) if name in first_try_envs.TASKS else GYMNASIUM[name][2]


def train(name: str, algo: str, steps: int, seed: int, words: list[str]) -> dict[str, Any]:
    """Run drl-train. Return the summary of the run."""
    env = f"first_try_envs:{name}" if name in first_try_envs.TASKS else name
    typed = [f"env={env}", f"algo={algo}", "tuned=none", f"total_env_steps={steps}", f"seed={seed}", *words]
    fixed = [f"manage.eval_episodes={EPISODES}", "console=quiet", f"output_dir={ROOT}/outputs/first_try"]
    subprocess.run([sys.executable, "-m", "drl_cli.cli.train", *typed, *fixed], cwd=HERE, check=True)
    file = max((ROOT / "outputs/first_try").glob("*/*/*/summary.json"), key=lambda path: path.stat().st_mtime)
    summary: dict[str, Any] = json.loads(file.read_text())
    return summary


def train_peer(python: str, name: str, algo: str, steps: int, seed: int) -> dict[str, float]:
    """Run first_try_peer.py. Return the last return, and the seconds."""
    command = [python, str(HERE / "first_try_peer.py"), name, algo, str(steps), str(seed)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def for_actions(algo: str, is_box: bool) -> str:
    """Return the algorithm for these actions in place of one for a box."""
    package, colon, name = algo.rpartition(":")
    return package + colon + (name if is_box else ON_CHOICES.get(name, name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*first_try_envs.TASKS, *GYMNASIUM]
    parser.add_argument("--env", nargs="+", choices=names, default=names)
    parser.add_argument("--algo", nargs="+", default=["sac", "ppo"])
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--peers", metavar="PYTHON", help="the Python of the environment of requirements.txt")
    parser.add_argument("words", nargs="*", metavar="WORD")
    args = parser.parse_intermixed_args()
    file = ROOT / "outputs/first_try/records.json"
    records: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in args.env:
        low, high = bounds(name)
        is_box = isinstance(make(name).action_space, gymnasium.spaces.Box)
        for algo in dict.fromkeys(for_actions(algo, is_box) for algo in args.algo):
            scores, seconds = [], []
            for seed in range(args.seeds):
                key = " ".join([name, algo, str(args.steps), str(seed), *args.words])
                if args.again or key not in records:
                    if ":" in algo:
                        records[key] = train_peer(args.peers, name, algo, args.steps, seed)
                    else:
                        summary = train(name, algo, args.steps, seed, args.words)
                        records[key] = {"return": summary["final_return"], "seconds": summary["wall_s"]}
                    file.write_text(json.dumps(records, indent=1))
                scores.append((records[key]["return"] - low) / (high - low))
                seconds.append(records[key]["seconds"])
            each = " / ".join(f"{score:.2f}" for score in scores)
            print(
                f"{name:26} {algo:8} {args.steps:7,} steps  {np.mean(scores):5.2f}  ({each})  {np.mean(seconds):4.0f} s"
            )


if __name__ == "__main__":
    main()

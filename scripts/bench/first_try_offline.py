"""First tries with data: what the plain command of mode=offline learns from mixed data that nobody has tuned for.

    python scripts/bench/first_try_offline.py [--env NAME ...] [--algo bc iql ...] [--updates 10000] [--seeds 2]
                                              [--data-seed 200] [--peers PYTHON] [WORD ...]

The data of an environment are all steps of a SAC run with tuned=none, which drl-record reads from its replay table.
The return is that of 20 greedy episodes after the last update. `--algo d3rlpy:iql` runs the defaults of d3rlpy on the
same file, with the Python of --peers.

Every run is a row of outputs/first_try_offline/records.json, so that an interrupted call goes on. WORDs are further
words of drl-train, to see what one default is worth.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from first_try_names import EPISODES

from drl_cli.data.open import open_dataset

HERE = Path(__file__).resolve().parent
OUTPUTS = HERE.parents[1] / "outputs/first_try_offline"
RECORDS = OUTPUTS / "records.json"
STEPS = {"Pendulum-v1": 8_000, "LunarLanderContinuous": 25_000}
"""The environment steps of the SAC run."""
ALGOS = ("bc", "iql", "td3_bc", "cql", "awac", "rebrac")


def records() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return found


def call(name: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", f"drl_cli.cli.{name}", *words], check=True, stdout=subprocess.DEVNULL)


def newest(folder: Path) -> Path:
    return max(folder.glob("*/*/*/summary.json"), key=lambda path: path.stat().st_mtime).parent


def record(env: str, seed: int) -> str:
    """Return the dataset of an environment, which is made if it is missing."""
    file, folder = OUTPUTS / f"data/{env}-{seed}.npz", OUTPUTS / f"sac/{env}-{seed}"
    if not file.exists():
        words = ["algo.n_step=1", "checkpoint.replay=on", "console=quiet", f"output_dir={folder}"]
        run = [f"env={env}", "algo=sac", "tuned=none", "mode=single", f"total_env_steps={STEPS[env]}", f"seed={seed}"]
        call("train", *run, *words)
        call("record", f"run={newest(folder)}", "replay=true", f"output={file}")
    return str(file)


def train(env: str, data: str, algo: str, updates: int, seed: int, words: list[str]) -> dict[str, float]:
    folder, run = OUTPUTS / f"runs/{env}-{algo}-{seed}", [f"env={env}", "mode=offline", f"data={data}", f"algo={algo}"]
    evaluations = [f"manage.eval_period={updates}", f"manage.eval_episodes={EPISODES}", "debug.in_process=true"]
    fixed = [f"total_updates={updates}", f"seed={seed}", "console=quiet", f"output_dir={folder}"]
    call("train", *run, *evaluations, *fixed, *words)
    summary = json.loads((newest(folder) / "summary.json").read_text())
    return {"return": summary["final_return"], "seconds": summary["wall_s"]}


def train_peer(python: str, env: str, data: str, algo: str, updates: int, seed: int) -> dict[str, float]:
    command = [python, str(HERE / "first_try_offline_peer.py"), env, algo, str(updates), str(seed), data]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=STEPS, default=[*STEPS])
    parser.add_argument("--algo", nargs="+", default=ALGOS)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data-seed", type=int, default=200)
    parser.add_argument("--peers", metavar="PYTHON", help="the Python of the environment of requirements.txt")
    parser.add_argument("words", nargs="*", metavar="WORD")
    args = parser.parse_intermixed_args()
    for env in args.env:
        data = record(env, args.data_seed)
        facts = open_dataset(data, is_checked=True).facts
        returns = facts.whole_returns
        print(f"{env}: {facts.steps:,} steps, mean return {returns.mean():.1f}, best {returns.max():.1f}", flush=True)
        for algo in args.algo:
            keys = [" ".join([data, algo, str(args.updates), str(seed), *args.words]) for seed in range(args.seeds)]
            for seed, key in enumerate(keys):
                if key in records():
                    continue
                if algo.startswith("d3rlpy:"):
                    made = train_peer(args.peers, env, data, algo[7:], args.updates, seed)
                else:
                    made = train(env, data, algo, args.updates, seed, args.words)
                RECORDS.write_text(json.dumps(records() | {key: made}, indent=1))  # others may have been added
            found = [records()[key] for key in keys]
            each = " / ".join(f"{one['return']:.1f}" for one in found)
            print(f"  {algo:14} {each:24} {np.mean([one['seconds'] for one in found]):4.0f} s", flush=True)


if __name__ == "__main__":
    main()

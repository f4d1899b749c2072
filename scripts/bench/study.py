"""Searches that are killed and resumed, with and without pruning, on a task with a bad default.

    python scripts/bench/study.py [--seeds 0 1 2] [--pruners none median] [--records study.json] [--jobs 1]

DQN plays CartPole for 8,000 environment steps with a default learning rate of 1e-5. 16 trials choose the learning
rate and n_step. When half of the trials are done, the search and its jobs get SIGKILL, and `-m resume=` continues. At
the end the best values and the defaults run on 5 fresh seeds. Steps and seconds are totals of the trials. Searches in
the records are not repeated, and an interrupted script continues.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

TRIALS = 16
DEFAULT = "# @package _global_\nalgo:\n  lr: 1e-5\n"
SEARCH = (
    "-m", "hpo=tpe", f"hpo.trials={TRIALS}", "hpo.fresh_seeds=5", "env=CartPole-v1", "algo=dqn", "mode=single",
    "tuned=slow", "total_env_steps=8000", "network.hidden=[64,64]", "worker.envs=8", "trainer.batch_size=64",
    "orchestrator.min_inserts=500", "orchestrator.sample_insert_ratio=0.5", "replay.capacity=20000",
    "algo.target_period=100", "algo.epsilon_steps=2000", "manage.eval_period=1000", "manage.eval_episodes=10",
    "manage.confirm_episodes=0", "logger.tensorboard=false", "checkpoint.period=4000",
    "algo.lr=tag(log,interval(1e-5,1e-1))", "algo.n_step=choice(1,3,5)",
)  # fmt: skip
FRESH = re.compile(r"^(best|defaults) on \d+ fresh seeds: (.+)$", re.MULTILINE)
Record = dict[str, Any]


def begin(args: list[str], cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "drl_cli.cli.train", *args]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def study(cwd: Path) -> Record:
    found = list(cwd.glob("outputs/multirun/*/study.json"))
    return json.loads(found[0].read_text()) if found else {"trials": []}


def ended(cwd: Path) -> int:
    return sum(trial["state"] != "running" for trial in study(cwd)["trials"])


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a search and all processes that it started."""
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everyone:
        try:
            os.kill(one.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate()


def play(folder: Path, seed: int, pruner: str, jobs: int) -> Record:
    """Run one search, kill it and resume it. An interrupted call continues."""
    before = folder / "before.json"  # the values of the trials that had begun when it was killed
    if not before.exists():
        own = folder / "conf" / "tuned"
        own.mkdir(parents=True, exist_ok=True)
        (own / "slow.yaml").write_text(DEFAULT)
        new = ["--config-dir", str(own.parent), *SEARCH, f"seed={100 * seed}", f"hpo.pruner={pruner}"]
        old = ["-m", "resume=latest"] if study(folder)["trials"] else new
        process = begin([*old, f"sweep.jobs={jobs}"], folder)
        while ended(folder) < TRIALS // 2:
            if process.poll() is not None:
                raise SystemExit(process.communicate()[0])
            time.sleep(0.2)
        kill_all(process)
        before.write_text(json.dumps([trial["values"] for trial in study(folder)["trials"]]))
    process = begin(["-m", "resume=latest", f"sweep.jobs={jobs}"], folder)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}\n{said}")
    trials, begun = study(folder)["trials"], json.loads(before.read_text())
    (sweep,) = folder.glob("outputs/multirun/*/sweep.json")
    runs = [Path(job["run"]) for job in json.loads(sweep.read_text())["jobs"]]
    mine = [json.loads((runs[number - 1] / "summary.json").read_text()) for t in trials for number in t["jobs"]]
    done = [trial for trial in trials if trial["state"] == "done"]
    best = max(done, key=lambda trial: trial["objective"])
    return {
        "trials": len(trials),
        "kept": sum(trial["values"] == old for trial, old in zip(trials, begun, strict=False)),
        "begun before the kill": len(begun),
        "pruned": sum(trial["state"] == "pruned" for trial in trials),
        "values": best["values"],
        "objective": round(best["objective"], 1),
        **dict(FRESH.findall(said)),
        "env_steps": sum(summary["env_steps"] for summary in mine),
        "seconds": round(sum(summary["wall_s"] for summary in mine)),
    }


def table(records: dict[str, Record]) -> str:
    lines = ["| pruner, seed | trials (begun before the kill, kept) | pruned | best trial | objective | best, fresh | "]
    lines[0] += "defaults, fresh | env steps | seconds |"
    lines.append("| --- |" + " --- |" * 8)
    for name, one in records.items():
        values = ", ".join(
            f"{key.rpartition('.')[2]} {value:.2g}" if isinstance(value, float) else f"{key.rpartition('.')[2]} {value}"
            for key, value in one["values"].items()
        )
        trials = f"{one['trials']} ({one['begun before the kill']}, {one['kept']})"
        cells = [name, trials, one["pruned"], values, one["objective"], one["best"], one["defaults"]]
        lines.append(f"| {' | '.join(map(str, cells))} | {one['env_steps']:,} | {one['seconds']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pruners", nargs="+", default=["none", "median"])
    parser.add_argument("--records", type=Path, default=Path("study.json"))
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    args = parser.parse_args()
    records: dict[str, Record] = json.loads(args.records.read_text()) if args.records.exists() else {}
    for seed in args.seeds:
        for pruner in args.pruners:
            if (name := f"{pruner}, {seed}") not in records:
                folder = args.records.with_suffix("").absolute() / f"{pruner}-{seed}"
                records[name] = play(folder, seed, pruner, args.jobs)
                args.records.write_text(json.dumps(records, indent=1) + "\n")
                print(name, records[name], file=sys.stderr, flush=True)
    print(table(records))


if __name__ == "__main__":
    main()

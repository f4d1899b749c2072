"""Measure how soon the commands answer: the best of five of each kind of answer, beside its goal.

    python scripts/bench/answers.py          # on an idle machine
    python scripts/bench/answers.py --num 3

Seconds are wall time and processor time (user and system) of the whole command. The processor time of `import torch`
is a lower bound for `dry_run=true`, which makes an update.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ANSWERS = (
    ("wrong name", 0.4, 2, ("env=CartPol", "algo=sacc", "alog=dqn", "algo.lrr=1")),
    (
        "impossible combination",
        0.8,
        2,
        (
            "algo=td3 env=CartPole-v1",
            "env=CartPole-v1 algo=ppo replay=hindsight",
            "env=Pendulum-v1 algo=dqn",
            "env=CartPole-v1 algo=dqn replay=fifo",
        ),
    ),
    ("dry run", 2.0, 0, ("env=CartPole-v1 dry_run=true", "env=Pendulum-v1 dry_run=true")),
)
"""Kind of answer, goal [s], exit code, and words after drl-train."""
RUNS, RUNS_GOAL = 200, 0.5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=5, help="times that each command runs")
    num = parser.parse_args().num
    with tempfile.TemporaryDirectory() as folder:
        # byte code as in an installed package, even if the environment keeps Python from writing it
        env = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/pyc", "COLUMNS": "100"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        print(f"{'answer':<23} {'command':<53} {'goal':>6} {'wall':>6} {'cpu':>6}   [s], best of {num}")
        for kind, goal, exit_code, lines in ANSWERS:
            for line in lines:
                words = [sys.executable, "-m", "drl_cli.cli.train", *line.split(), f"output_dir={folder}/runs"]
                show(kind, line, goal, best(words, env, num, exit_code))
        make_runs(Path(folder, "many"), env)
        words = [sys.executable, "-m", "drl_cli.cli.list", "runs", f"output_dir={folder}/many"]
        show("list", f"drl-list runs, of {RUNS}", RUNS_GOAL, best(words, env, num, 0))
        for module in ("torch", "gymnasium", "hydra"):
            show("bound", f"import {module}", None, best([sys.executable, "-c", f"import {module}"], env, num, 0))


def best(words: list[str], env: dict[str, str], num: int, exit_code: int) -> tuple[float, float]:
    """Return the smallest wall time and the smallest processor time [s] of a command. The first call is not counted."""
    walls, cpus = [], []
    for _ in range(num + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if done.returncode != exit_code:
            sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return min(walls[1:]), min(cpus[1:])


def show(kind: str, line: str, goal: float | None, seconds: tuple[float, float]) -> None:
    """Print a row, with a mark if the wall time misses the goal."""
    wall, cpu = seconds
    mark = "  missed" if goal is not None and wall > goal else ""
    print(f"{kind:<23} {line:<53} {goal or '':>6} {wall:>6.2f} {cpu:>6.2f}{mark}", flush=True)


def make_runs(folder: Path, env: dict[str, str]) -> None:
    """Make folders of finished runs with whole configs, as far as drl-list reads them."""
    words = [sys.executable, "-m", "drl_cli.cli.train", "env=Pendulum-v1", "mode=single", "--cfg", "job"]
    text = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    summary = {"env_steps": 1000, "wall_s": 9.0, "best_return": -150.0, "final_return": -160.0}
    evaluations = "".join(f"{1000 * i},{2.0 * i},{10.0 * i}\n" for i in range(1, 21))
    for i in range(RUNS):
        run = folder / "Pendulum-v1" / "sac-single" / f"20260101-00{i // 60:02}{i % 60:02}-{i:06}-s{i}"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(re.sub(r"^seed: .*$", f"seed: {i}", text, flags=re.MULTILINE))
        (run / "run.json").write_text(json.dumps({"id": run.name, "status": "done", "command": ["drl-train"]}))
        (run / "summary.json").write_text(json.dumps({"status": "done", "seed": i, **summary}))
        (run / "eval.csv").write_text(f"env_steps,wall_s,mean\n{evaluations}")


if __name__ == "__main__":
    main()

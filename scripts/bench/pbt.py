"""Population based training against fixed learning rates, on a task whose best learning rate falls during training.

    python scripts/bench/pbt.py [--seeds 0 1 2] [--records pbt.json]

DQN plays Aim-v0 (aim.py) for 12,000 environment steps. A population of 4 trains in 8 rounds; its first learning rates
are drawn from 1e-4 to 3e-2. The comparisons are 4 runs that keep these rates, and runs with 6 rates of a grid. The
score is the mean return of the last weights over 20 episodes without noise; the best possible score is 0. Runs in the
records are not repeated, and an interrupted sweep continues.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

MEMBERS = 4
RATE = "algo.lr=tag(log,interval(1e-4,3e-2))"
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
JOB = (
    "env=aim:Aim-v0", "env.kwargs.noise=2", "env.kwargs.offset=20", "manage.env_kwargs.noise=0",
    "manage.env_kwargs.offset=0", "algo=dqn", "algo.gamma=0", "algo.loss=mse", "algo.epsilon_end=1", "mode=single",
    "debug.in_process=true", "network.hidden=[32,32]", "total_env_steps=12000", "worker.envs=10",
    "replay.capacity=20000", "trainer.batch_size=32", "orchestrator.min_inserts=500",
    "orchestrator.sample_insert_ratio=0.5",
    "manage.eval_period=1500", "manage.eval_episodes=20", "logger.tensorboard=false", "checkpoint.period=12000",
)  # fmt: skip
POPULATION = ("hpo=pbt", f"hpo.members={MEMBERS}", "hpo.rounds=8", "hpo.quantile=0.5", "hpo.resample=0.5", RATE)
SIDES = ("population", "fixed", "grid")
Record = dict[str, Any]


def sweep(folder: Path, args: list[str]) -> Path:
    """Run or continue drl-train -m in this folder. Return the folder of the sweep."""
    there = list(folder.glob("outputs/multirun/*/sweep.json"))
    values = ["resume=latest"] if there else args
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("aim.py"), folder)  # modules are imported from the current folder
    command = [sys.executable, "-m", "drl_cli.cli.train", "-m", *values]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
    (made,) = folder.glob("outputs/multirun/*/sweep.json")
    return made.parent


def play(folder: Path, side: str, seed: int) -> Record:
    """Return rates and last returns of all runs of a side; for the population, of every round."""
    if side == "grid":
        made = sweep(folder, [*JOB, f"seed={seed}", f"algo.lr={','.join(map(str, GRID))}"])
        runs = [Path(job["run"]) for job in json.loads((made / "sweep.json").read_text())["jobs"]]
        summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
        return {"rates": [list(GRID)], "returns": [[round(each["final_return"], 2) for each in summaries]]}
    made = sweep(folder, [*JOB, *POPULATION, f"seed={seed}", *(["hpo.rounds=1"] if side == "fixed" else [])])
    rounds = json.loads((made / "population.json").read_text())["rounds"]
    return {
        "rates": [[float(f"{turn['values']['algo.lr']:.2g}") for turn in turns] for turns in rounds],
        "returns": [[round(turn["score"], 2) for turn in turns] for turns in rounds],
    }


def table(records: dict[str, Record], seeds: list[int]) -> str:
    """Return a table of the best final scores: population, its fixed first rates, each rate of the grid."""
    lines = ["| seed | population | its first rates kept | " + " | ".join(map(str, GRID)) + " |"]
    lines.append("| --- |" + " --- |" * (2 + len(GRID)))
    rows = []
    for seed in seeds:
        known = [records.get(f"{side}, {seed}") for side in SIDES]
        if all(known):
            population, fixed, grid = (record["returns"][-1] for record in known)
            rows.append([max(population), max(fixed), *grid])
            lines.append(f"| {seed} | {' | '.join(f'{value:.1f}' for value in rows[-1])} |")
    if rows:
        means = [statistics.mean(column) for column in zip(*rows, strict=True)]
        lines.append(f"| mean | {' | '.join(f'{value:.1f}' for value in means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--records", type=Path, default=Path("pbt.json"))
    args = parser.parse_args()
    records: dict[str, Record] = json.loads(args.records.read_text()) if args.records.exists() else {}
    for seed in args.seeds:
        for side in args.sides:
            if (name := f"{side}, {seed}") not in records:
                records[name] = play(args.records.with_suffix("").absolute() / f"{side}-{seed}", side, 100 * seed)
                args.records.write_text(json.dumps(records, indent=1) + "\n")
                print(name, records[name], file=sys.stderr, flush=True)
    print(table(records, args.seeds))


if __name__ == "__main__":
    main()

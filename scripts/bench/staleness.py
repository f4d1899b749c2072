"""Train with several bounds of staleness, and write docs/pictures/staleness.png and staleness.json.

    python scripts/bench/staleness.py [--seeds 0 1] [--steps 20000] [--pause 0.1] [--plot]

Every run trains on CartPole-v1 for the same environment steps, in mode=async with two workers. After each batch the
trainer waits `--pause` seconds, so that the workers are faster than the trainer and collect until the bound holds them
back. With the bound 0 the run is in mode=sync. The return of a run is the mean of its evaluations in the second half.
`--plot` only draws the figure from the results of earlier calls. Finished runs are not repeated. With other `--steps`
or `--pause`, results and figure are written to outputs/staleness.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from drl_cli.settings.build import to_yaml_keys
from drl_cli.settings.compose import compose

ROOT = Path(__file__).resolve().parents[2]
RESULTS, OUTPUTS = ROOT / "docs/pictures/staleness.json", ROOT / "outputs/staleness"
STEPS, PAUSE = 20_000, 0.1
BOUNDS = (0, 2, 8, 32)
MODULES = {"ppo": "ppo", "appo": "impala", "impala": "impala"}
SLOW = '''"""The algorithm {base}, which waits after each batch."""

import time

from drl_cli.algos.on_policy import {base}
from drl_cli.algos.on_policy.{base} import ACTIONS, TABLES, Config, Policy


class Algorithm({base}.Algorithm):
    def update(self, batch, counts):
        update = super().update(batch, counts)
        time.sleep({pause})
        return update
'''
SAME = (
    *("env=CartPole-v1", "network.hidden=[64,64]", "network.activation=tanh", "network.init=orthogonal"),
    *("optimizer.max_norm=0.5", "worker.num=2", "worker.envs=4", "worker.block_rows=32", "trainer.batch_size=256"),
    *("replay=fifo-once", "algo.minibatch_size=64", "manage.eval_episodes=10", "console=quiet"),
    *("env.normalize_obs=false", "env.normalize_reward=false"),  # as in the first runs, before this was the default
)


def write_slow(name: str, pause: float) -> None:
    """Write the module slow_NAME and its yaml, with the options of algo=NAME."""
    options = to_yaml_keys(compose(["env=CartPole-v1", f"algo={name}", "tuned=none"]).algo)
    if name == "impala":
        options["minibatch_size"] = 256
    (OUTPUTS / f"slow_{name}.py").write_text(SLOW.format(base=MODULES[name], pause=pause))
    (OUTPUTS / f"slow_{name}.yaml").write_text(yaml.safe_dump({**options, "name": f"slow_{name}", "preset": None}))


def run(name: str, bound: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once; return the mean return of the second half, and the mean age [versions] and lag [updates]."""
    place = OUTPUTS / f"{name}-{bound}-{seed}"
    mode = ["mode=sync"] if bound == 0 else ["mode=async"]
    same = [word for word in SAME if not (name == "impala" and word.startswith("algo.minibatch_size"))]
    own = [f"algo=slow_{name}", f"replay.max_staleness={bound}", f"seed={seed}", f"total_env_steps={steps}"]
    command = [Path(sys.executable).with_name("drl-train"), *same, *mode, *own, f"manage.eval_period={steps // 10}"]
    subprocess.run([*command, f"output_dir={place}"], check=True, cwd=OUTPUTS, env=os.environ | {"PYTHONPATH": "."})
    folder = max(place.glob("*/*/*/run.json")).parent
    with (folder / "eval.csv").open() as file:
        returns = [(int(row["env_steps"]), float(row["mean"])) for row in csv.DictReader(file)]
    late = [value for step, value in returns if step > steps / 2]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ages = [row["replay/staleness_mean"] for row in rows if "replay/staleness_mean" in row]
    oldest = max(row["replay/staleness_max"] for row in rows if "replay/staleness_max" in row)
    lag = json.loads((folder / "summary.json").read_text())["policy_lag_mean"]
    figures = {"return": sum(late) / len(late), "age": sum(ages) / len(ages), "oldest": oldest, "lag": lag}
    return {**figures, "dropped": rows[-1]["replay/dropped_rows"]}


def results_file(steps: int, pause: float) -> Path:
    """Return the file of the results, beside which the figure is. Only runs with the page's options are on the page."""
    return RESULTS if (steps, pause) == (STEPS, PAUSE) else OUTPUTS / f"{steps}-steps-{pause:g}-s.json"


def plot(results: dict[str, dict[str, Any]], picture: Path) -> None:
    """Draw the return against the bound: a line through the mean of the seeds, and a point for each run."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for name in MODULES:
        points = [
            (place, value["return"])
            for place, bound in enumerate(BOUNDS)
            for key, value in results.items()
            if key.startswith(f"{name}-{bound}-")
        ]
        means = {place: [value for at, value in points if at == place] for place, _ in points}
        (line,) = axes.plot(list(means), [sum(each) / len(each) for each in means.values()], label=name)
        axes.scatter(*zip(*points, strict=True), color=line.get_color(), s=14)
    axes.set_xticks(range(len(BOUNDS)), [f"{bound}" if bound else "0 (sync)" for bound in BOUNDS])
    axes.set_xlabel("replay.max_staleness [policy versions]")
    axes.set_ylabel("mean return, second half")
    axes.set_title("CartPole-v1, mode=async, slow trainer")
    axes.legend()
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pause", type=float, default=PAUSE)
    parser.add_argument("--plot", action="store_true")
    args = parser.parse_args()
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    file = results_file(args.steps, args.pause)
    results = json.loads(file.read_text()) if file.exists() else {}
    wanted = [(seed, name, bound) for seed in args.seeds for name in MODULES for bound in BOUNDS]
    for seed, name, bound in [] if args.plot else wanted:
        if (key := f"{name}-{bound}-{seed}") not in results:
            print(f"{key} begins", flush=True)
            write_slow(name, args.pause)
            results[key] = run(name, bound, seed, args.steps)
            file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
            print(key, results[key], flush=True)
    plot(results, file.with_suffix(".png"))


if __name__ == "__main__":
    main()

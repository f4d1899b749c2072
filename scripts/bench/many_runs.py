"""Make many run folders from one finished run, to measure drl-list runs, drl-compare and the panel with many runs.

    drl-train env=Pendulum-v1 mode=single total_env_steps=6000 output_dir=/tmp/one
    python scripts/bench/many_runs.py /tmp/one/*/*/* 2000 /tmp/many
    /usr/bin/time -v drl-list runs output_dir=/tmp/many limit=2000
    /usr/bin/time -v drl-compare runs=[/tmp/many] png=null csv=null

The runs have 20 evaluations, `--lrs` learning rates, and as many seeds as there are runs of a learning rate.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import yaml

EVALUATIONS = 20


def main() -> None:
    """Make the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("num", type=int)
    parser.add_argument("output", type=Path)
    parser.add_argument("--lrs", type=int, default=20)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    config = yaml.safe_load((args.run / "config.yaml").read_text())
    record, summary = (json.loads((args.run / name).read_text()) for name in ("run.json", "summary.json"))
    head = (args.run / "eval.csv").read_text().splitlines()[0].split(",")
    for i in range(args.num):
        seed, lr = i // args.lrs, round(1e-4 * (1 + i % args.lrs), 4)
        run_id = f"20260101-{i // 3600:02}{i // 60 % 60:02}{i % 60:02}-{i:06}-s{seed}"
        folder = args.output.joinpath(*args.run.resolve().parts[-3:-1], run_id)
        folder.mkdir(parents=True)
        changed = {**config, "seed": seed, "algo": {**config["algo"], "lr": lr}}
        (folder / "config.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
        (folder / "run.json").write_text(json.dumps({**record, "id": run_id, "status": "done"}))
        (folder / "summary.json").write_text(json.dumps({**summary, "run_id": run_id, "status": "done", "seed": seed}))
        rows = [
            ",".join(
                str({"env_steps": 1000 * j, "wall_s": 2.0 * j, "mean": rng.normal(j)}.get(name, 0)) for name in head
            )
            for j in range(1, EVALUATIONS + 1)
        ]
        (folder / "eval.csv").write_text("\n".join([",".join(head), *rows]) + "\n")


if __name__ == "__main__":
    main()

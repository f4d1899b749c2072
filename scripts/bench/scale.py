"""Collecting by many workers: a probe that sleeps in each step, no updates, with and without proxies.

    python scripts/bench/scale.py [--workers 1 2 4 8 16] [--step-ms 1 0.1] [--proxies 0 2]

Each worker has `--envs` environments and a tiny network, the limiter is none: what is measured is the control plane.
Figures are of the last `--seconds` of each run, when all processes are up. `efficiency` is steps/s over workers times
the steps/s of one. `hand-overs/s` are blocks that reach replay, each of which takes the driver two calls, a collect and
an insert; 1,000 workers make 1,000 x (steps/s of one) / `--rows` of them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = (
    "env=drl_cli.envs.probes:Sleeper-v0", "algo=sac", "mode=async", "network.hidden=[16,16]",
    "orchestrator.limiter=none", "trainer.batch_size=16", "replay.capacity=5_000_000", "manage.eval_period=100_000_000",
    "manage.eval_episodes=1", "manage.confirm_episodes=1", "logger.tensorboard=false", "checkpoint.period=100_000_000",
    "total_env_steps=1_000_000_000", "orchestrator.min_inserts=5_000_000", "worker.random_steps=1_000_000_000",
    "trainer.updates_per_call=1",
)  # fmt: skip


def run(workers: int, step_ms: float, proxies: int, args: argparse.Namespace) -> dict[str, float]:
    """Figures of a run, from when it has been collecting for long enough for all workers to have started."""
    with tempfile.TemporaryDirectory() as folder:
        own = (
            f"+env.kwargs.step_s={step_ms / 1000}", f"worker.num={workers}", f"worker.proxies={proxies}",
            f"worker.envs={args.envs}", f"worker.block_rows={args.rows}", f"output_dir={folder}",
        )  # fmt: skip
        with (Path(folder) / "output").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "drl_cli.cli.train", *SETTINGS, *own], stdout=output, stderr=output
            )
        needed = args.start_each * workers + args.seconds
        while len(lines := reports(folder)) < 2 or lines[-1]["perf/wall_s"] - lines[0]["perf/wall_s"] < needed:
            if process.poll() is not None:
                raise SystemExit((Path(folder) / "output").read_text())
            time.sleep(1.0)
        process.terminate()
        process.wait()
        summary = json.loads(next(Path(folder).glob("*/*/*/summary.json")).read_text())
    last = [line for line in lines if line["perf/wall_s"] >= lines[-1]["perf/wall_s"] - args.seconds]
    steps, seconds = (last[-1][key] - last[0][key] for key in ("env_steps", "perf/wall_s"))
    return {"steps/s": steps / seconds, "start_up_s": summary["start_up_s"], "mb": summary["peak_rss_mb"]}


def reports(folder: str) -> list[dict[str, float]]:
    """Those made so far, from the first with a step on."""
    found = list(Path(folder).glob("*/*/*/metrics.jsonl"))
    lines = [json.loads(line) for line in found[0].read_text().splitlines(True) if line.endswith("\n")] if found else []
    return [line for line in lines if line.get("env_steps") and "perf/wall_s" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--proxies", type=int, nargs="+", default=[0])
    parser.add_argument("--envs", type=int, default=16, help="per worker")
    parser.add_argument("--rows", type=int, default=256, help="per hand-over")
    parser.add_argument("--seconds", type=float, default=12.0, help="that are measured")
    parser.add_argument("--start-each", type=float, default=1.5, help="seconds left for the start of each worker")
    args = parser.parse_args()
    print("| step | workers | proxies | steps/s | efficiency | hand-overs/s | start-up s | all MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for step_ms in args.step_ms:
        one = None
        for workers in args.workers:
            for proxies in args.proxies if workers > 1 else [0]:
                if proxies and workers % proxies:
                    continue
                result = run(workers, step_ms, proxies, args)
                rate = result["steps/s"]
                one = one or rate / workers
                print(
                    f"| {step_ms:g} ms | {workers} | {proxies} | {rate:,.0f} | {rate / workers / one:.2f} "
                    f"| {rate / args.rows:,.1f} | {result['start_up_s']:.1f} "
                    f"| {result['mb']:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

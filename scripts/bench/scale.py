"""Collecting by many workers: environments that sleep in each step, no updates, with and without proxies.

    python scripts/bench/scale.py [--workers 1 2 4 8 16] [--step-ms 1 0.1] [--proxies 0 2]

Each worker has `--envs` environments and a tiny network, and the limiter is off, so that only the calls are measured.
The numbers cover `--seconds` after all processes started. "CPU" is processor seconds per second. "efficiency" is
steps/s divided by the number of workers times the steps/s of one worker. "blocks/s" counts blocks; each block
needs two calls, a collect and an insert.
"""

import argparse
from typing import Any

from runs import QUIET, Line, watch

SETTINGS = (
    "env=drl_cli.envs.probes:Sleeper-v0", "algo=sac", "mode=async", "network.hidden=[16,16]",
    "orchestrator.limiter=none", "trainer.batch_size=16", "replay.capacity=5_000_000", *QUIET,
    "orchestrator.min_inserts=5_000_000", "worker.random_steps=1_000_000_000", "trainer.updates_per_call=1",
)  # fmt: skip


def run(workers: int, step_ms: float, proxies: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a run after all workers have started."""

    def is_warm(lines: list[Line]) -> bool:
        return bool(lines) and lines[-1]["perf/wall_s"] - lines[0]["perf/wall_s"] >= args.start_each * workers

    own = (
        f"+env.kwargs.step_s={step_ms / 1000}", f"worker.num={workers}", f"worker.proxies={proxies}",
        f"worker.envs={args.envs}", f"worker.block_rows={args.rows}",
    )  # fmt: skip
    return watch([*SETTINGS, *own], args.seconds, is_warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--proxies", type=int, nargs="+", default=[0])
    parser.add_argument("--envs", type=int, default=16, help="per worker")
    parser.add_argument("--rows", type=int, default=256, help="per block")
    parser.add_argument("--seconds", type=float, default=12.0, help="that are measured")
    parser.add_argument("--start-each", type=float, default=1.5, help="seconds left for the start of each worker")
    args = parser.parse_args()
    print("| step | workers | proxies | steps/s | efficiency | blocks/s | main CPU | all CPU | start-up s | all MB |")
    print("| --- |" + " --- |" * 9)
    for step_ms in args.step_ms:
        one = None
        for workers in args.workers:
            for proxies in args.proxies if workers > 1 else [0]:
                if proxies and workers % proxies:
                    continue
                result = run(workers, step_ms, proxies, args)
                rate, cpu, summary = result["rates"]["env steps"], result["cpu"], result["summary"]
                one = one or rate / workers
                print(
                    f"| {step_ms:g} ms | {workers} | {proxies} | {rate:,.0f} | {rate / workers / one:.2f} "
                    f"| {rate / args.rows:,.1f} | {cpu['main']:.2f} | {sum(cpu.values()):.2f} "
                    f"| {summary['start_up_s']:.1f} | {summary['peak_rss_mb']:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

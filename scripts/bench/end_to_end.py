"""Whole runs on LunarLanderContinuous with the tuned SAC: the speed of each mode, and of async against its bounds.

    python scripts/bench/end_to_end.py [--rounds 3] [--seconds 20] [--modes async sync single] [--set KEY=VALUE ...]

The modes alternate at the same replay ratio. Then both sides of async are measured alone: the worker without updates
(a, environment steps/s), and the trainer with a replay ratio so high that the workers wait (b, updates/s). At the
ratio r = b / a both sides are always busy. The result is the share of the lower bound at the ratio of the run.
Evaluations, checkpoints and the time before the first report after `--warm` updates are excluded.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from runs import QUIET, Line, spread, watch

BASE = ("env=LunarLanderContinuous", "algo=sac", *QUIET)
ALONE = {
    "worker": ("orchestrator.min_inserts=4_000_000", "replay.capacity=4_000_000", "worker.random_steps=0",
               "worker.block_rows=512"),
    "trainer": ("orchestrator.sample_insert_ratio=64", "trainer.updates_per_call=16"),
}  # fmt: skip
Result = dict[str, Any]


def run(args: argparse.Namespace, *overrides: str) -> Result:
    def is_warm(lines: list[Line]) -> bool:
        return bool(lines) and lines[-1]["perf/opt_steps"] >= args.warm

    return watch([*BASE, *args.set, *overrides], args.seconds, is_warm)


def alone(args: argparse.Namespace) -> tuple[Result, Result]:
    """Measure the worker without a trainer and the trainer without a worker."""

    def is_warm(lines: list[Line]) -> bool:
        return bool(lines) and lines[-1]["env_steps"] >= args.steps

    worker = watch([*BASE, "mode=async", *ALONE["worker"], *args.set], args.seconds, is_warm)
    return worker, run(args, "mode=async", *ALONE["trainer"])


def table(results: Mapping[str, Sequence[Result]]) -> str:
    """Return a markdown table: medians over the rounds, and ranges of the rates."""
    lines = ["| run | env steps/s | updates/s | updates/step | worker waits | trainer waits | start-up s |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name, rounds in results.items():
        steps, updates = ([one["rates"][kind] for one in rounds] for kind in ("env steps", "updates"))
        ratio = median(done / taken for done, taken in zip(updates, steps, strict=True))
        waits = [f"{median(one['wait'][side] for one in rounds):.2f}" for side in ("worker", "trainer")]
        start = median(one["summary"]["start_up_s"] for one in rounds)
        lines.append(
            f"| {name} | {spread(steps)} | {spread(updates)} | {ratio:.4g} | {' | '.join(waits)} | {start:.1f} |"
        )
    return "\n".join(lines)


def roles(results: Mapping[str, Sequence[Result]]) -> str:
    """Return a markdown table: processor seconds per second and peak memory of each role."""
    lines = ["| role | " + " | ".join(results) + " |", "| --- |" + " --- |" * len(results)]
    names = dict.fromkeys(role for rounds in results.values() for one in rounds for role in one["cpu"])
    for role in names:
        cells = []
        for rounds in results.values():
            seen = [one for one in rounds if role in one["cpu"]]
            cpu, mb = (median(one[kind].get(role, 0.0) for one in seen) if seen else 0.0 for kind in ("cpu", "mb"))
            cells.append(f"{cpu:.3f}, {mb:.0f} MB" if seen else "")
        lines.append(f"| {role} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured of each run")
    parser.add_argument("--warm", type=int, default=100, help="updates before")
    parser.add_argument("--steps", type=int, default=8000, help="environment steps before, without updates")
    parser.add_argument("--modes", nargs="*", default=["async", "sync", "single"])
    parser.add_argument("--no-bounds", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="config of all runs")
    args = parser.parse_args()
    modes: dict[str, list[Result]] = {mode: [] for mode in args.modes}
    for i in range(args.rounds):
        for mode in args.modes[:: 1 if i % 2 == 0 else -1]:
            modes[mode].append(run(args, f"mode={mode}"))
    if modes:
        print(f"{table(modes)}\n\nProcessor seconds per second, and peak memory\n\n{roles(modes)}\n", flush=True)
    if args.no_bounds:
        return
    both: dict[str, list[Result]] = {"worker alone": [], "trainer alone": [], "both": []}
    shares = []
    for _ in range(args.rounds):
        worker, trainer = alone(args)
        steps, updates = worker["rates"]["env steps"], trainer["rates"]["updates"]
        together = run(args, "mode=async", f"orchestrator.sample_insert_ratio={updates / steps:.6g}")
        for name, one in zip(both, (worker, trainer, together), strict=True):
            both[name].append(one)
        reached = together["rates"]
        shares.append(max(reached["env steps"] / steps, reached["updates"] / updates))  # of the lower bound
        print(f"both / bound: {shares[-1]:.2f}", file=sys.stderr, flush=True)
    print(
        f"{table(both)}\n\n{roles(both)}\n\nboth / bound: {median(shares):.2f} {[round(share, 2) for share in shares]}"
    )


if __name__ == "__main__":
    main()

"""Memory over a long run: resident memory of each process after replay is full, and the number of calls.

    python scripts/bench/memory.py [--minutes 60] [--every 60] [--set KEY=VALUE ...]

mode=async with one worker, Pendulum-v1, two layers of 16 and few rows per call, so that there are many calls per
second. The first line is the time when replay was full, and growth counts from this line. The last columns
extrapolate the second half of the time to an hour and to two million calls.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil
from runs import Line, nap, reports

from drl_cli.runtime.place.usage import Usage

SETTINGS = (
    "env=Pendulum-v1", "algo=sac", "tuned=none", "mode=async", "network.hidden=[16,16]", "worker.num=1",
    "worker.envs=4", "worker.block_rows=64", "trainer.batch_size=256", "trainer.updates_per_call=16",
    "replay.capacity=100_000", "total_env_steps=1_000_000_000",
)  # fmt: skip
MANY = 2_000_000  # calls of a day


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="from when replay is full")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two lines")
    parser.add_argument("--set", nargs="*", default=[], help="more for drl-train")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the run is to be ended, too
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("w") as file:
            command = [sys.executable, "-m", "drl_cli.cli.train", *SETTINGS, *args.set, f"output_dir={folder}"]
            process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            while not is_full(reports(folder)):
                nap(process, output)
            first, looks = reports(folder)[-1], [megabytes(process.pid)]
            print("| minute | " + " | ".join(looks[0]) + " |\n| --- |" + " --- |" * len(looks[0]))
            started = time.perf_counter()
            while (minute := (time.perf_counter() - started) / 60) < args.minutes:
                print(row(f"{minute:.1f}", looks[0], looks[-1]), flush=True)
                until = started + len(looks) * args.every
                while time.perf_counter() < until:
                    nap(process, output)
                looks.append(megabytes(process.pid))
            last = reports(folder)[-1]
        finally:
            process.terminate()
            process.wait()
        summary = json.loads(next(Path(folder).glob("*/*/*/summary.json")).read_text())
    print(row(f"{minute:.1f}", looks[0], looks[-1]))
    share = (last["env_steps"] - first["env_steps"]) / summary["env_steps"]
    calls = calls_of(summary["messages"]) * share
    print(f"\n{calls:,.0f} calls in {minute:.1f} minutes, {calls / minute / 60:,.0f} a second\n")
    half, part = looks[len(looks) // 2], 1 - len(looks) // 2 / (len(looks) - 1)
    print("| process | MB when replay was full | MB now | growth | second half: per hour | per two million calls |")
    print("| --- |" + " --- |" * 5)
    for name, begun in looks[0].items():
        now, late = looks[-1].get(name, 0.0), looks[-1].get(name, 0.0) / half.get(name, begun) - 1
        sizes, shares = (
            f"{begun:.1f} | {now:.1f}",
            f"{late / part * 60 / minute:.1%} | {late / part * MANY / calls:.1%}",
        )
        print(f"| {name} | {sizes} | {now / begun - 1:.1%} | {shares} |")


def is_full(lines: list[Line]) -> bool:
    """Return whether the table is full."""
    return len(lines) > 1 and lines[-1]["replay/size"] == lines[-2]["replay/size"] > 0


def megabytes(pid: int) -> dict[str, float]:
    """Return resident memory by role, or by name for Ray's own processes."""
    run, sizes = psutil.Process(pid), Counter[str]()
    usage = Usage(run)
    for process in (run, *run.children(recursive=True)):
        try:
            role = usage.role(process)
            name = Path(process.cmdline()[0]).name.removeprefix("ray::") if role == "ray" else role
            sizes[name] += process.memory_info().rss
        except (psutil.Error, IndexError):  # it ended while we were looking
            continue
    return {name: size / 2**20 for name, size in sorted(sizes.items())}


def row(title: str, names: Mapping[str, float], sizes: Mapping[str, float]) -> str:
    return f"| {title} | " + " | ".join(f"{sizes.get(name, 0.0):.1f}" for name in names) + " |"


def calls_of(messages: Mapping[str, int]) -> int:
    """Return the number of calls of the orchestrator."""
    return sum(messages[route] for route in "2345") + 2 * messages["6"]


if __name__ == "__main__":
    main()

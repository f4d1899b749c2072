"""A sweep with parallel jobs, against the same jobs one after the other, with its processes and memory.

    python scripts/bench/sweep.py [--jobs 8] [--sides sweep alone one] [--set KEY=VALUE ...]

`sweep` is `drl-train -m seed=0,1,...`, `one` is the same with sweep.jobs=1, and `alone` is one drl-train per seed,
one after the other. Processes and memory (a shared page counts once) are maxima, sampled every second. If more
processors were busy than the side used, other programs ran, and the seconds are not reliable.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

JOB = ("env=Pendulum-v1", "algo=sac", "mode=single", "console=quiet")
LOOK_S = 1.0


class Seen:
    """Peak number, peak bytes and total processor seconds of this process's children."""

    def __init__(self) -> None:
        self.processes, self.bytes = 0, 0
        self._used: dict[tuple[int, float], float] = {}

    def look(self) -> None:
        sizes = []
        for process in psutil.Process().children(recursive=True):
            try:
                sizes.append(process.memory_full_info().pss)
                used = process.cpu_times()
                self._used[process.pid, process.create_time()] = used.user + used.system
            except psutil.Error:  # it ended while we were looking
                continue
        self.processes, self.bytes = max(self.processes, len(sizes)), max(self.bytes, sum(sizes))

    @property
    def cpu_s(self) -> float:
        return sum(self._used.values())


def commands(side: str, jobs: int, settings: list[str]) -> list[list[str]]:
    """Return the commands of a side, to run one after the other."""
    if side == "alone":
        return [[*JOB, *settings, f"seed={seed}"] for seed in range(jobs)]
    one = ["sweep.jobs=1"] if side == "one" else []
    return [["-m", *JOB, *settings, *one, f"seed={','.join(map(str, range(jobs)))}"]]


def run(side: str, args: argparse.Namespace) -> float:
    """Run a side, print a row of the table and return the seconds."""
    seen, started, before = Seen(), time.perf_counter(), psutil.cpu_times()
    with tempfile.TemporaryDirectory() as folder:
        for overrides in commands(side, args.jobs, args.set):
            output = Path(folder) / "output"
            command = [sys.executable, "-m", "drl_cli.cli.train", *overrides, f"output_dir={folder}"]
            with output.open("w") as file:
                process = subprocess.Popen(command, stdout=file, stderr=file)
            while process.poll() is None:
                seen.look()
                try:
                    process.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
            if process.returncode:
                raise SystemExit(f"exit code {process.returncode} of {' '.join(command)}\n{output.read_text()}")
        seconds, after = time.perf_counter() - started, psutil.cpu_times()
        done = len(list(Path(folder).glob("*/*/*/summary.json")))
    assert done == args.jobs, f"{done} runs"
    busy = sum(getattr(after, name) - getattr(before, name) for name in ("user", "system", "nice"))
    rates = f"{seen.cpu_s / seconds:.2f} of {busy / seconds:.2f}"
    print(f"| {side} | {seconds:.1f} | {rates} | {seen.processes} | {seen.bytes / 2**20:,.0f} |", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--sides", nargs="+", choices=("sweep", "alone", "one"), default=["sweep", "alone", "one"])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="config of all jobs")
    args = parser.parse_args()
    print("| side | seconds | processors: of all that were busy | processes | MB |\n| --- |" + " --- |" * 4)
    seconds = {side: run(side, args) for side in args.sides}
    for side, taken in seconds.items():
        if side != "sweep" and "sweep" in seconds:
            print(f"sweep / {side}: {seconds['sweep'] / taken:.2f}")


if __name__ == "__main__":
    main()

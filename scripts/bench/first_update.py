"""Seconds from the command to the end of the first train call, for several values of `trainer.compile` in turn.

    python scripts/bench/first_update.py [--rounds 3] [--set mode=async ...]

Each run is a new process, which ends after its first train call. "cold" has an empty cache of compiled code, and "warm"
has the user's cache. The CPU seconds are those of all processes of the run, which other programs disturb less.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from statistics import median

RUNS = {
    "false": ("false", False),
    "auto, cold": ("auto", True),
    "auto, warm": ("auto", False),
    "true, cold": ("true", True),
    "true, warm": ("true", False),
}
"""Value of `trainer.compile`, and whether the cache is empty."""


def child(words: list[str]) -> None:
    """Run drl-train; after the first update, print the time and the CPU seconds of all processes, and stop."""
    import psutil

    from drl_cli.cli.train import main as train
    from drl_cli.runtime.orchestrator.progress import Progress

    plain = Progress.trained

    def trained(self, report, *args):
        plain(self, report, *args)
        if report.num_updates:
            Progress.trained = plain
            me = psutil.Process()
            times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
            cpu = sum(x.user + x.system + x.children_user + x.children_system for x in times)
            print(f"FIRST {time.time()} {cpu}", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

    Progress.trained = trained
    sys.argv = ["drl-train", *words]
    train()


def measure(choice: str, is_cold: bool, words: list[str]) -> tuple[float, float]:
    """Return the seconds until the first update, and the CPU seconds of all processes of the run until then."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **({"TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"} if is_cold else {})}
        own = [f"trainer.compile={choice}", f"output_dir={folder}/outputs"]
        command = [sys.executable, __file__, "--child", *words, *own]
        started = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("FIRST ")]
    if not lines:
        raise SystemExit(f"no update: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    _, moment, cpu = lines[0]
    return float(moment) - started, float(cpu)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=[*RUNS], help="all")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="config of the runs")
    args = parser.parse_args()
    words = ["env=LunarLanderContinuous", "algo=sac", "mode=async", "total_env_steps=30000", *args.set]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in args.runs}
    for _ in range(args.rounds):
        for name in args.runs:
            found[name].append(measure(*RUNS[name], words))
    print("| trainer.compile | seconds (min - max) | CPU seconds (min - max) |\n|---|---|---|")
    for name, values in found.items():
        cells = [f"{median(x):.1f} ({min(x):.1f} - {max(x):.1f})" for x in zip(*values, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

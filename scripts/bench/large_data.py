"""Updates per second from a dataset that is larger than the memory limit, beside one that fits.

    python scripts/bench/large_data.py [--limit-mb 600] [--times 4] [--seconds 20] [--rounds 3] [--cold] [--set K=V]

Both runs have the same limit (`ulimit -d`) and the same table, of an eighth of the limit. The small dataset fills the
table. The large one has `--times` times the size of the limit, and is read again and again. Observations and actions
have the sizes of Ant-v5 (105 and 8). The runs alternate. A run is measured from its first report of an update on, by
wall time and by processor time, because other programs change the former. The files are in the page cache if the
machine has memory for them. With `--cold`, they are dropped from it four times a second, so that every step comes from
the disk, as on a machine whose memory is as large as the limit.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import psutil
from numpy.lib import format as npy
from runs import spread

OBS, ACTION, PART, LENGTH = 105, 8, 10_000, 1000
SETTINGS = (
    "mode=offline", "env=none", "algo=td3", "network.hidden=[256,256]", "trainer.batch_size=256", "trainer.threads=1",
    "total_updates=1_000_000_000", "checkpoint.period=1_000_000_000", "checkpoint.replay=off",
    "logger.tensorboard=false", "logger.report_s=0.5", "debug.in_process=true",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-mb", type=int, default=600)
    parser.add_argument("--times", type=float, default=4.0, help="size of the large dataset, in limits")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="read from the disk, not from the page cache")
    parser.add_argument("--set", nargs="*", default=[], help="more for drl-train")
    args = parser.parse_args()
    row = 4 * (2 * OBS + ACTION + 3)
    large, small = (int(size * args.limit_mb * 2**20 / row) // PART * PART for size in (args.times, 0.125))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "large.npz", large)
        write(Path(folder) / "small.npz", small)
        found: dict[str, list[tuple[float, float]]] = {"small": [], "large": []}
        for _ in range(args.rounds):
            for name, rates in found.items():
                file = Path(folder) / f"{name}.npz"
                rates.append(measure(file, [*SETTINGS, f"replay.capacity={small}", *args.set], args))
    print(f"| dataset | steps | MB | updates per second | per processor second |\n| --- |{' --- |' * 4}")
    for name, steps in (("small", small), ("large", large)):
        wall, cpu = zip(*found[name], strict=True)
        print(f"| {name} | {steps:,} | {steps * row / 2**20:,.0f} | {spread(wall)} | {spread(cpu)} |")
    shares = [[a / b for a, b in zip(*pair, strict=True)] for pair in zip(found["large"], found["small"], strict=True)]
    wall, cpu = zip(*shares, strict=True)
    print(f"| large / small | | | {spread(wall, '.2f')} | {spread(cpu, '.2f')} |")


def write(path: Path, steps: int) -> None:
    """Write a dataset of random numbers with episodes of LENGTH steps, without holding it in memory."""
    shapes = {"observations": (OBS,), "next_observations": (OBS,), "actions": (ACTION,), "rewards": ()}
    shapes |= {"terminations": (), "truncations": ()}
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for name, shape in shapes.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (steps, *shape)})
                part = rng.uniform(-1, 1, (PART, *shape)).astype(np.float32)
                if name in ("terminations", "truncations"):
                    part[:] = 0
                    part[LENGTH - 1 :: LENGTH] = name == "truncations"
                for _ in range(steps // PART):
                    file.write(part.tobytes())
    os.sync()  # only what is on the disk can be dropped from the page cache


def measure(data: Path, words: list[str], args: argparse.Namespace) -> tuple[float, float]:
    """Return updates per second and per processor second of a run with the limit."""
    folder = Path(tempfile.mkdtemp())
    run = [sys.executable, "-m", "drl_cli.cli.train", f"data={data}", *words, f"output_dir={folder}"]
    with (folder / "output").open("w") as file:
        command = ["bash", "-c", f'ulimit -d {args.limit_mb << 10}; exec "$@"', "-", *run]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    looks: list[tuple[float, float, float]] = []
    try:
        while not looks or looks[-1][1] - looks[0][1] < args.seconds:
            if process.poll() is not None:
                raise SystemExit((folder / "output").read_text())
            time.sleep(0.25)
            if args.cold:
                with data.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if now := updates(folder):
                used = psutil.Process(process.pid).cpu_times()
                looks.append((*now, used.user + used.system))
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)
    made, wall, cpu = (last - first for first, last in zip(looks[0], looks[-1], strict=True))
    return made / wall, made / cpu


def updates(folder: Path) -> tuple[float, float] | None:
    """Return the updates and the wall time of the last report, or None before the first update."""
    found = list(folder.glob("*/*/*/metrics.jsonl"))
    lines = [json.loads(line) for line in found[0].read_text().splitlines(True) if line.endswith("\n")] if found else []
    lines = [line for line in lines if line.get("perf/opt_steps") and "perf/wall_s" in line]
    return (lines[-1]["perf/opt_steps"], lines[-1]["perf/wall_s"]) if lines else None


if __name__ == "__main__":
    main()

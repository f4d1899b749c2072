"""Where the processor time of a run in mode=async goes: microseconds per environment step, by role and kind of thread.

    python scripts/bench/threads.py [--py-spy PY_SPY] [--seconds 15] [--checkout CHECKOUT] KEY=VALUE ...

The numbers come from Linux (/proc). In every process, "python" is the main thread of Python, and "ray" are Ray's own
threads, which send and receive calls. With `--py-spy` (pip install py-spy), the main threads of all roles are sampled,
and the busiest functions of drl-cli and of Ray's Python code are printed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from runs import QUIET, nap, reports

from drl_cli.runtime.place.usage import Usage, kind_of

TICK = os.sysconf("SC_CLK_TCK")
OWN = re.compile(r"(\w+) \((?:.*/)?(drl_cli|ray)/(.*?)(?::\d+)?\)")


def cpu(pid: int) -> dict[str, float]:
    """Return the processor seconds of a process by kind of thread."""
    seconds: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        kind = "python" if int(task.name) == pid or "python" in (task / "comm").read_text() else "ray"
        seconds[kind] += (int(fields[11]) + int(fields[12])) / TICK
    return dict(seconds)


def roles(main: psutil.Process) -> dict[int, str]:
    usage = Usage(main)
    return {process.pid: usage.role(process) for process in (main, *main.children(recursive=True))}


def busiest(raw: Path, num: int) -> list[str]:
    """Return the busiest functions of drl-cli and Ray's Python code in the main thread, with their share of samples."""
    samples: Counter[str] = Counter()
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        if not stack.startswith("<module>"):  # not the main thread
            continue
        own = OWN.findall(stack)
        samples[f"{own[-1][1]}/{own[-1][2]} {own[-1][0]}" if own else stack.split(";")[-1]] += int(count)
    return [f"{count / samples.total():5.1%} {name}" for name, count in samples.most_common(num)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--warm", type=float, default=8.0)
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--py-spy", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        python = sys.executable if args.checkout is None else args.checkout / ".venv/bin/python"
        command = [python, "-m", "drl_cli.cli.train", *QUIET, *args.overrides, f"output_dir={folder}"]
        with output.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=args.checkout)
        try:
            while not (lines := reports(folder)) or lines[-1]["perf/wall_s"] - lines[0]["perf/wall_s"] < args.warm:
                nap(process, output)
            names = roles(psutil.Process(process.pid))
            before, first = {pid: cpu(pid) for pid in names}, lines[-1]
            while (last := reports(folder)[-1])["perf/wall_s"] - first["perf/wall_s"] < args.seconds:
                nap(process, output)
            after = {pid: cpu(pid) for pid in names}
            spied = spy(args.py_spy, names, Path(folder)) if args.py_spy else {}
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    steps, wall = last["env_steps"] - first["env_steps"], last["perf/wall_s"] - first["perf/wall_s"]
    table: dict[str, Counter[str]] = {}
    for pid, name in names.items():
        used = {kind: seconds - before[pid].get(kind, 0.0) for kind, seconds in after[pid].items()}
        table.setdefault(kind_of(name), Counter()).update(used)
    waits = {who: (last[f"perf/{who}_wait_s"] - first[f"perf/{who}_wait_s"]) / wall for who in ("worker", "trainer")}
    print(f"{steps / wall:,.0f} env steps/s; seconds of waiting per second: {json.dumps(waits)}")
    print("| role | us/step | python | ray |\n| --- | --- | --- | --- |")
    for role, kinds in sorted(table.items(), key=lambda item: -item[1].total()):
        cells = [1e6 * value / steps for value in (kinds.total(), kinds["python"], kinds["ray"])]
        print(f"| {role} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    print(f"| all | {1e6 * sum(kinds.total() for kinds in table.values()) / steps:.2f} | | |")
    for name, top in spied.items():
        print(f"\n{name}\n" + "\n".join(top))


def spy(py_spy: Path, names: dict[int, str], folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pid, name in names.items():
        if name not in ("ray", "manage", "parameter server"):
            raw = folder / f"{pid}.raw"
            command = [py_spy, "record", "-d", "6", "-r", "100", "-f", "raw", "-o", raw, "-p", str(pid)]
            subprocess.run(command, capture_output=True, check=True)
            found[name] = busiest(raw, 14)
            time.sleep(0.1)
    return found


if __name__ == "__main__":
    main()

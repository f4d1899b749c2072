"""Compare several implementations of one task in alternating rounds on the same cores.

Each implementation (a `side`) is a child process with its own Python. The benchmark script starts itself again for
every side; the child builds its task and calls `serve`. All sides are ready before the first round. A side that waits
uses no core.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

Figures = dict[str, float]  # what one round measured, by name; more is better


def serve(play: Callable[[], Figures]) -> None:
    """Measure one round whenever the parent asks for it. The output of libraries goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    while True:
        print("ready", file=replies, flush=True)
        if not sys.stdin.readline():
            return
        print(json.dumps(play()), file=replies, flush=True)


class Side:
    """A child process that plays rounds. An early end raises RuntimeError with the command."""

    def __init__(self, command: Sequence[str | Path], cpus: set[int], env: Mapping[str, str]) -> None:
        self.command = [str(part) for part in command]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | env,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        self._read()

    def play(self) -> Figures:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        figures: Figures = json.loads(self._read())
        self._read()
        return figures

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> str:
        if line := self.process.stdout.readline():
            return line
        raise RuntimeError(f"exit code {self.process.wait()} of {' '.join(self.command)}")


def alternate(
    commands: Mapping[str, Sequence[str | Path]], rounds: int, threads: int = 1, warm_up: int = 1
) -> dict[str, list[Figures]]:
    """Return the figures of every round by side. Each side runs with `threads` threads on the last `threads` cores.

    The order of the sides is reversed after each round.
    """
    cpus = set(sorted(os.sched_getaffinity(0))[-threads:])
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = dict.fromkeys(names, str(threads))
    sides: dict[str, Side] = {}
    try:
        for name, command in commands.items():
            sides[name] = Side(command, cpus, env)
        results: dict[str, list[Figures]] = {name: [] for name in sides}
        for i in range(-warm_up, rounds):
            for name in sorted(sides, key=list(sides).index, reverse=i % 2 == 1):
                figures = sides[name].play()
                if i >= 0:
                    results[name].append(figures)
    finally:
        for side in sides.values():
            side.close()
    return results


def table(results: Mapping[str, Sequence[Figures]], ours: str = "ours") -> str:
    """Return a markdown table: median and range of each figure, and the median of ours / theirs over the rounds.

    The last column is a 95% confidence interval of the median ratio (from six rounds on).
    """
    head = ("figure", "side", "median", "min - max", "ours / theirs (min - max)", "95% of the median ratio")
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for figure in results[ours][0]:
        for side, rounds in results.items():
            values = [one[figure] for one in rounds if figure in one]
            if not values:
                continue
            ratios = [own[figure] / one[figure] for own, one in zip(results[ours], rounds, strict=True)]
            low, high = median_interval(ratios)
            last = f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f}) | {low:.3f} - {high:.3f}"
            last = " | " if side == ours else last
            spread = f"{_short(min(values))} - {_short(max(values))}"
            lines.append(f"| {figure} | {side} | {_short(median(values))} | {spread} | {last} |")
    return "\n".join(lines)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the confidence interval of at least 95% for the median: two values, equally far from both ends.

    The number of values below the true median is binomial. With fewer than six values, return their range.
    """
    ordered, left_out, outside = sorted(values), 0, 0.0
    while (outside := outside + 2 * math.comb(len(ordered), left_out) / 2 ** len(ordered)) <= 0.05:
        left_out += 1
    end = max(0, left_out - 1)
    return ordered[end], ordered[-1 - end]


def peer_python(venv: Path) -> Path:
    """Return the Python of the peers' virtual environment. Raise SystemExit with instructions if it is missing."""
    python = venv / "bin" / "python"
    if not python.exists():
        raise SystemExit(
            f"no {python}: python3 -m venv {venv} && {python} -m pip install -r scripts/bench/requirements.txt"
        )
    return python


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

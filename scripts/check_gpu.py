"""Train, resume, export and measure on a GPU. Print one table, and write the table as json.

    scripts/check gpu [--minutes 9] [--only sac] [--json outputs/gpu.json]
    scripts/check gpu --device cpu    # try this check itself, with small sizes and without a GPU

The cases are SAC, DQN and PPO with vector observations, and DQN with stacks of images. The rows of a case:

- `train on cpu`, `resume 1`, `resume 2`, `export`: one run of drl-train that moves to the GPU and back.
- `async` (SAC only): a run with bfloat16, compiled, and with the trainer in a process of its own.
- `float32` and `bf16`: the speed of updates, `eager` (plain Python), `compiled` (trainer.compile=true) and with
  `graphs` (compiled, with the environment variable TORCHINDUCTOR_CUDAGRAPHS=1).

Every row is a process. An error, too little memory or the time limit ends only this row, and the table has the reason.
Rows for which no time is left are not run. The columns are the seconds of the row; updates per second, with the
sampling of batches; the ratio to the eager row; the largest memory that torch reserved; seconds of the first train
call, in which torch compiles; and per update the launches of kernels and of CUDA graphs, and how often Python waits for
the GPU (on a CPU: how often Python reads a number). A `graphs` row fails if no CUDA graph was launched.

Exit status: 0 if every row is ok, 1 if a row failed or was not run, 3 without a GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

LIMIT_S = 120.0  # of one row
MISSING = 3  # exit status without a GPU, as in drl-train
REPLAY = ("replay.capacity=4096", "orchestrator.min_inserts=256")
CASES = {  # a case of scripts/bench/updates.py, and the words that select the run of drl-train
    "sac": ("sac", ("env=LunarLanderContinuous", "algo=sac", *REPLAY)),
    "dqn": ("dqn", ("env=LunarLander", "algo=dqn", *REPLAY)),
    "ppo": ("ppo", ("env=LunarLander", "algo=ppo", "trainer.batch_size=512")),
    "image": ("dqn", ("env=Breakout", "algo=dqn", *REPLAY, "trainer.batch_size=32", "worker.block_rows=64")),
}
STEPS = 1024  # of a run, before each change of its device
RUN = ("tuned=none", "worker.num=1", "checkpoint.period=512", "console=plain")
RUN += ("manage.eval_period=1024", "manage.eval_episodes=2", "manage.max_episode_steps=200")
SMALL = ("network.hidden=[16]", "trainer.batch_size=16")
HOW = {"eager": "false", "compiled": "true", "graphs": "true"}  # trainer.compile
COLUMNS = ("seconds", "updates/s", "of eager", "MB", "first s", "kernels", "graphs", "waits")


@dataclass(frozen=True)
class Row:
    """A line of the table. The process prints figures as lines of json; `check` returns what is wrong with them."""

    name: str
    command: Sequence[str | Path]
    needs: str = ""  # the row that has to be ok before
    env: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], str] = lambda figures: ""


@dataclass(frozen=True)
class Result:
    """What became of a row: `ok`, `failed` or `not run`."""

    name: str
    result: str
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


def run_rows(case: str, device: str, folder: Path) -> list[Row]:
    """Return the rows of one run that changes its device, and for SAC also of a run in async."""
    programs, words = Path(sys.executable).parent, [*CASES[case][1], *RUN, *small(case, device)]

    def train(name: str, device: str, steps: int, needs: str, where: Path, *words: str) -> Row:
        command = [programs / "drl-train", *words, f"device={device}", f"total_env_steps={steps}"]
        is_on = lambda figures: trained_on(where, device)  # noqa: E731
        return Row(f"{case}: {name}", [*command, f"output_dir={where}"], needs, check=is_on)

    own, other = folder / case, folder / "async"
    first = train("train on cpu", "cpu", STEPS, "", own, *words, "mode=single")
    there = train(f"resume 1, on {device}", device, 2 * STEPS, first.name, own, "resume=latest")
    back = train("resume 2, on cpu", "cpu", 3 * STEPS, there.name, own, "resume=latest")
    export = [programs / "drl-export", "run=latest", "episodes=2", f"output_dir={own}"]
    rows = [first, there, back, Row(f"{case}: export", export, back.name)]
    if case == "sac":
        extra = ("mode=async", "precision=bf16", "trainer.compile=true")
        rows.append(train(f"async, on {device}", device, STEPS, "", other, *words, *extra))
    return rows


def speed_rows(cases: Sequence[str], device: str) -> list[Row]:
    """Return the rows that measure updates. The rows that may be left out for lack of time are the last ones."""
    command = [sys.executable, Path(__file__), "--device", device, "--measure"]
    rows = [
        Row(f"{case}: {precision} {how}", [*command, case, precision, how])
        for how in HOW
        for precision in ("float32", "bf16")
        for case in cases
    ]
    env, check = {"TORCHINDUCTOR_CUDAGRAPHS": "1"}, has_graphs if device != "cpu" else Row.check
    return [replace(row, env=env, check=check) if row.name.endswith("graphs") else row for row in rows]


def small(case: str, device: str) -> list[str]:
    """Return the words that make a case small, if the device stands in for a GPU."""
    return [*SMALL, *(["algo.minibatch_size=16"] if case == "ppo" else [])] if device == "cpu" else []


def trained_on(folder: Path, device: str) -> str:
    """Return what is wrong with the device of the only run in `folder`, or ''."""
    (facts,) = folder.glob("*/*/*/run.json")
    used = json.loads(facts.read_text())["trainer"]["device"]
    return "" if used.partition(":")[0] == device.partition(":")[0] else f"trained on {used}, not on {device}"


def has_graphs(figures: Mapping[str, Any]) -> str:
    return "" if figures.get("graphs") else "no CUDA graph was launched"


def run(row: Row, deadline: float) -> Result:
    """Run one row in a process group, and end what is left of the group."""
    started = time.monotonic()
    if (limit := min(LIMIT_S, deadline - started)) <= 0:
        return Result(row.name, "not run", "no time was left")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        words, env = [str(word) for word in row.command], os.environ | row.env
        process = subprocess.Popen(words, stdout=out, stderr=err, env=env, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
        lines, problems = (read(file) for file in (out, err))
    figures: dict[str, Any] = {"seconds": time.monotonic() - started}
    for line in lines:
        if line.startswith("{"):
            figures |= json.loads(line)
    if code is None:
        reason = f"ended after {limit:.0f} s" + ("" if limit == LIMIT_S else ", because no time was left")
    elif code:
        reason = ": ".join([f"exit status {code}", *(problems or lines)[-1:]])
    else:
        reason = problem(row, figures)
    return Result(row.name, "failed" if reason else "ok", reason, figures)


def end_group(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # as usual: nothing is left
        return
    process.wait()


def read(file: Any) -> list[str]:  # Any: a file of text
    file.seek(0)
    return [line.strip() for line in file if line.strip()]


def problem(row: Row, figures: Mapping[str, Any]) -> str:
    try:
        return row.check(figures)
    except (OSError, ValueError, LookupError) as error:
        return f"{type(error).__name__}: {error}"


def run_in_order(rows: Iterable[Row], deadline: float) -> list[Result]:
    """Run rows one after the other, and show each result. Do not run a row that needs a row that is not ok."""
    results: dict[str, Result] = {}
    for row in rows:
        is_ready = not row.needs or results[row.needs].result == "ok"
        one = run(row, deadline) if is_ready else Result(row.name, "not run", f"needs '{row.needs}'")
        results[row.name] = one
        print(f"{one.name}: {one.result} {one.reason}".rstrip(), file=sys.stderr, flush=True)
    return [*results.values()]


def with_ratios(results: Sequence[Result]) -> list[Result]:
    """Add the column `of eager`."""
    rates = {one.name: one.figures["updates/s"] for one in results if "updates/s" in one.figures}

    def ratio(name: str) -> dict[str, float]:
        eager = rates.get(f"{name.rpartition(' ')[0]} eager")
        return {"of eager": rates[name] / eager} if eager and name in rates else {}

    return [replace(one, figures={**one.figures, **ratio(one.name)}) for one in results]


def table(results: Sequence[Result]) -> str:
    lines = [f"| row | result | {' | '.join(COLUMNS)} | reason |", "|" + " --- |" * (len(COLUMNS) + 3)]
    for one in results:
        values = [f"{one.figures[name]:.4g}" if name in one.figures else "" for name in COLUMNS]
        lines.append(f"| {' | '.join([one.name, one.result, *values, one.reason[:200].replace('|', '/')])} |")
    return "\n".join(lines)


def measure(case: str, precision: str, how: str, device: str, seconds: float = 3.0) -> None:
    """Print the figures of one trainer, each as soon as it is known."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent / "bench"))
    from updates import CASES as SIZES
    from updates import ours, timed

    size, words = CASES[case]
    words = words if case == "image" else ("replay.capacity=20_000",)
    words += (f"device={device}", f"precision={precision}", f"trainer.compile={HOW[how]}", *small(case, device))
    train = ours(SIZES[size], 1, [word for word in words if not word.startswith("algo=")])
    started = time.perf_counter()
    train()
    print(json.dumps({"first s": time.perf_counter() - started}), flush=True)
    train()
    print(json.dumps({"updates/s": timed(train, seconds)()["updates/s"], "MB": peak_mb(device)}), flush=True)
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU] if device == "cpu" else [kinds.CPU, kinds.CUDA]) as profile:
        updates = train()
    print(json.dumps(per_update(Counter(event.name for event in profile.events()), updates)), flush=True)


def per_update(counts: Mapping[str, int], updates: int) -> dict[str, float]:
    """Return launches and waits per update, from the number of the profiler's events by name."""
    names = {
        "kernels": ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
        "graphs": ("cudaGraphLaunch",),
        "waits": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
    }
    if not any(name.startswith("cu") for name in counts):
        names["waits"] = ("aten::_local_scalar_dense",)
    return {kind: sum(counts.get(name, 0) for name in own) / updates for kind, own in names.items()}


def peak_mb(device: str) -> float:
    """Return the largest memory that torch reserved on the GPU, or that the process had on a CPU."""
    if device == "cpu":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    import torch

    return torch.cuda.max_memory_reserved(device) / 2**20


def device_name(device: str) -> str | None:
    """Return the name of a device, or None if there is no such device here, or none that torch can use."""
    from drl_cli.utils.gpu import gpus

    if device == "cpu":
        return "the CPU in place of a GPU, with small sizes: no figure is a measurement"
    found = [*gpus()][int(device.partition(":")[2] or 0) :]
    return found[0].name if found and not found[0].problem else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the check itself")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole check")
    parser.add_argument("--only", choices=CASES, action="append", help="several may be given; all")
    parser.add_argument("--json", type=Path, default=Path("outputs/gpu.json"))
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.measure:
        measure(*args.measure, args.device)
        return 0
    started, name, cases = time.monotonic(), device_name(args.device), args.only or [*CASES]
    if name is None:
        print(f"scripts/check gpu: torch finds no device {args.device} here, so nothing was run", file=sys.stderr)
        return MISSING
    deadline, together = started + 60 * args.minutes, max(1, (os.cpu_count() or 1) // 4)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(together) as pool:
        runs = [run_rows(case, args.device, Path(folder)) for case in cases]
        results = [one for done in pool.map(lambda rows: run_in_order(rows, deadline), runs) for one in done]
    results = with_ratios([*results, *run_in_order(speed_rows(cases, args.device), deadline)])
    print(f"\n{name}\n\n{table(results)}")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    facts = {"device": name, "commit": commit, "minutes": (time.monotonic() - started) / 60}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({**facts, "rows": [asdict(one) for one in results]}, indent=1) + "\n")
    return int(any(one.result != "ok" for one in results))


if __name__ == "__main__":
    sys.exit(main())

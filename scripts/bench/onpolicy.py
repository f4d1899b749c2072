"""Environment steps/s of on-policy training in mode=async (APPO) beside other libraries, with equal sizes and cores.

    python scripts/bench/onpolicy.py --sf SF_VENV --sb3 PEERS_VENV --rllib PEERS_VENV
        [--tasks CartPole LunarLander Breakout Sleeper] [--rounds 3] [--seconds 20] [--set KEY=VALUE ...]

All programs run one after the other in each round: 2 workers (16 for Sleeper, which sleeps 1 ms in each step) with 16
environments each, rollouts of 32 steps, batches of 1,024 transitions, 4 epochs, and two hidden layers of 64.
onpolicy_peers.py says what each library does. `--before CHECKOUT` also measures another commit of drl-cli.
"us/step" is processor microseconds of all processes per environment step; other programs disturb this number less.

Sample Factory needs its own virtual environment:

    python3 -m venv SF_VENV
    SF_VENV/bin/pip install torch==2.13.0  # first, because Sample Factory takes any version
    SF_VENV/bin/pip install sample-factory==2.1.1 gymnasium==0.29.1 numpy==1.26.4 box2d pygame psutil minatar
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from runs import QUIET, Line, watch

Figures = dict[str, float]
PEERS = {"sf": "Sample Factory, APPO", "sb3": "stable-baselines3, PPO", "rllib": "RLlib, APPO"}
OURS = {
    "CartPole": ("env=CartPole-v1",),
    "LunarLander": ("env=LunarLander",),
    "Breakout": ("env=MinAtar-Breakout", "network=mlp"),
    # 16 rollouts are 8 batches: with a lower bound on the age, workers wait. Sample Factory's bound is 1,000 versions.
    "Sleeper": ("env=drl_cli.envs.probes:Sleeper-v0", "worker.num=16"),
}
SIZES = (
    "algo=appo", "mode=async", "tuned=none", "worker.num=2", "worker.envs=16", "worker.unroll=32",
    "trainer.batch_size=1024", "algo.minibatch_size=1024", "algo.epochs=4", "network.hidden=[64,64]",
)  # fmt: skip


def ours(task: str, args: argparse.Namespace, checkout: Path | None = None) -> Figures:
    """Measure a run of drl-cli. Each role's processor seconds per second are in the figures, too."""

    def is_warm(lines: list[Line]) -> bool:
        return bool(lines) and lines[-1]["perf/wall_s"] - lines[0]["perf/wall_s"] >= args.warm

    values = [*SIZES, *OURS[task], *QUIET, *args.set]
    seen = watch(values, args.seconds, is_warm, checkout)
    rate, cpu = seen["rates"]["env steps"], seen["cpu"]
    groups: Figures = {}
    for role, used in cpu.items():
        groups[role.split()[0]] = groups.get(role.split()[0], 0.0) + used
    return {"env steps/s": rate, "us/step": 1e6 * sum(cpu.values()) / rate} | {
        f"cpu {role}": used for role, used in groups.items()
    }


def theirs(peer: str, venv: Path, task: str, args: argparse.Namespace) -> Figures:
    script = Path(__file__).with_name("onpolicy_peers.py")
    command = [venv / "bin" / "python", script, peer, task, f"--seconds={args.seconds}", f"--warm={args.warm}"]
    command += ["--workers=16"] if task == "Sleeper" else []
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "RAY_worker_niceness": "0"}  # as drl-cli
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=args.timeout)
    if ended.returncode:
        raise SystemExit(ended.stderr[-5000:])
    figures: Figures = json.loads(ended.stdout.splitlines()[-1])
    return figures


def row(task: str, side: str, rounds: Sequence[Figures], own: Sequence[Figures]) -> str:
    rates, used = [one["env steps/s"] for one in rounds], [one["us/step"] for one in rounds]
    ratios = [mine["env steps/s"] / one["env steps/s"] for mine, one in zip(own, rounds, strict=False)]
    spread = f"{median(rates):,.0f} | {min(rates):,.0f} - {max(rates):,.0f} | {median(used):.1f}"
    ratio = "" if rounds is own else f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
    return f"| {task} | {side} | {spread} | {ratio} |"


def roles(rounds: Sequence[Figures]) -> str:
    """Return the processors that each role of drl-cli keeps busy, and its microseconds per environment step."""
    parts = []
    for name in [name for name in rounds[0] if name.startswith("cpu ")]:
        busy = median(one.get(name, 0.0) for one in rounds)
        step = median(1e6 * one.get(name, 0.0) / one["env steps/s"] for one in rounds)
        parts.append(f"{name[4:]} {busy:.2f} ({step:.1f} us/step)")
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, metavar="VENV")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--tasks", nargs="*", default=list(OURS), choices=OURS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured of each run")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before the measurement")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a run of another library")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="config of drl-cli")
    args = parser.parse_args()
    venvs = {peer: getattr(args, peer) for peer in PEERS if getattr(args, peer) is not None}
    print("| task | program | env steps/s | min - max | us/step | ours / theirs (min - max) |\n|" + " --- |" * 6)
    for task in args.tasks:
        results: dict[str, list[Figures]] = {}
        for _ in range(args.rounds):
            results.setdefault("drl-cli, APPO", []).append(ours(task, args))
            if args.before is not None:
                results.setdefault("drl-cli before", []).append(ours(task, args, args.before))
            for peer, venv in venvs.items():
                results.setdefault(PEERS[peer], []).append(theirs(peer, venv, task, args))
            newest = {side: round(rounds[-1]["env steps/s"]) for side, rounds in results.items()}
            print(task, newest, file=sys.stderr, flush=True)
        own = results["drl-cli, APPO"]
        for side, rounds in results.items():
            print(row(task, side, rounds, own), flush=True)
        for side, rounds in results.items():
            if side.startswith("drl-cli"):
                print(f"{task}, {side}, processors: {roles(rounds)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

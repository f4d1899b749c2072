"""Frames and updates per second of training on MinAtar: async and single, against stable-baselines3's DQN.

    python scripts/bench/pixels.py --peers PEERS_VENV [--env MinAtar-Breakout] [--rounds 3] [--seconds 40]

All sides have the settings of the tuned set of DQN with the same replay ratio, and use the whole machine one
after the other; stable-baselines3 runs with one thread and with two. Evaluations, checkpoints and the frames before
the first update are excluded. The worker and the trainer of async are also measured alone: the slower one is the
bound of async. The frames of the trainer follow from its updates and the tuned replay ratio.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from alternate import peer_python
from end_to_end import ALONE
from runs import QUIET, Line, spread, watch

PEER = Path(__file__).with_name("sb3.py")
WARM = 500  # updates before
DQN = ("algo=dqn", "algo.loss=huber")  # theirs has no other loss


def ours(env: str, seconds: float, *overrides: str, warm: str = "perf/opt_steps") -> dict[str, float]:
    def is_warm(lines: list[Line]) -> bool:
        return bool(lines) and lines[-1][warm] >= WARM

    return watch([f"env={env}", *DQN, *QUIET, *overrides], seconds, is_warm)["rates"]


def tuned(env: str) -> dict[str, Any]:  # Any: values of the config
    from drl_cli.settings.build import to_yaml_keys
    from drl_cli.settings.compose import compose

    return to_yaml_keys(compose([f"env={env}", *DQN, "mode=single"]))


def trainer_alone(env: str, seconds: float) -> dict[str, float]:
    updates = ours(env, seconds, "mode=async", *ALONE["trainer"])["updates"]
    return {"env steps": updates / tuned(env)["orchestrator"]["sample_insert_ratio"], "updates": updates}


def sb3(env: str, seconds: float, threads: int, python: str) -> dict[str, float]:
    config = tuned(env)
    warm_up = config["orchestrator"]["min_inserts"]
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.json"
        settings.write_text(json.dumps(config))
        command = [python, PEER, settings, Path(folder) / "run", "--seed", "0", "--threads", str(threads)]
        command += ["--after", str(warm_up), "--minutes", str(seconds / 60)]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    steps = (result["env_steps"] - warm_up) / result["seconds"]
    return {"env steps": steps, "updates": steps * config["orchestrator"]["sample_insert_ratio"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MinAtar-Breakout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="that are measured of each")
    parser.add_argument("--peers", type=Path, required=True, help="virtual environment of the peers (requirements.txt)")
    args = parser.parse_args()
    python = peer_python(args.peers)
    sides = {
        "async": lambda: ours(args.env, args.seconds, "mode=async"),
        "single": lambda: ours(args.env, args.seconds, "mode=single"),
        "worker alone": lambda: ours(args.env, args.seconds, "mode=async", *ALONE["worker"], warm="env_steps"),
        "trainer alone": lambda: trainer_alone(args.env, args.seconds),
        "sb3, 1 thread": lambda: sb3(args.env, args.seconds, 1, python),
        "sb3, 2 threads": lambda: sb3(args.env, args.seconds, 2, python),
    }
    results: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for i in range(args.rounds):
        for name in list(sides)[:: 1 if i % 2 == 0 else -1]:
            results[name].append(sides[name]())
            print(f"round {i + 1}: {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    print("| side | frames/s | updates/s | async / it, by frames |\n| --- | --- | --- | --- |")
    for name, rounds in results.items():
        frames, updates = ([one[what] for one in rounds] for what in ("env steps", "updates"))
        ratios = [own["env steps"] / one for own, one in zip(results["async"], frames, strict=True)]
        print(f"| {name} | {spread(frames, ',.0f')} | {spread(updates, ',.0f')} | {spread(ratios, '.2f')} |")


if __name__ == "__main__":
    main()

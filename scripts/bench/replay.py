"""Replay tables: rows inserted and batches sampled per second in one process, against cpprb's C++ buffers.

    python scripts/bench/replay.py [--peers PEERS_VENV] [--rows 100000 1000000]

Rows of LunarLanderContinuous (8 observations, 2 actions, 90 bytes) in a full table, 256 rows per insert and per
batch, through the trajectory manager. One call samples `U` batches: U=1 and U=16. "prioritized" samples a batch and
sets new priorities. The numbers are per second of processor time of one thread.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from alternate import Figures, alternate, peer_python, serve, table

BATCH = 256
CHUNK = 10_000
SHAPES = {"obs": (8,), "action": (2,), "reward": (), "next_obs": (8,), "discount": ()}
FLAGS = {"terminated": "bool", "truncated": "bool", "source": "int32"}
Task = tuple[Callable[[], object], int]  # what to do again and again, and for how many rows or batches it counts


def rows(num: int) -> dict[str, np.ndarray]:
    """Return random rows."""
    rng = np.random.default_rng(num)
    floats = {name: rng.standard_normal((num, *shape), dtype=np.float32) for name, shape in SHAPES.items()}
    return floats | {name: np.zeros(num, dtype) for name, dtype in FLAGS.items()}


def timed(tasks: Mapping[str, Task], seconds: float) -> Callable[[], Figures]:
    def rate(task: Task) -> float:
        call, counts = task
        done, used = 0, time.process_time()
        while (took := time.process_time() - used) < seconds:
            for _ in range(20):
                call()
            done += 20 * counts
        return done / took

    return lambda: {name: rate(task) for name, task in tasks.items()}


def ours(capacity: int) -> dict[str, Task]:
    from drl_cli.bench.replay import Replaying
    from drl_cli.bench.updates import lone_trainer
    from drl_cli.envs.make import read_spec
    from drl_cli.settings.compose import compose

    def table(sampler: str) -> Replaying:
        config = compose([
            "env=LunarLanderContinuous", "algo=sac", "tuned=none", f"replay={sampler}", f"replay.capacity={capacity}",
            f"worker.block_rows={BATCH}", f"trainer.batch_size={BATCH}",
        ])  # fmt: skip
        spec = read_spec(config.env)
        return Replaying(config, spec, *lone_trainer(config, spec).publish(0, 0), seconds=60.0)

    uniform, prioritized = table("uniform"), table("prioritized")
    return {
        "insert, rows": (uniform.insert, BATCH),
        "insert, prioritized, rows": (prioritized.insert, BATCH),
        "uniform, U=1": (lambda: uniform.serve(1), 1),
        "uniform, U=16": (lambda: uniform.serve(16), 16),
        "prioritized, U=1": (lambda: prioritized.serve(1), 1),
        "prioritized, U=16": (lambda: prioritized.serve(16), 16),
    }


def cpprb(capacity: int) -> dict[str, Task]:
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    columns = {name: {"shape": shape or 1, "dtype": np.float32} for name, shape in SHAPES.items()}
    columns |= {name: {"dtype": np.dtype(dtype).type} for name, dtype in FLAGS.items()}
    uniform, prioritized = (
        ReplayBuffer(capacity, columns),
        PrioritizedReplayBuffer(capacity, columns, alpha=0.6, eps=1e-6),
    )
    chunk, block, sizes = rows(CHUNK), rows(BATCH), priorities(capacity)
    for i in range(-(-capacity // CHUNK)):
        uniform.add(**chunk)
        prioritized.add(**chunk, priorities=sizes[i * CHUNK : (i + 1) * CHUNK])

    def learn() -> None:
        drawn = prioritized.sample(BATCH, beta=0.4)
        prioritized.update_priorities(drawn["indexes"], sizes[:BATCH])

    return {
        "insert, rows": (lambda: uniform.add(**block), BATCH),
        "insert, prioritized, rows": (lambda: prioritized.add(**block), BATCH),
        "uniform, U=1": (lambda: uniform.sample(BATCH), 1),
        "uniform, U=16": (lambda: uniform.sample(BATCH), 1),
        "prioritized, U=1": (learn, 1),
        "prioritized, U=16": (learn, 1),
    }


def priorities(num: int) -> np.ndarray:
    return np.abs(np.random.default_rng(1).standard_normal(num)).astype(np.float32)


SIDES = {"ours": ours, "cpprb": cpprb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of processor time for each figure of a round")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(timed(SIDES[args.side](args.rows[0]), args.seconds))
        return
    for num in args.rows:
        options = ["--rows", num, "--seconds", args.seconds, "--side"]
        commands = {"ours": [sys.executable, __file__, *options, "ours"]}
        if args.peers:
            commands["cpprb"] = [peer_python(args.peers), __file__, *options, "cpprb"]
        print(f"\n{num:,} rows\n\n{table(alternate(commands, args.rounds))}", flush=True)


if __name__ == "__main__":
    main()

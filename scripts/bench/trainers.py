"""Updates per second of two trainers that average their gradients, for several values of `trainer.compile` in turn.

    python scripts/bench/trainers.py [--hidden 64] [--rounds 5] [--seconds 2] [--compile replay true]

Both trainers run on this machine, with one thread each and SAC on random rows. Each of them has one process for each
value of `trainer.compile`. "updates/s" and "updates/CPU s" are those of the first trainer. A trainer that waits for the
other takes no processor time.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

PER_CALL = 16
_mine: dict[str, Any] = {}  # in a trainer's process: trainer and rows


def start(rank: int, choice: str, size: int, rows: int) -> int | None:
    """Make the trainer of this process. Return the port at which the first trainer listens."""
    import numpy as np

    from drl_cli.envs.make import read_spec
    from drl_cli.runtime.factories import make_trainer
    from drl_cli.settings.compose import compose

    words = ["env=LunarLanderContinuous", "algo=sac", "tuned=none", "mode=sync", "trainer.num=2", "device=cpu"]
    words += [f"network.hidden=[{size},{size}]", f"trainer.batch_size={2 * rows}", f"trainer.compile={choice}"]
    config = compose(words)
    trainer = _mine["trainer"] = make_trainer(config, read_spec(config.env), "cpu", rank)
    rng, shape = np.random.default_rng(rank), (PER_CALL, rows)
    columns = {name: rng.standard_normal((*shape, 8), np.float32) for name in ("obs", "next_obs")}
    columns |= {"action": rng.uniform(-1, 1, (*shape, 2)).astype(np.float32)}
    columns |= {"reward": rng.standard_normal(shape, np.float32), "discount": np.full(shape, 0.99, np.float32)}
    columns |= {name: np.zeros(shape, bool) for name in ("terminated", "truncated")}
    _mine["columns"] = columns | {"source": np.zeros(shape, np.int64)}
    return trainer.group.listen("127.0.0.1") if rank == 0 else None


def join(port: int) -> None:
    _mine["trainer"].join(("127.0.0.1", port))


def train(calls: int) -> tuple[float, float, list[str]]:
    """Make train calls. Return the seconds, the processor seconds, and the trainer's messages."""
    from drl_cli.runtime.messages import BatchTrainingData

    header = BatchTrainingData(0, PER_CALL, _mine["columns"]["reward"].shape[1], 1_000, env_steps=500)
    started, used, notes = time.perf_counter(), time.process_time(), list[str]()
    for _ in range(calls):
        report, _ = _mine["trainer"].train(header, _mine["columns"])
        notes += [text for _, text in report.notes]
    return time.perf_counter() - started, time.process_time() - used, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=64, help="units of each of the two layers")
    parser.add_argument("--rows", type=int, default=64, help="rows of an update of each trainer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--compile", nargs="+", default=["false", "replay", "true"])
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    groups = {choice: [ProcessPoolExecutor(1, spawn) for _ in range(2)] for choice in args.compile}

    def both(choice: str, calls: int) -> tuple[float, float, list[str]]:
        first, _ = [made.result() for made in [trainer.submit(train, calls) for trainer in groups[choice]]]
        return first

    calls = {}
    for choice, trainers in groups.items():
        made = [trainer.submit(start, i, choice, args.hidden, args.rows) for i, trainer in enumerate(trainers)]
        port, _ = [each.result() for each in made]
        for joined in [trainer.submit(join, port) for trainer in trainers]:
            joined.result()
        print(choice, *both(choice, 4)[2], flush=True)
        calls[choice] = max(1, int(args.seconds * 10 / both(choice, 10)[0]))
    found: dict[str, list[tuple[float, float]]] = {choice: [] for choice in groups}
    for _ in range(args.rounds):
        for choice in groups:
            seconds, used, _ = both(choice, calls[choice])
            updates = calls[choice] * PER_CALL
            found[choice].append((updates / seconds, updates / used))
    print("| trainer.compile | updates/s (min - max) | updates/CPU s (min - max) |\n|---|---|---|")
    for choice, values in found.items():
        cells = [f"{median(x):,.0f} ({min(x):,.0f} - {max(x):,.0f})" for x in zip(*values, strict=True)]
        print(f"| {choice} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""Golden values: the metrics of an algorithm's first updates, by which a change of its behaviour is noticed.

    python scripts/bench/golden.py [CASE ...]           # compare, and name what differs (exit code 1)
    python scripts/bench/golden.py --write [CASE ...]   # write what differs, and list the results that become old
    python scripts/bench/golden.py --write --all        # also write what agrees within the tolerance
    python scripts/bench/golden.py --fast [CASE ...]    # only the algorithms' own cases

A case is a short run: updates of a new trainer from fixed batches, in one process with one thread, not compiled. The
rows of the batches have random observations and rewards, and actions of the untrained policy, and go through the run's
own replay table. The schedules advance by 1/50 of the run with each batch. No environment runs, so that no case needs
an optional package.

There are two kinds of cases. An algorithm's case (`dqn`, `ppo box`) has a small network, small batches and a high
learning rate. A command's case (`env=CartPole-v1 algo=dqn`) has the values of drl-train for this command. There is one
for each command of learn.yaml, and for each tuned set that learn.yaml does not use. In all cases, a target network is
updated at least every 10 updates. The command's own period and its pace (replay ratio, warm-up and capacity) are among
the values.

golden.json has a line for each case: the values after the batches of POINTS, with four digits, and their digest, the
identity. docs/results.json records the identity of the command's case with each result. The first number of a metric
comes from the first parameters and the first batch: a loss has the same first number with another optimizer. (If an
algorithm makes several steps on a batch, as PPO does, the first number contains these steps.)
"""

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, count, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from golden_cases import algorithms, commands, config_of, spec_of

from drl_cli.config.config import Config
from drl_cli.config.exploration import worker_values
from drl_cli.config.rows import stackings_of
from drl_cli.runtime.factories import make_replay, make_trainer
from drl_cli.runtime.messages import BatchTrainingData, Block, InsertTransition, SampleBatch, UpdatePriority
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.runtime.roles.worker import make_builder
from drl_cli.types import Array, Columns, EnvSpec, LoadParams, PreviousStep, flat_columns, num_rows, random_obs, sources

FILE = Path(__file__).with_suffix(".json")
POINTS = (1, 2, 5, 10, 20, 50)
"""Numbers of batches after which values are recorded. A case ends at 50 updates, and has at least two batches."""
UPDATES, BATCHES = 50, 5
"""BATCHES different batches are served in turn."""
SHARES = {20: 1e-2, 50: 5e-2}
"""Tolerated differences of an algorithm's own case after many batches. Others: 1e-3."""
CHAOTIC = frozenset({("env=Pong algo=ppo tuned=ppo-images", "grad_norm")})
"""Values that are not compared: with AVX2 and with AVX-512 on one processor, they differ by 7%, on another by 200%."""
NOISE = 1e-7
"""Differences of this size are errors of rounding, such as those of a KL divergence of 0."""
MOST_FROM_IMAGES = 25
"""Updates after which cases with images are not compared: after 50, Ape-X's Q values differ by a quarter on a Zen 5."""
Values = dict[str, list[float | None]]
"""The values of a case at the first of POINTS, by metric."""
Case = dict[str, Any]  # identity and values
Golden = dict[str, Case]


def measure(config: Config, spec: EnvSpec) -> Values:
    """Return the means of metrics and priorities over the batches since the last point, and states at the points.

    The states are the exploration values, and `moved`: the distance of the policy from its first parameters. A value is
    None if no batch since the last point has this metric, such as the loss of a delayed actor.
    """
    trainer = make_trainer(config, spec, "cpu", 0)
    newest, first = trainer.publish(0, 0)
    source, stream = batches(config, spec, newest, first), list[tuple[BatchTrainingData, Columns]]()
    made, points = list[dict[str, float]](), list[dict[str, float]]()
    for number in range(1, POINTS[-1] + 1):
        if number <= BATCHES:
            stream.append(next(source))
        header, columns = stream[(number - 1) % BATCHES]
        env_steps = config.total_env_steps * (number - 1) // UPDATES
        report, answer = trainer.train(dataclasses.replace(header, env_steps=env_steps), columns)
        has_priorities = answer is not None and answer.priorities is not None
        made.append({**report.metrics, **({"priority": answer.priorities.mean()} if has_priorities else {})})
        if number not in POINTS:
            continue
        newest, params = trainer.publish(number, env_steps)
        means = {name: float(np.mean([one[name] for one in made if name in one])) for name in {*chain(*made)}}
        points.append({**means, **newest.exploration, "moved": float(np.linalg.norm(params - first))})
        made.clear()
        if trainer.opt_steps >= UPDATES and number > 1:
            break
    return {name: [point.get(name) for point in points] for name in sorted({*chain(*points)})}


def batches(
    config: Config, spec: EnvSpec, newest: LoadParams, params: Array
) -> Iterator[tuple[BatchTrainingData, Columns]]:
    """Yield batches `[1, B, ...]` of random rows from a replay table with the run's settings."""
    size, num = config.trainer.batch_size, config.worker.envs
    table = dataclasses.replace(config.replay, capacity=config.row_steps * (4 * size + num), shards=1)
    replay = make_replay(dataclasses.replace(config, replay=table), spec, 0)
    policy, rng = make_policy(config, spec, 0), np.random.default_rng(0)
    policy.load(params)
    policy.explore(worker_values(config.worker.exploration, newest.exploration, 0, config.num_workers, num))
    builder, last = make_builder(config, spec, policy, 0, 0), PreviousStep.none(spec, num)
    zeros = dict.fromkeys(("worker", "incarnation", "first_env_step", "last_env_step", "version", "opt_steps"), 0)
    for number in count():
        obs, next_obs = (random_obs(spec.obs, num, rng) for _ in range(2))
        terminated, truncated = rng.random(num) < 0.05, rng.random(num) < 0.05
        reward = rng.standard_normal(num, np.float32)
        step = {**flat_columns("obs", obs), **policy.act(obs, last), **flat_columns("next_obs", next_obs)}
        step |= {"reward": reward, "source": sources(0, num), "valid": np.ones(num, np.bool_)}
        step |= {"terminated": terminated, "truncated": truncated & ~terminated}
        last = PreviousStep.of(step["action"], reward, (terminated | truncated).nonzero()[0].tolist())
        builder.append(step)
        if stackings_of(config, spec) and number + 1 < config.row_steps:
            continue  # there may be no row yet, for which a policy for images cannot compute a priority
        rows = builder.take()
        block = Block(number=number, rows=num_rows(rows), **zeros)
        replay.insert([InsertTransition((block,), (), 0.0)], rows)
        if len(replay.table) < size * (1 if config.is_on_policy else 2):
            continue
        header, columns = replay.sample(SampleBatch(1, size))
        assert isinstance(header, BatchTrainingData)
        assert isinstance(columns, dict)
        yield header, columns
        if header.row_ids is not None and header.needs_priorities:
            num_steps = config.replay.steps.seq_len if config.replay.steps and header.row_ids.ndim < 3 else None
            shape = header.row_ids.shape if num_steps is None else (*header.row_ids.shape, num_steps)
            replay.update_priorities(UpdatePriority(header.row_ids, rng.exponential(size=shape)))


def make(case: str, words: Sequence[str] = ()) -> Case:
    """Run a case, with further words of drl-train. Return its record for golden.json."""
    config, hidden = config_of(case, words)
    values = {name: list(map(rounded, row)) for name, row in measure(config, spec_of(config)).items()}
    values |= {name: [value] for name, value in hidden.items()}
    return {"identity": identity(values), "values": values}


def rounded(value: float | None) -> float | None:
    """Return a value with four digits. Numbers below NOISE are 0."""
    return None if value is None else 0.0 if abs(value) < NOISE else float(f"{value:.4g}")


def identity(values: Values) -> str:
    """Return a digest of 4 digits."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:4]


class Difference(NamedTuple):
    """The first difference of a metric. `batch` is the number of batches after which the values were recorded."""

    batch: int
    metric: str
    golden: float | None
    now: float | None

    def __str__(self) -> str:
        return f"{self.metric} after batch {self.batch}: golden {self.golden}, now {self.now}"


def differences(golden: Values, now: Values, case: str = "") -> list[Difference]:
    """Return the first difference of each metric, the earliest first. Metrics without golden values are not compared.

    Values differ if they are further apart than a share of their size, for which a value counts at least as much as a
    tenth of the metric's largest value. After many updates, both are more, because differences of rounding grow.
    """
    found, last = list[Difference](), POINTS[max((len(row) for row in golden.values()), default=1) - 1]
    for name, row in golden.items():
        if (case, name) in CHAOTIC:
            continue
        largest = max((abs(value) for value in row if value is not None), default=0.0)
        for number, old, new in zip_longest(POINTS[: len(row)], row, now.get(name, [])):
            batch = number or POINTS[-1]
            if "-images" in case and UPDATES * batch / last > MOST_FROM_IMAGES:
                continue
            share = tolerated(batch, last, "=" in case)
            if not agree(old, new, share, largest * (1.0 if share > 1e-3 else 0.1)):
                found.append(Difference(batch, name, old, new))
                break
    return sorted(found)


def tolerated(batch: int, last: int, is_command: bool) -> float:
    """Return the share by which values may differ after a batch, on another processor.

    The networks of a command's case are larger than those of an algorithm's own case, and a batch may have many
    updates: 50 updates are made in `last` batches.
    """
    if not is_command:
        return SHARES.get(batch, 1e-3)
    updates = UPDATES * batch / last
    return 1e-3 if updates < 10 else 1e-2 if updates < 20 else 1e-1


def agree(old: float | None, new: float | None, share: float, least: float) -> bool:
    if old is None or new is None:
        return old is new
    return abs(new - old) <= share * max(abs(old), least) + NOISE


def first_batch(found: Sequence[Difference]) -> str:
    """Return whether the losses of the first batch agree, which are computed with the first parameters."""
    names = [one.metric for one in found if one.batch == 1 and one.metric != "moved"]
    return (
        f"the first batch has other values of {', '.join(names)}" if names else "the metrics of the first batch agree"
    )


def read() -> Golden:
    found: Golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def text(golden: Golden) -> str:
    """Return the content of golden.json, with a case on one line."""
    return "{\n" + ",\n".join(f"{json.dumps(case)}: {json.dumps(record)}" for case, record in golden.items()) + "\n}\n"


def chosen(names: Sequence[str]) -> list[str]:
    """Return the cases with these names or of these algorithms, or all. Raise SystemExit for an unknown name."""
    cases = [*algorithms(), *commands()]
    keys = {
        case: {case, case.partition(" ")[0], *(w[5:] for w in case.split() if w.startswith("algo="))} for case in cases
    }
    if unknown := [name for name in names if not any(name in known for known in keys.values())]:
        raise SystemExit(f"no case {', '.join(unknown)}; say an algorithm, or one of: {', '.join(algorithms())}")
    return [case for case in cases if not names or keys[case] & set(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help="cases, or algorithms with all their cases; all")
    parser.add_argument("--write", action="store_true", help="write the values that differ to golden.json")
    parser.add_argument("--all", action="store_true", help="with --write, also write values within the tolerance")
    parser.add_argument("--fast", action="store_true", help="only the algorithms' own cases, which take 15 s")
    args = parser.parse_args()
    golden, before, num = read(), read(), 0
    for case in chosen(args.case):
        if args.fast and case not in algorithms():
            continue
        new, lines = make(case), ["no golden values yet"]
        if case in golden:
            found = differences(golden[case]["values"], new["values"], case)
            lines = [*map(str, found), first_batch(found)] if found else []
        for line in lines:
            print(f"{case}: {line}", flush=True)
        num += bool(lines)
        if args.write and (lines or args.all):
            golden[case] = new
    if args.write:
        write(before, golden)
    elif num:
        raise SystemExit(f"{num} cases differ; if this is wanted, write new golden values with --write")


def write(before: Golden, after: Golden) -> None:
    """Write golden.json and docs/results.md, and print the rows whose results become old."""
    import learn

    known = [*algorithms(), *commands()]
    after = {case: after[case] for case in known if case in after}
    FILE.write_text(text(after))
    learn.write_page()
    for row in learn.made_old(before, after):
        print(f"old now: {row}")


if __name__ == "__main__":
    main()

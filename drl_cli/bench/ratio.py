"""orchestrator.sample_insert_ratio=auto: measure workers and trainer before a run, in a process of its own."""

import dataclasses
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from drl_cli.algos.lookup import title
from drl_cli.config.config import Config
from drl_cli.errors import DONE, ReportedError, UsageError, users_errors
from drl_cli.runs.named import with_config_of_run
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import CommandLine, read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.env_names import typed_values
from drl_cli.types import EnvSpec
from drl_cli.utils.machine import num_cores
from drl_cli.utils.shown import print

KEY = "orchestrator.sample_insert_ratio"
RATIOS = (0.1, 0.25, 0.5, 1.0, 2.0)
SECONDS = 1.0
"""How long each side is measured."""


def with_measured_ratio(command: CommandLine) -> tuple[CommandLine, str | None]:
    """Replace `auto` by a measured number, and return a line that says it. Without `auto`, change nothing.

    The number is then a value of the run as if it had been typed. Raise UsageError if the command line is wrong, is a
    sweep, or is of a run without this key.
    """
    if typed_values(command.overrides).get(KEY) != "auto":
        return command, None
    if command.is_sweep:
        raise UsageError(f"{KEY}=auto measures one run; in a sweep, say a number, so that all jobs have the same")
    from drl_cli.bench.pace import overridden, short

    command = dataclasses.replace(command, overrides=overridden(command.overrides, f"{KEY}=1"))
    check_command(command)
    config = compose(command.overrides, command.config_file)
    if config.is_on_policy or config.is_offline:
        why = "mode=offline has no workers" if config.is_offline else "on-policy, each rollout is learned from once"
        raise UsageError(f"{KEY}=auto: {title(config.algo_name)} does not read it ({why}); leave it out")
    steps, updates = measured([*command.flags, *command.overrides])
    ratio = nearest(updates / steps)
    line = f"{KEY}={ratio:g} (auto): workers make {short(steps)} env steps/s, the trainer {short(updates)} updates/s"
    return dataclasses.replace(command, overrides=overridden(command.overrides, f"{KEY}={ratio:g}")), line


def nearest(ratio: float) -> float:
    """Return the one of RATIOS that is nearest by its logarithm."""
    return min(RATIOS, key=lambda one: abs(math.log(one / ratio)))


def measured(words: Sequence[str]) -> tuple[float, float]:
    """Return the `rates` of a command line of drl-train. Raise UsageError with the errors of the measurement.

    A process of its own measures, because a run forks after its checks, which a used GPU does not allow.
    """
    command = [sys.executable, "-P", "-m", "drl_cli.bench.ratio", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(f"the measurement ended with {done.returncode}: {done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if done.returncode != DONE:
        raise UsageError(answer, done.returncode)
    steps, updates = answer
    return steps, updates


def main(words: list[str]) -> int:
    """Print the `rates` of a command line of drl-train, or the problems, and return the exit code."""
    from drl_cli.preflight.environment import environment_spec

    command = with_config_of_run(read_command(words))
    try:
        config = compose(command.overrides, command.config_file)
        with users_errors(config.outside_modules):
            print(json.dumps(rates(config, environment_spec(config))))
    except ReportedError as error:
        print(json.dumps(error.problems))
        return error.exit_code
    return DONE


def rates(config: Config, spec: EnvSpec) -> tuple[float, float]:
    """Return the environment steps/s of all workers, and the updates/s of the trainer without compilation."""
    from drl_cli.runtime.roles.normalization import numpy_program
    from drl_cli.runtime.roles.worker import Worker
    from drl_cli.runtime.trial_update import lone_trainer, random_batch, single_trainer
    from drl_cli.settings.fill import with_device  # slow to import, as the others
    from drl_cli.utils.lazy import torch

    config, _ = with_device(config, spec)
    if config.trainer.compile:  # compilation takes longer than this measurement
        config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, compile="replay"))
    trainer = lone_trainer(config, spec, config.trainer.num_threads)
    params_header, params = trainer.publish(0, 0)
    with closing(Worker(config, spec, 0, 0, numpy_program(config, spec)[0])) as worker:
        worker.collect(params_header, params)
        calls = per_s(lambda: worker.collect(params_header))
    batch = random_batch(single_trainer(config, 1), spec, params)
    torch.set_num_threads(config.trainer.num_threads)
    trainer.train(*batch)  # the first call is slower
    num_updates = trainer.train(*batch)[0].num_updates
    steps = calls * config.rows_per_collect * min(config.num_workers, num_cores())
    return steps, num_updates * per_s(lambda: trainer.train(*batch))


def per_s(work: Callable[[], object]) -> float:
    """Call `work` for SECONDS, and return the calls per second."""
    calls, started = 0, time.perf_counter()
    while (took := time.perf_counter() - started) < SECONDS or not calls:
        work()
        calls += 1
    return calls / took


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

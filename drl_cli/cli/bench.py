"""drl-bench: measure this machine with short runs, and propose workers, environments and threads."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drl_cli.cli.command import option, run_words
from drl_cli.config.config import Config
from drl_cli.errors import DONE, RESOURCES, USAGE, UsageError, as_usage_error, users_errors
from drl_cli.runs.auto import naming_choice, with_auto
from drl_cli.runs.named import with_config_of_run
from drl_cli.settings.algorithm import refusal
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import CommandLine, read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.conf import groups
from drl_cli.settings.env_names import typed_values
from drl_cli.settings.options import parse, usage
from drl_cli.settings.value_types import group_of
from drl_cli.types import EnvSpec
from drl_cli.utils.machine import num_cores
from drl_cli.utils.ranges import Positive
from drl_cli.utils.shown import print
from drl_cli.utils.spelling import nearest

EXAMPLES = (
    "drl-bench env=LunarLanderContinuous algo=sac",
    "drl-bench env=Pendulum-v1 mode=single seconds=2",
    "drl-bench from_config=latest tune=true",
)

UNREAD = ("stop.", "manage.", "checkpoint.", "logger.tensorboard", "logger.report_s")
"""What the keys begin with that are not read: `bench/pace.py` sets them for the run that it measures."""


@dataclass(frozen=True)
class Options:
    """Options of drl-bench, which also accepts every key of drl-train."""

    seconds: Positive = option(5.0, "of each run, its start-up not counted")
    tune: bool = option(False, "propose worker.num, worker.envs and trainer.threads")
    json: str | None = option(None, "write all rates and their rounds to this file")


def main() -> None:
    """Run drl-bench."""
    run_words(answer, help_of)


def help_of(words: Sequence[str]) -> str:
    """Return the text of --help."""
    about = "measure this machine with short runs of the same environment, network and batches"
    end = "and every key of drl-train, which say what is measured: drl-train --help"
    return f"{usage('drl-bench', Options, about, EXAMPLES)}\n\n{end}"


def answer(words: Sequence[str]) -> int:
    """Check the command line, measure, and print the table."""
    options, typed, auto_line = read(words)
    command = with_run(typed)
    from drl_cli.preflight.algorithm import try_update
    from drl_cli.preflight.preflight import preflight
    from drl_cli.runtime.place.cluster import share_cores
    from drl_cli.settings.fill import with_device, with_short_warm_up

    config, changes = with_short_warm_up(compose(command.overrides, command.config_file), command.overrides)
    share_cores("async" if options.tune else config.mode)
    with naming_choice(auto_line), users_errors(config.outside_modules):
        spec = preflight(config, typed.overrides)
        check_use(config, spec, options, typed.overrides)
        config, lines = with_device(config, spec)
        try_update(config, spec)
        if auto_line is not None:
            print(auto_line)
        print("".join(f"{line}\n" for line in [*changes, *lines]), end="")
        if config.dry_run:
            print(f"{config.env.name}: all checks passed; nothing was measured")
        else:
            measure(config, options, command, typed)
    return DONE


def measure(config: Config, options: Options, command: CommandLine, typed: CommandLine) -> None:
    """Measure a short run, name the bottleneck, and propose a command line if `tune` is set.

    `typed` is the command line before `with_run` read `from_config`.
    """
    from drl_cli.bench import pace
    from drl_cli.bench.pace import Setting, advice, tune
    from drl_cli.preflight.pace import pace_problems

    cores, load, words = num_cores(), os.getloadavg()[0], [*command.flags, *command.overrides]
    busy = ": other programs disturb what is measured here" if load > cores / 4 else ""
    print(f"{config.env.name} {config.algo_name} {config.mode}: {cores} processors, load {load:.1f}{busy}")
    print(f"{'run':<46}{pace.HEAD}", flush=True)
    figures = list[dict[str, Any]]()

    def timed(name: str, words: Sequence[str], config: Config) -> pace.Pace:
        found = pace.measure(words, config, options.seconds)
        figures.append({"run": name, **dataclasses.asdict(found)})
        print(f"{name:<46}{found}", flush=True)
        return found

    own = timed(f"yours, mode={config.mode}", words, config)
    print("\n".join(advice(own, None if config.is_on_policy else config.orchestrator.sample_insert_ratio)))
    tuned = None
    if options.tune:
        setting = Setting(config.num_workers, config.trainer.num_threads, config.worker.envs)
        tuned = tune(
            setting,
            cores,
            lambda one: not pace_problems(one.of(config)),
            lambda one: timed(" ".join(one.keys), pace.overridden(words, "mode=async", *one.keys), one.of(config)),
        )
        mode = [] if config.mode == "async" else ["mode=async"]
        keys = pace.overridden(typed.overrides, *mode, *tuned.keys)
        print(f"next: {shlex.join(['drl-train', *typed.flags, *keys])}")
    if options.json is not None:
        from drl_cli.run_folder.checkpoint import write_json

        result = {"env": config.env.name, "algo": config.algo_name, "mode": config.mode, "cores": cores, "load": load}
        result |= {"command": sys.argv[1:], "figures": figures, "tuned": tuned and tuned.keys}
        with as_usage_error(OSError, prefix=f"json={options.json} can't be written: ", exit_code=RESOURCES):
            write_json(Path(options.json), result)


def read(args: Sequence[str]) -> tuple[Options, CommandLine, str | None]:
    """Split the words into options of drl-bench and keys of drl-train, and return the line about `algo=auto`.

    Raise UsageError with the problems of both.
    """
    own = [arg for arg in args if is_own(arg.partition("=")[0])]
    options, problems, exit_code = Options(), list[str](), USAGE
    command, auto_line = CommandLine([], [], None, False), None
    try:
        options = parse(own, Options)
    except UsageError as error:
        problems += error.problems
    try:
        command = read_command([arg for arg in args if arg not in own])
        command, auto_line = with_auto(command)
        with naming_choice(auto_line):
            check_command(with_run(command))
    except UsageError as error:
        exit_code = USAGE if problems else error.exit_code
        problems += error.problems
    if (command.flags and command.config_file is None) or command.is_sweep:
        problems.append("drl-bench measures one run: of Hydra's flags it takes --config-path and --config-name")
    if problems:
        raise UsageError(problems, exit_code)
    if options.json is not None and not Path(options.json).absolute().parent.is_dir():
        raise UsageError(f"json={options.json}: there is no folder {Path(options.json).absolute().parent}")
    return options, command, auto_line


def is_own(key: str) -> bool:
    """Return whether a key is an option of drl-bench, or resembles an option more than any key of drl-train."""
    own, of_train = group_of(Options).keys, {*group_of(Config).keys, *groups()}
    found = [key] if key in of_train else nearest(key, [*own, *of_train])
    return bool(found) and found[0] in own


def with_run(command: CommandLine) -> CommandLine:
    """Replace `from_config=RUN` by the config of RUN. Raise UsageError for `resume=RUN`."""
    if typed_values(command.overrides).get("resume", "null") != "null":
        raise UsageError("resume: drl-bench trains nothing; from_config=RUN measures with that run's config")
    changed = with_config_of_run(command)
    rest = [arg for arg in changed.overrides if not arg.lstrip("+").startswith("from_config=")]
    return dataclasses.replace(changed, overrides=rest)


def check_use(config: Config, spec: EnvSpec, options: Options, typed: Sequence[str]) -> None:
    """Raise UsageError if drl-bench can't measure this config, or does not read a key that was typed."""
    if unread := [key for key in typed_values(typed) if key.startswith(UNREAD)]:
        raise UsageError(
            [
                f"{key} has no effect: drl-bench ends, evaluates and saves no run of yours; leave it out"
                for key in unread
            ]
        )
    if config.ray.address:
        raise UsageError("ray.address: drl-bench measures this machine, not a cluster; leave it out")
    if config.explain:
        raise UsageError("explain: drl-bench measures; drl-train explain=true says where values come from")
    if options.tune and (
        problem := refusal(
            *(config.algo.name, spec, "async", config.replay.table), typed=config.algo_name, replay=config.replay.option
        )
    ):
        raise UsageError(f"tune=true: {problem}")


if __name__ == "__main__":
    main()

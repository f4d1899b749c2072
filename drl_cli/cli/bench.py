"""drl-bench: measures this machine with a run's own parts, and proposes workers, environments and threads."""

import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from drl_cli.algos.lookup import refusal
from drl_cli.bench.overrides import overridden
from drl_cli.errors import (
    INTERRUPTED,
    RESOURCES,
    TERMINATED,
    USAGE,
    RunError,
    UsageError,
    fail,
    nearest,
    outlive_closed_pipe,
    users_errors,
)
from drl_cli.runs.resume import named_run, with_config_of
from drl_cli.runtime.config import Config
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import CommandLine, read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.conf import groups
from drl_cli.settings.options import parse, usage
from drl_cli.settings.settings import fields
from drl_cli.types import EnvSpec
from drl_cli.utils.cores import num_cores
from drl_cli.utils.ranges import Positive

if TYPE_CHECKING:  # importing it takes long
    from drl_cli.bench.figures import Figure

Part = Literal["collect", "replay", "updates", "end"]


@dataclass(frozen=True)
class Options:
    """Options of drl-bench, beside those of drl-train."""

    parts: tuple[Part, ...] = field(
        default=("collect", "replay", "updates", "end"), metadata={"help": "what is measured; end: a short real run"}
    )
    seconds: Positive = field(default=5.0, metadata={"help": "of each figure, start-up of runs not counted"})
    tune: bool = field(default=False, metadata={"help": "propose worker.num, worker.envs and trainer.threads"})
    json: str | None = field(default=None, metadata={"help": "write all figures and their rounds to this file"})


def main() -> None:
    """The command."""
    outlive_closed_pipe()
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(help_text())
        return
    sys.path.insert(0, os.getcwd())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        bench(sys.argv[1:])
    except UsageError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def bench(args: Sequence[str]) -> None:
    """Check, measure, print; raises UsageError."""
    options, typed = read(args)
    command = with_run(typed)
    from drl_cli.preflight.preflight import preflight
    from drl_cli.runtime.place.cluster import share_cores

    config = compose(command.overrides, command.config_file)
    share_cores("async" if options.tune else config.mode)
    with users_errors(config.outside_modules):
        spec = preflight(config)
    check_use(config, spec, options)
    if config.dry_run:
        return
    try:
        with users_errors(config.outside_modules):
            measure(config, spec, options, command, typed.overrides)
    except RunError as error:
        raise UsageError(str(error).splitlines(), error.exit_code) from error


def measure(config: Config, spec: EnvSpec, options: Options, command: CommandLine, typed: Sequence[str]) -> None:
    """All parts, then what is proposed."""
    from drl_cli.bench.sheet import Sheet
    from drl_cli.bench.suite import Suite
    from drl_cli.bench.tune import advice
    from drl_cli.preflight.preflight import pace_problems

    cores, load = num_cores(), os.getloadavg()[0]
    print(
        f"{config.env.name} {config.algo.name} {config.mode}: {cores} processors, {busy_text(load, cores)}", flush=True
    )
    figures: list[Figure] = []
    tuned = None
    with Sheet(sys.stdout) as sheet:

        def show(figure: "Figure") -> None:
            figures.append(figure)
            sheet.add(figure)

        suite = Suite(config, spec, [*command.flags, *command.overrides], cores, options.seconds, show)
        for part in get_args(Part):
            if part in options.parts or (options.tune and part in ("collect", "updates")):
                getattr(suite, part)()
        if options.tune:
            tuned = suite.tune(lambda one: not pace_problems(one))
    if tuned is not None:
        setting, pace = tuned
        mode = [] if config.mode == "async" else ["mode=async"]
        line = shlex.join(["drl-train", *overridden(typed, *mode, *setting.keys)])
        asked = None if config.is_on_policy else config.orchestrator.sample_insert_ratio
        print("\n".join([*advice(pace, asked), f"next: {line}"]))
    if options.json is not None:
        write(options.json, config, figures, tuned[0].keys if tuned else None, cores, load)


def write(
    path: str, config: Config, figures: Sequence["Figure"], tuned: list[str] | None, cores: int, load: float
) -> None:
    """All that was measured, as json."""
    from drl_cli.runtime.files.checkpoint import write_json

    names = {"env": config.env.name, "algo": config.algo.name, "mode": config.mode, "cores": cores, "load": load}
    lines = [dataclasses.asdict(figure) for figure in figures]
    try:
        write_json(Path(path), {**names, "command": sys.argv[1:], "figures": lines, "tuned": tuned})
    except OSError as error:
        raise UsageError(f"json={path} can't be written: {error}", RESOURCES) from error


def busy_text(load: float, cores: int) -> str:
    """How far the figures can be trusted."""
    return f"load {load:.1f}" + (": other programs disturb what is measured here" if load > cores / 4 else "")


def read(args: Sequence[str]) -> tuple[Options, CommandLine]:
    """Our own options, and the command line of drl-train; raises UsageError with all that is wrong with both."""
    own = [arg for arg in args if is_own(arg.partition("=")[0])]
    options, problems, exit_code = Options(), list[str](), USAGE
    command = CommandLine([], [], None, False)
    try:
        options = parse(own, Options)
    except UsageError as error:
        problems += error.problems
    try:
        command = read_command([arg for arg in args if arg not in own])
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
    return options, command


def is_own(key: str) -> bool:
    """Whether a key is one of ours, or more like one of them than like any of drl-train's."""
    own, theirs = fields(Options), {*fields(Config), *groups()}
    found = [key] if key in theirs else nearest(key, [*own, *theirs])
    return bool(found) and found[0] in own


def with_run(command: CommandLine) -> CommandLine:
    """With the config of the run that `from_config` names in its place."""
    folder = named_run(command)
    if folder is None:
        return command
    if any(arg.lstrip("+").startswith("resume=") for arg in command.overrides):
        raise UsageError("resume: drl-bench trains nothing; from_config=RUN measures with that run's config")
    rest = [arg for arg in command.overrides if not arg.lstrip("+").startswith("from_config=")]
    return with_config_of(folder, dataclasses.replace(command, overrides=rest))


def check_use(config: Config, spec: EnvSpec, options: Options) -> None:
    """Raise when this is not to be measured here."""
    if config.ray.address:
        raise UsageError("ray.address: drl-bench measures this machine, not a cluster; leave it out")
    if config.explain:
        raise UsageError("explain: drl-bench measures; drl-train explain=true says where values come from")
    if options.tune and (problem := refusal(config.algo.name, spec, "async", config.replay.sampler)):
        raise UsageError(f"tune=true: {problem}")


def help_text() -> str:
    """Usage and our own options."""
    lines = [
        usage("drl-bench", Options, "measure this machine with a run's own environment, network and batches"),
        "",
        "  drl-bench env=LunarLanderContinuous algo=sac",
        "  drl-bench env=Pendulum-v1 mode=single parts=[collect,updates] seconds=2",
        "  drl-bench from_config=latest tune=true",
        "",
        "and every key of drl-train, which say what is measured: drl-train --help",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

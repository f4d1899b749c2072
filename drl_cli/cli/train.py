"""drl-train: compose the config with Hydra, check it, train."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl_cli.bench.ratio import with_measured_ratio
from drl_cli.cli.command import run_words
from drl_cli.cli.complete import shell_completion
from drl_cli.config.config import Config
from drl_cli.errors import (
    DONE,
    EXIT_CODES,
    RESOURCES,
    Problems,
    ReportedError,
    UsageError,
    as_usage_error,
    users_errors,
)
from drl_cli.metrics.console import Console
from drl_cli.metrics.display import announce, erase
from drl_cli.preflight.unread import unread_keys
from drl_cli.run_folder import SPACES_FILE
from drl_cli.run_folder.resume import Resumed, claim_run, resume
from drl_cli.runs.auto import naming_choice, with_auto
from drl_cli.runs.data_env import with_data_env
from drl_cli.runs.end_text import end_text
from drl_cli.runs.named import with_config_of_run
from drl_cli.runtime.place.signals import Signals, catch, ending_with
from drl_cli.settings.build import as_typed, build
from drl_cli.settings.check import check_command, check_option
from drl_cli.settings.command_line import CommandLine, flags_for_hydra, read_command
from drl_cli.settings.compose import complete_with_family, composed, run_hydra, write_config
from drl_cli.settings.conf import conf_dir, groups, options
from drl_cli.settings.env_names import typed_values
from drl_cli.settings.key_help import sections, text
from drl_cli.sweeps.launcher import begin_job, end_with_sweep
from drl_cli.sweeps.multirun import run_sweep
from drl_cli.sweeps.search import is_search
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils.clock import process_start
from drl_cli.utils.shown import print, relative_path, run_log
from drl_cli.utils.spelling import other_option

if TYPE_CHECKING:  # slow to import
    from drl_cli.data.dataset import Dataset
    from drl_cli.runtime.place.launch import Cluster

OURS = (
    *("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"),
    *("hydra.run.dir=.", "hydra.job.chdir=false"),
)
"""Overrides that keep Hydra from writing folders and logs, because drl-cli writes its own."""


def main() -> None:
    """Run drl-train."""
    end_with_sweep()
    run_words(answer, help_text, needs_words=True)


def answer(args: list[str]) -> int:
    """Train, sweep, complete a word, or print the config, as the command line asks. Return the exit code."""
    if {"-sc", "--shell-completion"} & set(args):
        words = shell_completion(args[-1], os.environ.get("COMP_LINE", "drl-train "))
        if words is None:
            run_hydra(args)
        else:
            print("\n".join(words))
        return DONE
    command = read_command(args)
    command, (auto_line, ratio_line, data_line) = completed(command, args)
    if command.is_sweep and "explain=true" in command.overrides:
        raise UsageError("explain=true explains one run: leave -m and the lists of values out")
    if command.is_sweep:
        if auto_line is not None:
            print(auto_line)
        return run_sweep(command)
    if command.prints:
        overrides = complete_with_family(command.overrides, command.config_file)
        run_hydra([*flags_for_hydra(command.flags), *OURS, *overrides])
        return DONE
    if typed_values(args).get("console", "auto") == "auto":
        announce(sys.stdout, "reading the config")
    try:
        with naming_choice(auto_line), composed(command.overrides, command.config_file) as plain:
            from drl_cli.settings.explain import algorithm_line, explanation, tuned_line

            chosen = [line for line in (auto_line, ratio_line) if line is not None]
            if chosen and (plain.get("explain") or plain.get("dry_run")):
                erase(sys.stdout)
                print("\n".join(chosen))  # a run shows the lines in its header
            if plain.get("explain"):
                erase(sys.stdout)
                config = build(plain)
                if unread := unread_keys(config, command.overrides):
                    raise UsageError(unread)
                print("\n".join(explanation(config, args)))
                return DONE
            tuned = tuned_line(plain, args) if command.config_file is None else None
            lines = (*chosen, algorithm_line(command.overrides), tuned, data_line)
            notes = [line for line in lines if line is not None]
            return int(train(plain, args, notes)["exit_code"])
    except ReportedError:
        erase(sys.stdout)
        raise


def completed(
    command: CommandLine, words: Sequence[str]
) -> tuple[CommandLine, tuple[str | None, str | None, str | None]]:
    """Return the checked command line with the config of a named run, and with what replaces `auto` and `run:RUN`.

    Also return the lines of `with_auto`, `with_measured_ratio` and `with_data_env`. `words` are those that were typed.
    """
    command, data_line = with_data_env(with_config_of_run(command))
    command, auto_line = with_auto(command)
    if is_search(command.overrides) and not command.is_sweep:
        refuse_search(words)
    with naming_choice(auto_line):
        command, ratio_line = with_measured_ratio(command)
        check_command(command)
    return command, (auto_line, ratio_line, data_line)


def refuse_search(args: Sequence[str]) -> None:
    """Raise UsageError for a search without -m, which also names an option of `hpo` that does not exist."""
    typed = next(word for word in reversed(args) if word.startswith("hpo="))
    option = other_option("hpo", typed[4:]) or typed
    problems = Problems()
    with problems.collect():
        check_option("hpo", typed[4:])
    with problems.collect():
        check_option("hpo", option[4:])
        words = search_words([option if arg == typed else arg for arg in args])
        problems.errors.append(UsageError(f"hpo searches over many runs, which needs -m: drl-train -m {words}"))
    problems.report()


def search_words(args: Sequence[str]) -> str:
    """Return the words of a search: these words, and a search space for `algo.lr` if no key has a search space."""
    if any("interval(" in arg or "choice(" in arg for arg in args):
        return shlex.join(args)
    kept = [arg for arg in args if not arg.startswith("algo.lr=")]
    return shlex.join([*kept, "algo.lr=tag(log,interval(1e-4,1e-2))"])


def train(
    plain: dict[str, Any],
    args: Sequence[str] = (),
    notes: Sequence[str] = (),
    began: float | None = None,
    on_evaluation: Callable[[dict[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Check the composed config, train, and show the progress and the results. Return the summary and the `folder`.

    `on_evaluation` is called with the values of each evaluation. `args` is the command line for run.json, `notes` are
    lines for the header of the run. `began` is the time [s since the epoch] from which the run's seconds are counted,
    by default the start of this process.
    """
    erase(sys.stdout)
    config = build(plain)
    kind = "quiet" if config.dry_run else config.console
    began = process_start() if began is None else began
    shown = Console(kind, sys.stdout, began, config.logger.console_s)
    shown.on_evaluation = on_evaluation
    with catch() as signals, shown as console, run_log() as open_log, ending_with(signals):
        return _train(config, console, signals, open_log, notes, args, began)


def _prepared(
    config: Config, console: Console, args: Sequence[str]
) -> "tuple[Config, list[str], EnvSpec, Resumed | None, Cluster | None, Dataset | None]":
    """Fill in the config for this machine or cluster, and check it. Raise UsageError if the config can't run.

    The lines say what is changed to fit total_env_steps, and why device=auto is a GPU or the CPU.
    """
    from drl_cli.preflight.algorithm import try_update
    from drl_cli.preflight.environment import check_identity, environment_spec
    from drl_cli.preflight.pace import node_problems
    from drl_cli.preflight.preflight import preflight_with_data
    from drl_cli.run_folder.load_weights import with_weights
    from drl_cli.runs.start_text import data_advice
    from drl_cli.runtime.place.cluster import share_cores
    from drl_cli.runtime.place.launch import join_cluster
    from drl_cli.settings.fill import (
        few_workers_line,
        fill,
        with_absolute_paths,
        with_capacity,
        with_device,
        with_reference,
        with_short_warm_up,
        with_table,
    )

    resumed = resume(config, args) if config.resume is not None else None
    config = with_absolute_paths(resumed.config, resumed.folder) if resumed else config
    if lines := [*node_problems(config, args)]:
        raise UsageError(lines)
    share_cores(config.mode)
    cluster = None
    if config.ray.address and not config.debug.in_process:
        console.awaits(f"the cluster at {config.ray.address}")
        environment_spec(config)  # find errors of the environment here, which is faster than on the nodes
        cluster = join_cluster(config)
    nodes = cluster.nodes if cluster else ()
    few = None if resumed else few_workers_line(config, nodes)
    config = fill(with_weights(config, args), nodes)
    config, changes = (config, []) if resumed else with_short_warm_up(config, args)
    changes += [few] if few is not None else []
    with users_errors(config.outside_modules):
        spec, dataset = preflight_with_data(config, args)
        config, lines = with_device(config, spec, nodes, cluster.gpus if cluster else tuple)
        try_update(config, spec)
        if resumed is not None:
            check_identity(resumed.record.get("data"), dataset)
        if dataset is not None:
            config = with_reference(config, dataset)
        if config.data.reference == "auto" and not config.dry_run:
            from drl_cli.deploy.recording import with_measured_reference  # slow: imports gymnasium

            config, found = with_measured_reference(config, dataset, args)
            lines += found
        config = with_capacity(config, spec) if dataset is None else with_table(config, spec, dataset)
        lines += [] if resumed else data_advice(config)
        return config, [*changes, *lines], spec, resumed, cluster, dataset


def _train(
    config: Config,
    console: Console,
    signals: Signals,
    open_log: Callable[[Path], None],
    notes: Sequence[str],
    args: Sequence[str],
    began: float,
) -> dict[str, Any]:
    signals.begin_raising()  # nothing is to be saved yet
    config, changes, spec, resumed, cluster, dataset = _prepared(config, console, args)
    signals.raises = False  # `run` handles a signal from here on
    if config.dry_run:
        from drl_cli.runs.start_text import memory_text

        print("".join(f"{line}\n" for line in changes), end="")
        shapes = [f"{path} {column.shape}".strip() for path, column in leaves(spec.obs).items()]
        print(memory_text(config, spec))
        print(f"{config.env.name}: {', '.join(shapes)} observations, {spec.action.text} actions; all checks passed")
        return {"exit_code": DONE}
    from drl_cli.algos.lookup import load_algorithm
    from drl_cli.data.dataset import describe, spaces_of
    from drl_cli.deploy.formats import formats_of
    from drl_cli.run_folder.checkpoint import write_json
    from drl_cli.run_folder.run_json import description, make_folder, run_record
    from drl_cli.runs.start_text import start_text
    from drl_cli.runtime.run import run
    from drl_cli.settings.fill import as_saved

    folder, command = resumed.folder if resumed else make_folder(config), ["drl-train", *args]
    with claim_run(folder):
        begin_job(folder)
        with as_usage_error(OSError, prefix="the run's folder can't be written: ", exit_code=RESOURCES):
            record = resumed.cut_records(command) if resumed else run_record(config, folder, command)
            formats = formats_of(load_algorithm(config.algo.name).Policy)
            # which commands `end_text` may recommend
            record |= {"renders": config.has_env and spec.renders, "formats": list(formats)}
            if dataset is not None:
                record |= {"data": describe(dataset)}
                if not config.has_env:
                    write_json(folder / SPACES_FILE, spaces_of(dataset))
            write_config(folder, as_saved(config))
            write_json(folder / "run.json", record)
            open_log(folder / "train.log")
        title = f"{config.env.name} {config.algo_name} {config.mode} seed {config.seed}"
        console.open(folder)
        console.update(run_id=folder.name, title=title, awaits="")
        start = f"  from {'update' if config.is_offline else 'step'} {resumed.position:,}" if resumed else ""
        described = ["   ".join(f"{key}: {as_typed(value)}" for key, value in description(config).items() if value)]
        for line in (
            f"{title}  ->  {relative_path(folder)}{start}",
            *notes,
            *changes,
            *start_text(config, spec, dataset),
            *filter(None, described),
        ):
            console.line(line)
        checkpoint = resumed.checkpoint if resumed else None
        summary = run(config, spec, folder, record, began, console, signals, cluster=cluster, checkpoint=checkpoint)
    console.end(summary, end_text(summary, folder))
    return summary | {"folder": str(folder.absolute())}


def help_text(args: Sequence[str]) -> str:
    """Return the general help, or the help of the groups and keys in `args`. Raise UsageError for an unknown name.

    `algo=...` adds the keys of that algorithm. The help of a group is that of its chosen option if `args` choose one.
    """
    words = read_command(args).overrides
    chosen = {word.partition("=")[0]: word for word in words if "=" in word and word != "algo=auto"}
    topics = [chosen.get(word, word) if word in groups() else word for word in words if "=" not in word]
    algos = [word for key, word in chosen.items() if key == "algo" and word not in topics]
    lines = text(sections(topics)) if topics else overview()
    return "\n".join([*lines, "", *text(sections(algos))] if algos else lines)


def overview() -> list[str]:
    """Return usage, groups, top-level keys and exit codes."""
    examples = (
        "drl-train env=LunarLanderContinuous algo=sac mode=async stop.return=200",
        "drl-train env=Pendulum-v1 mode=single seed=1 total_env_steps=15000",
        "drl-train -m seed=0,1 algo.lr=3e-4,1e-3",
        "drl-train -m resume=latest                 what is left of that sweep",
    )
    return [
        "drl-train [key=value ...]        train; -m sweeps over comma-separated values, side by side",
        "",
        *(f"  {line}" for line in examples),
        "",
        "groups (group=option; any key in them: group.key=value)",
        *(f"  {group:<13} {', '.join(options(group))}" for group in groups() if group != "tuned"),
        f"  {'tuned':<13} {len(options('tuned'))} sets, of which ALGO-ENV is found by itself (none: leave it out)",
        "",
        "env also takes any Gymnasium id, or module:Id for an environment of your own; algo an installed algorithm",
        "or a module of your own (my_pkg.my_algo); network a class of your own (my_pkg.my_net:Class).",
        "--help GROUP has type, range, default and meaning of its keys; also --help algo.sac, --help algo.lr.",
        "drl-list keys has those of all.",
        "",
        "keys",
        *(f"  {line}" for line in (conf_dir() / "train.yaml").read_text().split("\n\n")[1].splitlines()),
        "  stop.return, stop.wall_s",
        "",
        "exit codes",
        *(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items()),
        "",
        f"All values and what they mean: {conf_dir()}",
        'Tab completion in bash: eval "$(drl-train -sc install=bash)"',
        "",
        "To begin: drl-train env=CartPole-v1 stop.return=475",
    ]


if __name__ == "__main__":
    main()

"""drl-list TOPIC: what there is, and what fits together. One function per topic; each gets the words after its name."""

import sys
from collections.abc import Callable, Sequence

from drl_cli.errors import UsageError, did_you_mean, fail, outlive_closed_pipe


def main() -> None:
    """The command."""
    outlive_closed_pipe()
    words = sys.argv[1:]
    if not words or words[0] in ("--help", "-h"):
        print(f"drl-list {' | '.join(TOPICS)}   what there is, and what fits together")
        return
    topic, *args = words
    try:
        if topic not in TOPICS:
            raise UsageError(f"no list '{topic}'.{did_you_mean(topic, TOPICS)}   lists: {', '.join(TOPICS)}")
        print("\n".join(TOPICS[topic](args)))
    except UsageError as error:
        fail(error)


def algos(args: Sequence[str]) -> list[str]:
    """Algorithms with their action spaces and modes."""
    from drl_cli.algos.lookup import NotAlgorithm, algorithms, installed, load_algorithm
    from drl_cli.settings.conf import conf_dir, options
    from drl_cli.utils.outside import ModuleRaised, NotFound

    no_options("algos", args)
    lines = []
    for name in [*algorithms(), *installed()]:
        try:
            module = load_algorithm(name)
        except (NotFound, NotAlgorithm, ModuleRaised) as error:  # an installed one: the others are listed all the same
            lines.append(f"{name:<8} can't be used here: {error}")
            continue
        title = next(iter((module.__doc__ or "").splitlines()), "")
        lines.append(f"{name:<8} {'/'.join(module.ACTIONS)} actions; {', '.join(module.MODES)}; {title}")
    for name in [name for name in options("algo") if name not in algorithms()]:  # yaml alone: other options
        text = (conf_dir() / "algo" / f"{name}.yaml").read_text().splitlines()
        comment = next(line for line in text if not line.startswith("# @package"))
        lines.append(f"{name:<8} {comment.removeprefix('# ')}")
    return lines


def envs(args: Sequence[str]) -> list[str]:
    """Environments, and which of them run here."""
    from drl_cli.cli import list_envs

    return list_envs.answer(args)


def keys(args: Sequence[str]) -> list[str]:
    """Keys of the config: type, default, range, meaning."""
    from drl_cli.settings import keys

    return keys.answer(args)


def modes(args: Sequence[str]) -> list[str]:
    """Modes, and what each is for."""
    from drl_cli.settings.conf import conf_dir, options

    no_options("modes", args)
    lines = []
    for name in options("mode"):
        comment = (conf_dir() / "mode" / f"{name}.yaml").read_text().splitlines()[1]
        lines.append(f"{name:<8} {comment.removeprefix('# ')}")
    return lines


def runs(args: Sequence[str]) -> list[str]:
    """Runs, newest first."""
    from drl_cli.cli.list_runs import run_lines

    return run_lines(args)


def sweeps(args: Sequence[str]) -> list[str]:
    """Sweeps, newest first."""
    from drl_cli.cli.list_runs import sweep_lines

    return sweep_lines(args)


TOPICS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "algos": algos,
    "envs": envs,
    "modes": modes,
    "keys": keys,
    "runs": runs,
    "sweeps": sweeps,
}


def no_options(topic: str, args: Sequence[str]) -> None:
    """Raise UsageError where a topic that takes no options got some."""
    if args:
        raise UsageError(f"drl-list {topic} takes no options, got {' '.join(args)}")


if __name__ == "__main__":
    main()

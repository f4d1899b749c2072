"""drl-list: algorithms, environments, modes and runs, and what fits together."""

import sys
from collections.abc import Callable

from drl_cli.algos.lookup import NotAlgorithm, algorithms, installed, load_algorithm
from drl_cli.cli import keys, list_envs
from drl_cli.cli.check import conf_dir, options
from drl_cli.cli.errors import UsageError, did_you_mean, fail
from drl_cli.cli.resume import is_claimed
from drl_cli.cli.runs import all_runs, read_json
from drl_cli.utils.outside import ModuleRaised, NotFound


def main() -> None:
    """The command."""
    if sys.argv[1:2] == ["keys"]:
        try:
            print("\n".join(keys.answer(sys.argv[2:])))
        except UsageError as error:
            fail(error)
        return
    names = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    if {"--help", "-h"} & set(sys.argv[1:]) or not names:
        print(f"drl-list {' | '.join(TOPICS)}   what there is, and what fits together")
        return
    for name in names:
        if name not in TOPICS:
            fail(UsageError(f"no list '{name}'.{did_you_mean(name, TOPICS)}   lists: {', '.join(TOPICS)}"))
        print("\n".join(TOPICS[name]()))


def _algos() -> list[str]:
    lines = []
    for name in [*algorithms(), *installed()]:
        try:
            module = load_algorithm(name)
        except (NotFound, NotAlgorithm, ModuleRaised) as error:  # an installed one: the others are listed all the same
            lines.append(f"{name:<8} can't be used here: {error}")
            continue
        title = next(iter((module.__doc__ or "").splitlines()), "")
        lines.append(f"{name:<8} {'/'.join(module.ACTIONS)} actions; {', '.join(module.MODES)}; {title}")
    return lines


def _modes() -> list[str]:
    lines = []
    for name in options("mode"):
        comment = (conf_dir() / "mode" / f"{name}.yaml").read_text().splitlines()[1]
        lines.append(f"{name:<8} {comment.removeprefix('# ')}")
    return lines


def _runs() -> list[str]:
    lines = []
    for folder in all_runs("outputs"):
        run, summary = read_json(folder / "run.json"), read_json(folder / "summary.json")
        best = summary.get("best_return")
        score = "-" if best is None else f"{best:.1f}"
        status = run.get("status")
        if status == "running" and not is_claimed(folder):
            status = "killed"
        lines.append(f"{folder.name}  {folder.parent.parent.name} {folder.parent.name}  {status}  best {score}")
    return lines


TOPICS: dict[str, Callable[[], list[str]]] = {
    "algos": _algos,
    "envs": lambda: list_envs.answer([]),
    "modes": _modes,
    "runs": _runs,
    "keys": lambda: keys.answer([]),
}


if __name__ == "__main__":
    main()

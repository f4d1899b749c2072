"""drl-list runs."""

from collections.abc import Sequence

from drl_cli.cli.list import no_options
from drl_cli.cli.resume import is_claimed
from drl_cli.cli.runs import all_runs, read_json


def run_lines(args: Sequence[str]) -> list[str]:
    """One line per run."""
    no_options("runs", args)
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

"""The text printed at the end of a run: the results and useful next commands."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drl_cli.errors import USER_CODE
from drl_cli.metrics.status import clock
from drl_cli.run_folder import SPACES_FILE
from drl_cli.run_folder.saved_run import read_json
from drl_cli.runs.text_table import number
from drl_cli.utils.run_clock import UNIT_TEXTS, Unit
from drl_cli.utils.shown import relative_path, score_text


def end_text(summary: Mapping[str, Any], folder: Path) -> str:
    """Return the results in summary.json, and commands that evaluate, export or resume the run."""
    is_offline = summary.get("mode") == "offline"
    env_steps = "" if is_offline else f"{number(summary.get('env_steps'))} env steps, "
    lines = [
        f"{summary['status']}: best return {score_text(summary.get('best_return'))}, "
        f"last {score_text(summary.get('final_return'))}, {env_steps}"
        f"{number(summary.get('opt_steps'))} updates, {number(summary.get('wall_s'))} s{_speed(summary)}"
    ]
    if (reached := summary.get("time_to_return_s")) is not None:
        at = "" if is_offline else f"at step {summary['time_to_return_env_steps']:,}, "
        lines.append(f"stop.return reached {at}after {clock(reached)}")
    lines += [text for text in (summary.get("doubt"),) if text]
    lines += saved_text(summary, folder)
    return "\n".join([*lines, *next_lines(_commands(summary, folder))])


def next_lines(commands: Sequence[str]) -> list[str]:
    """Return the lines that recommend these commands to the user."""
    return [f"{'      ' if i else 'next: '}{command}" for i, command in enumerate(commands)]


def _commands(summary: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the useful next commands, of which each works for this run. run.json has the facts about the run."""
    commands, run, facts = [], relative_path(folder), read_json(folder / "run.json")
    would_fail_again = summary.get("exit_code") == USER_CODE  # the user's code has to change first
    if summary["status"] != "done" and summary.get("checkpoint_last") and not would_fail_again:
        commands.append(f"drl-train resume={run}")
    has_env = not (folder / SPACES_FILE).exists()
    if summary.get("checkpoint_best" if has_env else "checkpoint_last"):
        if has_env:
            commands.append(f"drl-eval run={run} episodes=100")
        if facts.get("renders", True) and importlib.util.find_spec("PIL") is not None:  # drl-play writes with Pillow
            commands.append(f"drl-play run={run}")
        if formats := facts.get("formats", ["numpy"]):
            commands.append(f"drl-export run={run}{'' if 'numpy' in formats else f' format={formats[0]}'}")
    if any(folder.glob("events.out.tfevents.*")):
        commands.append(f"tensorboard --logdir {relative_path(folder.parent)}")
    return commands


def saved_text(summary: Mapping[str, Any], folder: Path) -> list[str]:
    """Return a line with the step of the last checkpoint if the run has taken more steps, otherwise []."""
    unit: Unit = "opt_steps" if summary.get("mode") == "offline" else "env_steps"
    if not (position := summary.get(unit)):
        return []
    names = [path.name for path in (folder / "checkpoints").glob("step_*")]
    saved = max((int(name.split("_")[1].split("-")[0]) for name in names), default=None)
    if saved is None:
        return [f"nothing was saved of {position:,} {UNIT_TEXTS[unit]}"]
    return [f"last saved: step {saved:,} of {position:,}"] if saved < position else []


def _speed(summary: Mapping[str, Any]) -> str:
    """Return the mean speed over the time in training, which has no start and no evaluation, or '' if it is unknown."""
    rates = [summary.get(name) for name in ("env_steps_per_s", "opt_steps_per_s")]
    is_offline, seconds = summary.get("mode") == "offline", number(summary.get("training_s"), ",.1f")
    if not rates[1 if is_offline else 0]:
        return ""
    env = "" if is_offline else f"{number(rates[0])} env/s, "
    return f" ({env}{number(rates[1])} updates/s in {seconds} s of training)"

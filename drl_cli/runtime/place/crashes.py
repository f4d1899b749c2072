"""Why the process of a role crashed. At the crash, Python writes a traceback to a file beside the role's log."""

import faulthandler
import re
import signal
from contextlib import suppress
from pathlib import Path

from drl_cli.utils.files import regular
from drl_cli.utils.outside import innermost_last, place

SIGNALS = {
    "Aborted": signal.SIGABRT,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Floating": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
"""The signals of crashes, each with the beginning of Python's name for it."""
ENV_CALL = re.compile(r'/drl_cli/envs/|in step\n.*/drl_cli/runtime/roles/evaluator\.py"')
"""Matches a traceback of a call of the environment."""

_files: dict[str, tuple[Path, str]] = {}  # the crash file and the environment of each Ray actor by id


def crash_file(log_file: str) -> Path:
    """Return the file beside a role's log file."""
    return Path(log_file).with_suffix(".crash")


def write_crashes(path: Path) -> None:
    """Have Python write a traceback to the file if this process crashes. Do nothing if the file can't be written."""
    with suppress(OSError):
        faulthandler.enable(open(path, "w", opener=regular), all_threads=False)  # noqa: SIM115


def watch_actor(actor: str, path: Path, env: str) -> None:
    """Remember the crash file of an actor by id, and its environment."""
    _files[actor] = path, env


def crash(actor: str | None) -> str | None:
    """Return why an actor crashed. Return None if it was killed, has exited, or was on another node."""
    path, env = _files.get(actor or "", (None, ""))
    try:
        text = path.read_text(errors="replace") if path is not None else ""
    except OSError:
        return None
    name = text.partition("\n")[0].removeprefix("Fatal Python error: ")
    if not name:
        return None
    name = next((f"{number.name} ({name})" for known, number in SIGNALS.items() if name.startswith(known)), name)
    subject = f"{env} ended its process" if ENV_CALL.search(text) else "its process ended"
    return f"{subject} by {name}{place(innermost_last(text))}"

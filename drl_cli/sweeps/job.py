"""Job: one training of a sweep, and what is known of it from its files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from drl_cli.errors import DONE, RUN_STATUS
from drl_cli.runs.curve import Curve
from drl_cli.runs.run import RUN_LOCK, Run, read_json
from drl_cli.utils.locks import is_locked

Status = Literal["waiting", "running", "done", "failed", "diverged", "interrupted", "killed"]

ENDED = ("done", "failed", "diverged")  # what run.json says of a run that was not ended from outside


@dataclass(eq=False)
class Job:
    """`overrides` are its part of the command line, `differs` those that not all jobs have.

    `exit_code` is None until its process has ended; it is negative where a signal ended the process. `is_running` is
    what the launcher has; it `is_queued` while its process waits for room on a cluster. A run that ended before `goal`
    environment steps is not done; it goes on with these `changes` of its config.
    """

    number: int
    overrides: list[str]
    differs: dict[str, str]
    exit_code: int | None = None
    run: Path | None = None
    is_running: bool = False
    is_queued: bool = False
    goal: int = 0
    changes: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """`killed`: its process was ended by a signal that nobody can catch, or with the sweep's."""
        if self.is_running:
            return "waiting" if self.is_queued else "running"
        if self.exit_code is None:
            has_ended = self.run is None or Run(self.run).status in ENDED
            return "waiting" if has_ended else "killed"
        return "killed" if self.exit_code < 0 else RUN_STATUS.get(self.exit_code, "failed")

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.exit_code == DONE

    def look(self, file: Path) -> None:
        """Take from `file` which run it is, and from the run's folder how it ended."""
        if (run := read_json(file).get("run")) is not None:
            self.run = Path(run)
        if self.run is not None and not self.is_running and not is_locked(self.run / RUN_LOCK):
            summary = read_json(self.run / "summary.json")
            code = summary.get("exit_code", self.exit_code)
            self.exit_code = None if code == DONE and summary.get("env_steps", 0) < self.goal else code

    @property
    def has_begun(self) -> bool:
        """Whether it has a run to go on with."""
        return self.run is not None and (self.run / "config.yaml").is_file()

    def arguments(self, flags: Sequence[str]) -> list[str]:
        """Of drl-train: to go on with its run, which brings its config, where it has one; else to start it."""
        if self.has_begun:
            return [f"resume='{self.run}'", *self.changes]
        return [*flags, *self.overrides]

    def progress(self) -> dict[str, Any]:
        """What its run's files say: `env_steps`, `wall_s`, `best_return`, `final_return`; what is not known is None."""
        run = Run(self.run) if self.run is not None else None
        return {
            "env_steps": (run.env_steps or None) if run else None,
            "wall_s": (run.wall_s or None) if run else None,
            "best_return": run.best if run else None,
            "final_return": run.final if run else None,
        }

    @property
    def curve(self) -> Curve:
        """The evaluations so far."""
        return Run(self.run).curve if self.run is not None else Curve(*np.zeros((3, 0)))

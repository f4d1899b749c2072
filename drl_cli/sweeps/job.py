"""Job: one training run of a sweep, with the status and results read from the run's files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from drl_cli.errors import DONE, RUN_STATUS
from drl_cli.optim.schedules import Unit
from drl_cli.runs.curve import Curve
from drl_cli.runs.run import RUN_LOCK, Run, read_json
from drl_cli.runs.table import steps
from drl_cli.settings.command_line import path_word
from drl_cli.utils.files import is_locked

Status = Literal["waiting", "running", "done", "failed", "diverged", "interrupted", "killed"]

NO_RUN = Path(os.devnull)  # a folder without files
ENDED = ("done", "failed", "diverged")  # statuses in run.json of a run that ended by itself


@dataclass(eq=False)
class Job:
    """One training run of a sweep. The run is done after `goal` environment steps. A resume applies `changes`."""

    number: int
    overrides: list[str]
    differs: dict[str, str]  # the overrides that not all jobs have
    exit_code: int | None = None  # negative if a signal ended the process
    run: Path | None = None
    is_running: bool = False
    is_queued: bool = False  # the process waits for free resources of a cluster
    goal: int = 0
    changes: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """The status of the job. It is "killed" if a signal ended the job's process or the sweep's process."""
        if self.is_running:
            return "waiting" if self.is_queued else "running"
        if self.exit_code is None:
            return "waiting" if self.run is None or Run(self.run).status in ENDED else "killed"
        return "killed" if self.exit_code < 0 else RUN_STATUS.get(self.exit_code, "failed")

    @property
    def is_done(self) -> bool:
        return self.exit_code == DONE

    @property
    def has_begun(self) -> bool:
        """Whether the job has a run that can be resumed."""
        return self.run is not None and (self.run / "config.yaml").is_file()

    @property
    def label(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.differs.items())

    def update(self, file: Path) -> None:
        """Read the path of the run from `file`, and, if no process trains the run, the exit code from its summary."""
        if (run := read_json(file).get("run")) is not None:
            self.run = Path(run)
        if self.run is not None and not self.is_running and not is_locked(self.run / RUN_LOCK):
            summary = read_json(self.run / "summary.json")
            code = summary.get("exit_code", self.exit_code)
            self.exit_code = None if code == DONE and summary.get("env_steps", 0) < self.goal else code

    def arguments(self, flags: Sequence[str]) -> list[str]:
        """Return the drl-train arguments that start or resume the job's run. A resumed run uses its saved config."""
        if self.run is None or not self.has_begun:
            return [*flags, *self.overrides]
        return [path_word("resume", self.run), *self.changes]

    def results(self) -> dict[str, Any]:
        """Return the counts, `wall_s`, `best_return` and `final_return` of the run so far. Unknown values are None."""
        run = Run(self.run or NO_RUN)
        counts = {"env_steps": run.env_steps or None, "opt_steps": run.opt_steps or None}
        return {**counts, "wall_s": run.wall_s or None, "best_return": run.best, "final_return": run.final}

    def steps_text(self, head: Unit | None = "env_steps") -> str:
        """Return the position of the run's clock for a column that is headed by the unit `head`; name another unit."""
        run = Run(self.run or NO_RUN)
        return steps(run.position or None, run.unit, head)

    @property
    def curve(self) -> Curve:
        return Run(self.run or NO_RUN).curve

"""Job: one training of a sweep, and what is known of it from its files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from drl_cli.results.run import RUN_LOCK, Run, read_json
from drl_cli.utils.locks import is_locked

Status = Literal["waiting", "running", "done", "failed", "diverged", "interrupted", "killed"]

STATUS: dict[int, Status] = {0: "done", 5: "diverged", 75: "interrupted", 130: "interrupted"}


@dataclass(eq=False)
class Job:
    """`overrides` are its part of the command line, `differs` those that not all jobs have.

    `exit_code` is None until its process has ended; it is negative where a signal ended the process.
    """

    number: int
    overrides: list[str]
    differs: dict[str, str]
    exit_code: int | None = None
    run: Path | None = None
    is_running: bool = False

    @property
    def status(self) -> Status:
        """`killed`: its process was ended by a signal that nobody can catch, or with the sweep's."""
        if self.is_running:
            return "running"
        if self.exit_code is None:
            return "killed" if self.run is not None else "waiting"
        return "killed" if self.exit_code < 0 else STATUS.get(self.exit_code, "failed")

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.exit_code == 0

    def look(self, file: Path) -> None:
        """Take from `file` which run it is, and from the run's folder how it ended."""
        if (run := read_json(file).get("run")) is not None:
            self.run = Path(run)
        if self.run is not None and not self.is_running and not is_locked(self.run / RUN_LOCK):
            self.exit_code = read_json(self.run / "summary.json").get("exit_code", self.exit_code)

    def arguments(self, flags: Sequence[str]) -> list[str]:
        """Of drl-train: to go on with its run, which brings its config, where it has one; else to start it."""
        if self.run is not None and (self.run / "config.yaml").is_file():
            return [f"resume='{self.run}'"]
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
    def returns(self) -> list[float]:
        """The mean return of each evaluation so far."""
        return Run(self.run).curve.returns.tolist() if self.run is not None else []

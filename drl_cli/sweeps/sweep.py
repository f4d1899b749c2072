"""A sweep: its folder, and its jobs, each with the status and results of its run."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from drl_cli.config.sections import HpoConfig
from drl_cli.errors import CHECKPOINT, DONE, RUN_STATUS, UsageError
from drl_cli.run_folder import RUN_LOCK, SWEEP_FILE
from drl_cli.run_folder.checkpoint import write_json
from drl_cli.run_folder.evaluations import Curve
from drl_cli.run_folder.saved_run import Run, read_json
from drl_cli.runs.text_table import steps
from drl_cli.settings.command_line import path_word
from drl_cli.settings.space import Space, domain
from drl_cli.settings.trust import remember
from drl_cli.utils.clock import stamp_after
from drl_cli.utils.files import is_locked, write_csv
from drl_cli.utils.run_clock import Unit

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


COLUMNS = ("status", "exit_code", "best_return", "final_return", "env_steps", "opt_steps", "wall_s", "run")


class Sweep:
    """The folder <output_dir>/multirun/<time>/ with sweep.json, sweep.csv, and each job's <number>.json and .log."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.folder, self.flags = folder, list(flags)  # flags of drl-train, for every job
        self.jobs: list[Job] = []
        self._named: Collection[str] = ()

    @classmethod
    def open(cls, folder: Path) -> "Sweep":
        """Return the sweep in this folder with the current status of its jobs. Raise UsageError if it is damaged."""
        content = read_json(folder / SWEEP_FILE)
        with check_readable(folder / SWEEP_FILE):
            sweep = cls(folder, content["flags"])
            jobs = sweep.add([record["overrides"] for record in content["jobs"]])
            for job, record in zip(jobs, content["jobs"], strict=True):
                job.exit_code, job.run = record["exit_code"], Path(record["run"]) if record["run"] else None
                job.update(sweep.file(job))
        return sweep

    def make_folder(self, output_dir: str) -> None:
        parent = Path(output_dir).absolute() / "multirun"
        while True:
            self.folder = parent / stamp_after(path.name for path in parent.glob("*"))
            with suppress(FileExistsError):  # another sweep started in the same microsecond
                self.folder.mkdir(parents=True)
                break
        self.save()

    def add(self, jobs: Sequence[Sequence[str]]) -> list[Job]:
        """Add a job for each new set of overrides. Return the new jobs."""
        known = {frozenset(job.overrides) for job in self.jobs}
        unique = {frozenset(overrides): list(overrides) for overrides in jobs}
        new = [overrides for key, overrides in unique.items() if key not in known]
        added = [Job(number, overrides, {}) for number, overrides in enumerate(new, len(self.jobs) + 1)]
        self.jobs += added
        self.update_labels()
        return added

    def name_keys(self, keys: Collection[str]) -> None:
        """Keep these keys in the label of each job, even if all jobs have the same value so far."""
        self._named = keys
        self.update_labels()

    def update_labels(self) -> None:
        """Set `differs` of each job to the job's overrides that not all jobs have, or whose keys are named."""
        values = [dict(override.partition("=")[::2] for override in job.overrides) for job in self.jobs]
        shared = set.intersection(*(set(own.items()) for own in values)) if values else set()
        for job, own in zip(self.jobs, values, strict=True):
            job.differs = {key: value for key, value in own.items() if key in self._named or (key, value) not in shared}

    @property
    def differing_keys(self) -> list[str]:
        return list(dict.fromkeys(key for job in self.jobs for key in job.differs))

    def file(self, job: Job) -> Path:
        """Return the path of the file into which the job writes the path of its run."""
        return self.folder / f"{job.number}.json"

    def log(self, job: Job) -> Path:
        return self.folder / f"{job.number}.log"

    def save(self) -> None:
        jobs = [
            {"overrides": job.overrides, "exit_code": job.exit_code, "run": str(job.run) if job.run else None}
            for job in self.jobs
        ]
        content = {"flags": self.flags, "jobs": jobs}
        write_json(self.folder / SWEEP_FILE, content)
        remember(self.folder / SWEEP_FILE, {"words": content})
        keys, rows = self.differing_keys, []
        for job in self.jobs:
            values = {**job.results(), "status": job.status, "exit_code": job.exit_code, "run": job.run}
            rows.append([job.number, *(job.differs.get(key) for key in keys), *(values[name] for name in COLUMNS)])
        write_csv(self.folder / "sweep.csv", ["job", *keys, *COLUMNS], rows)


@contextmanager
def check_readable(path: Path) -> Iterator[None]:
    """In this context, convert errors from parsing the record at `path` to UsageError (exit 8)."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"resume: {path} is missing or damaged", CHECKPOINT) from error


@dataclass
class SearchRecord:
    """The fields that study.json and population.json share. `fixed` are the overrides of every job."""

    folder: Path
    space: Space
    fixed: list[str]
    hpo: HpoConfig
    seed: int

    FILE: ClassVar[str]

    @classmethod
    def read(cls, folder: Path) -> dict[str, Any]:
        """Return the constructor's arguments from the record. Fields of the subclass are still plain json."""
        content = read_json(folder / cls.FILE)
        space = {key: domain(values) for key, values in content["space"].items()}
        return content | {"folder": folder, "space": space, "hpo": HpoConfig(**content["hpo"])}

    def save(self) -> None:
        content = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_json(self.folder / self.FILE, content)
        remember(self.folder / self.FILE, {"words": self.fixed})

"""Sweep: the jobs of a command, in a folder that says at any moment how each stands."""

import csv
import datetime
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from drl_cli.runs.run import SWEEP_FILE, read_json
from drl_cli.sweeps.job import Job

COLUMNS = ("status", "exit_code", "best_return", "final_return", "env_steps", "wall_s", "run")


class Sweep:
    """<output_dir>/multirun/<time>/ with sweep.json, sweep.csv and, for each job, <number>.json and <number>.log.

    `flags` are those of drl-train, for every job.

    A job's json file is written by the job: the folder of its run. All that is known is there before a job starts, so
    that a sweep of which every process was killed can go on.
    """

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.folder, self.flags = folder, list(flags)
        self.jobs: list[Job] = []

    @classmethod
    def open(cls, folder: Path) -> "Sweep":
        """One that exists, its jobs as they are now; raises ValueError when it is none."""
        content = read_json(folder / SWEEP_FILE)
        if "jobs" not in content:
            raise ValueError(f"{folder} is no sweep: it has no readable {SWEEP_FILE}")
        sweep = cls(folder, content["flags"])
        for job, known in zip(sweep.add([job["overrides"] for job in content["jobs"]]), content["jobs"], strict=True):
            job.exit_code, job.run = known["exit_code"], Path(known["run"]) if known["run"] else None
            job.look(sweep.file(job))
        return sweep

    def make_folder(self, output_dir: str) -> None:
        """A new one."""
        parent = Path(output_dir).absolute() / "multirun"
        while True:
            self.folder = parent / datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
            with suppress(FileExistsError):  # another sweep took this microsecond
                self.folder.mkdir(parents=True)
                break
        self.save()

    def add(self, jobs: Sequence[Sequence[str]]) -> list[Job]:
        """Those of these jobs that it does not have yet: a job is known by its overrides, in whatever order."""
        known = {frozenset(job.overrides) for job in self.jobs}
        new = {frozenset(overrides): list(overrides) for overrides in jobs}
        added = [
            Job(number, overrides, {})
            for number, overrides in enumerate(
                (overrides for key, overrides in new.items() if key not in known), len(self.jobs) + 1
            )
        ]
        self.jobs += added
        tell_apart(self.jobs)
        return added

    def file(self, job: Job) -> Path:
        """Where the job says which run it is."""
        return self.folder / f"{job.number}.json"

    def log(self, job: Job) -> Path:
        """What the job prints."""
        return self.folder / f"{job.number}.log"

    def save(self) -> None:
        """sweep.json and sweep.csv, each in one piece."""
        jobs = [
            {"overrides": job.overrides, "exit_code": job.exit_code, "run": str(job.run) if job.run else None}
            for job in self.jobs
        ]
        content = json.dumps({"flags": self.flags, "jobs": jobs}, indent=1)
        with whole(self.folder / SWEEP_FILE) as path:
            path.write_text(content)
        with whole(self.folder / "sweep.csv") as path, path.open("w", newline="") as file:
            keys = list(dict.fromkeys(key for job in self.jobs for key in job.differs))
            writer = csv.writer(file)
            writer.writerow(["job", *keys, *COLUMNS])
            for job in self.jobs:
                known = {**job.progress(), "status": job.status, "exit_code": job.exit_code, "run": job.run}
                values = [known[column] for column in COLUMNS]
                writer.writerow([job.number, *(job.differs.get(key) for key in keys), *values])


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of `path` in the end: nobody ever finds a part of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    yield draft
    os.replace(draft, path)


def tell_apart(jobs: Sequence[Job]) -> None:
    """Set what differs: the overrides that not all of these jobs have."""
    pairs = [dict(override.partition("=")[::2] for override in job.overrides) for job in jobs]
    shared = {key for key in pairs[0] if all(pair.get(key) == pairs[0][key] for pair in pairs)} if pairs else set()
    for job, pair in zip(jobs, pairs, strict=True):
        job.differs = {key: value for key, value in pair.items() if key not in shared}

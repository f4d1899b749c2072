"""Rounds: has the members of a population train as the jobs of a sweep, one round after the other."""

from collections import Counter

import numpy as np

from drl_cli.runs.run import Run
from drl_cli.runtime.files.checkpoint import adopt
from drl_cli.settings.space import typed
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.population import Population
from drl_cli.sweeps.sweep import Sweep, tell_apart

MOST_RESTARTS = 3
"""Of a member whose process was killed, in a round; then it has failed."""


class Rounds:
    """A member is a job, and one run, that goes on from round to round."""

    def __init__(self, sweep: Sweep, population: Population) -> None:
        self.sweep, self.population = sweep, population
        self._restarts: Counter[Job] = Counter()

    def begin(self) -> list[Job]:
        """Copy the checkpoints that this round begins with, unless that was done; the jobs that are not done with it.

        Raises OSError where the disk does not take them.
        """
        population = self.population
        if not self.sweep.jobs:
            self.sweep.add([self._overrides(member) for member in range(len(population.turns))])
        if not population.is_ready:
            for member, turn in enumerate(population.turns):
                if turn.source is not None:
                    self._copy(self.sweep.jobs[turn.source], self.sweep.jobs[member])
            population.is_ready = True
            population.save()
        for member, job in enumerate(self.sweep.jobs):
            job.overrides, job.goal, job.exit_code = self._overrides(member), population.goal, None
            job.changes = ["confirm=true", *typed(population.turns[member].values), f"total_env_steps={job.goal}"]
            job.look(self.sweep.file(job))
        tell_apart(self.sweep.jobs)
        self.sweep.save()
        self._restarts.clear()
        return [job for job in self.sweep.jobs if not job.is_done]

    def again(self) -> list[Job]:
        """Members whose process was ended from outside, which go on from their last checkpoints."""
        ended = [job for job in self.sweep.jobs if job.status in ("killed", "interrupted")]
        jobs = [job for job in ended if self._restarts[job] < MOST_RESTARTS]
        self._restarts.update(jobs)
        return jobs

    def end(self) -> None:
        """Take the scores."""
        for job, turn in zip(self.sweep.jobs, self.population.turns, strict=True):
            run = Run(job.run) if job.run is not None and job.is_done else None
            curve = run.curve.returns[run.curve.env_steps > turn.start] if run else np.zeros(0)
            score = float(np.mean(curve[-self.population.hpo.evaluations :])) if len(curve) else np.nan
            turn.env_steps = run.env_steps if run else turn.start
            turn.state, turn.score = ("done", score) if np.isfinite(score) else ("failed", None)
        self.population.save()

    def _overrides(self, member: int) -> list[str]:
        population = self.population
        values = typed(population.turns[member].values)
        own = [f"seed={population.seed + member}", f"total_env_steps={population.goal}"]
        return [*population.fixed, *values, *own]

    def _copy(self, source: Job, job: Job) -> None:
        """The source's last checkpoint becomes the job's, whose own end, if it had one, is forgotten."""
        assert source.run is not None
        assert job.run is not None
        adopt(job.run / "checkpoints", (source.run / "checkpoints" / "last").resolve(strict=True))
        (job.run / "summary.json").unlink(missing_ok=True)

"""Search: turns the trials of a study into jobs of a sweep, and their returns into objectives."""

from collections.abc import Callable

import numpy as np

from drl_cli.settings.space import typed
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.study import Study, Trial
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.clock import now

LOOK_S = 1.0
FRESH = 1000
"""Seeds of the runs at the end begin so much above those of the trials."""


class Search:
    """A trial is a job for each seed; all trials have the same seeds. `stop` ends the jobs of one that is pruned.

    Trials are compared where they have made as many evaluation periods of `eval_period` environment steps: a run may
    leave evaluations out.
    """

    def __init__(self, sweep: Sweep, study: Study, eval_period: int) -> None:
        self.sweep, self.study, self.eval_period = sweep, study, eval_period
        self.stop: Callable[[Job], None] = lambda job: None
        self._next = 0.0

    def left(self) -> list[Job]:
        """The jobs of trials that had not ended when a search was."""
        trials = [trial for trial in self.study.trials if trial.state == "running"]
        for trial in trials:
            trial.jobs = [job.number for job in self._jobs(trial)]
            self._end_if_over(trial)
        return [job for trial in trials if trial.state == "running" for job in self._jobs(trial) if not job.is_done]

    def more(self) -> list[Job]:
        """The jobs of a new trial; none when there have been enough."""
        while len(self.study.trials) < self.study.hpo.trials:
            trial = self.study.propose()
            jobs = self._jobs(trial)
            self.sweep.save()
            trial.jobs = [job.number for job in jobs]
            self.study.save()
            if waiting := [job for job in jobs if job.exit_code is None and not job.is_running]:
                return waiting
            self._end_if_over(trial)  # these values have been tried
        return []

    def ended(self, job: Job) -> None:
        """A job has started or ended: the trial may have ended, too."""
        for trial in self.study.trials:
            if trial.state == "running" and job.number in trial.jobs and not job.is_running:
                self._end_if_over(trial)

    def look(self) -> None:
        """Take the evaluations that have been made, every second; end the trials that are behind."""
        if now() < self._next:
            return
        self._next = now() + LOOK_S
        for trial in self.study.trials:
            jobs = self._jobs(trial) if trial.state == "running" else []
            if any(job.is_running for job in jobs) and self.study.report(trial, self._curve(jobs)):
                self.study.end(trial, "pruned")
                for job in jobs:
                    self.stop(job)

    def fresh(self, trial: Trial | None) -> list[Job]:
        """The jobs of these values, or of the defaults, with seeds that no trial had."""
        values = typed(trial.values) if trial else []
        seeds = [self.study.seed + FRESH + i for i in range(self.study.hpo.fresh_seeds)]
        return [self._job([*self.study.fixed, *values, f"seed={seed}"]) for seed in seeds]

    def objective(self, job: Job) -> float | None:
        """The mean return of a job's last evaluations."""
        found = job.curve.returns[-self.study.hpo.evaluations :]
        return float(np.mean(found)) if len(found) else None

    def _jobs(self, trial: Trial) -> list[Job]:
        """One for each seed."""
        if trial.jobs:
            return [self.sweep.jobs[number - 1] for number in trial.jobs]
        seeds = [self.study.seed + i for i in range(self.study.hpo.seeds)]
        return [self._job([*self.study.fixed, *typed(trial.values), f"seed={seed}"]) for seed in seeds]

    def _job(self, overrides: list[str]) -> Job:
        """Of these overrides: one that there is, or a new one."""
        self.sweep.add([overrides])
        return next(job for job in self.sweep.jobs if set(job.overrides) == set(overrides))

    def _curve(self, jobs: list[Job]) -> dict[int, float]:
        """The mean over a trial's runs of their returns, by evaluation periods, where all have been evaluated."""
        curves = []
        for curve in (job.curve for job in jobs):
            periods, first = np.unique(curve.env_steps // self.eval_period, return_index=True)
            curves.append(dict(zip(periods.astype(int).tolist(), curve.returns[first].tolist(), strict=True)))
        return {at: float(np.mean([curve[at] for curve in curves])) for at in curves[0] if all(at in c for c in curves)}

    def _end_if_over(self, trial: Trial) -> None:
        """Where all its jobs are done, or one has failed; one that was interrupted or killed can go on."""
        jobs = self._jobs(trial)
        self.study.report(trial, self._curve(jobs))
        values = [self.objective(job) for job in jobs]
        if any(job.status in ("failed", "diverged") for job in jobs):
            self.study.end(trial, "failed")
        elif all(job.is_done for job in jobs):
            known = [value for value in values if value is not None]
            self.study.end(trial, *(("done", float(np.mean(known))) if len(known) == len(values) else ("failed", None)))

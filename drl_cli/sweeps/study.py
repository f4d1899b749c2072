"""The trials of a search and their jobs. study.json records the trials; Optuna proposes and prunes trials."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from drl_cli.config.sections import HpoConfig
from drl_cli.settings.space import Value, typed
from drl_cli.sweeps.sweep import Job, SearchRecord, Sweep, check_readable
from drl_cli.utils.clock import now

State = Literal["running", "done", "pruned", "failed"]

LOOK_S = 1.0
FRESH = 1000
"""The first seed of the final test is the search's seed plus FRESH."""
MIN_TRIALS = 8  # with fewer finished trials, importances would not be reliable


@dataclass(eq=False)
class Trial:
    """Values that Optuna proposed, with the jobs that train with them, and the result."""

    values: dict[str, Value]
    jobs: list[int] = field(default_factory=list)  # the jobs' numbers in the sweep
    state: State = "running"
    objective: float | None = None
    curve: dict[int, float] = field(default_factory=dict)  # mean return by evaluation period


@dataclass
class Study(SearchRecord):
    """The trials of a search. Optuna keeps no file, so a resumed search reports all trials to Optuna again."""

    FILE: ClassVar = "study.json"

    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optuna: Any = None
        self._optuna_trials: dict[Trial, Any] = {}

    @classmethod
    def open(cls, folder: Path) -> "Study":
        """Return the study in this folder. Raise UsageError (exit 8) if it is missing or damaged."""
        with check_readable(folder / cls.FILE):
            content = cls.read(folder)
            study = cls(**content | {"trials": [Trial(**trial) for trial in content["trials"]]})
            for trial in study.trials:
                trial.curve = {int(period): mean for period, mean in trial.curve.items()}  # in json, keys are text
        return study

    def propose(self) -> Trial:
        proposed = self._study().ask({key: domain.distribution() for key, domain in self.space.items()})
        trial = Trial(dict(proposed.params))
        self._optuna_trials[trial] = proposed
        self.trials.append(trial)
        return trial

    def report(self, trial: Trial, curve: dict[int, float]) -> bool:
        """Report the trial's mean returns by evaluation period to Optuna. Return whether to prune the trial."""
        optuna_trial = self._optuna_trial(trial)
        for period in sorted(curve.keys() - trial.curve.keys()):
            optuna_trial.report(curve[period], period)
        trial.curve = curve
        return self.hpo.pruner != "none" and bool(optuna_trial.should_prune())

    def end(self, trial: Trial, state: State, objective: float | None = None) -> None:
        optuna_trial = self._optuna_trial(trial)
        trial.state, trial.objective = state, objective
        self._study().tell(optuna_trial, objective, _optuna_state(trial))
        self.save()

    @property
    def best(self) -> Trial | None:
        """The finished trial with the highest objective (the first of equal ones), or None if no trial has finished."""
        done = [trial for trial in self.trials if trial.state == "done" and trial.objective is not None]
        return max(done, key=lambda trial: trial.objective or 0.0, default=None)

    def importances(self) -> dict[str, float]:
        """Return each key's importance by PED-ANOVA (Watanabe 2023), or {} if fewer than MIN_TRIALS have finished."""
        if sum(trial.state == "done" for trial in self.trials) < MIN_TRIALS or len(self.space) < 2:
            return {}
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        shares = get_param_importances(self._study(), evaluator=PedAnovaImportanceEvaluator())
        return {key: float(share) for key, share in shares.items() if math.isfinite(share)}

    def _optuna_trial(self, trial: Trial) -> Any:
        self._study()
        return self._optuna_trials[trial]

    def _study(self) -> Any:
        """Return Optuna's study. Create the study at the first call, with all trials so far."""
        if self._optuna is not None:
            return self._optuna
        import optuna
        from optuna.trial import create_trial

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = _sampler(self.hpo, self.seed + len(self.trials))
        self._optuna = optuna.create_study(direction="maximize", sampler=sampler, pruner=_pruner(self.hpo))
        distributions = {key: domain.distribution() for key, domain in self.space.items()}
        for trial in self.trials:
            if trial.state != "running":
                known = {"params": trial.values, "intermediate_values": trial.curve, "distributions": distributions}
                value = trial.objective if trial.state == "done" else None
                self._optuna.add_trial(create_trial(state=_optuna_state(trial), value=value, **known))
        for trial in self.trials:
            if trial.state == "running":
                self._optuna.enqueue_trial(trial.values)
                self._optuna_trials[trial] = self._optuna.ask(distributions)
                trial.curve = {}
        return self._optuna


class Trials:
    """The jobs of a search's trials: one job for each seed, with the same seeds for all trials.

    Curves are compared by evaluation period (`eval_period` environment steps), because a run may skip evaluations.
    """

    def __init__(self, sweep: Sweep, study: Study, eval_period: int) -> None:
        self.sweep, self.study, self.eval_period = sweep, study, eval_period
        self.num_jobs = study.hpo.trials * study.hpo.seeds + 2 * study.hpo.fresh_seeds
        self._next_s = 0.0
        sweep.name_keys(study.space)

    def unfinished_jobs(self) -> list[Job]:
        """Return the unfinished jobs of the trials that were running when the search stopped."""
        trials = [trial for trial in self.study.trials if trial.state == "running"]
        for trial in trials:
            trial.jobs = [job.number for job in self._jobs(trial)]
            self._end_if_over(trial)
        return [job for trial in trials if trial.state == "running" for job in self._jobs(trial) if not job.is_done]

    def next_jobs(self) -> list[Job]:
        """Let Optuna propose a trial, and return its unfinished jobs. Return [] after the last trial."""
        while len(self.study.trials) < self.study.hpo.trials:
            trial = self.study.propose()
            jobs = self._jobs(trial)
            self.sweep.save()
            trial.jobs = [job.number for job in jobs]
            self.study.save()
            if waiting := [job for job in jobs if job.exit_code is None and not job.is_running]:
                return waiting
            self._end_if_over(trial)  # an earlier trial with the same values has run these jobs
        return []

    def changed(self, job: Job) -> None:
        """If the job has ended, end its trial too, if all jobs of the trial are done or one has failed."""
        for trial in self.study.trials:
            if trial.state == "running" and job.number in trial.jobs and not job.is_running:
                self._end_if_over(trial)

    def tick(self) -> list[Job]:
        """Once a second, report new evaluations to Optuna. Return the jobs of the trials that Optuna prunes."""
        pruned: list[Job] = []
        if now() < self._next_s:
            return pruned
        self._next_s = now() + LOOK_S
        for trial in self.study.trials:
            jobs = self._jobs(trial) if trial.state == "running" else []
            if any(job.is_running for job in jobs) and self.study.report(trial, self._curve(jobs)):
                self.study.end(trial, "pruned")
                pruned += jobs
        return pruned

    def fresh_jobs(self, trial: Trial | None) -> list[Job]:
        """Return jobs with the trial's values and seeds that no trial used. If `trial` is None, use the defaults."""
        values = typed(trial.values) if trial else []
        first = self.study.seed + FRESH
        return self._jobs_for(values, range(first, first + self.study.hpo.fresh_seeds))

    def fresh_scores(self, trial: Trial | None) -> list[float]:
        """Return the objectives of the `fresh_jobs` that are done."""
        done = (job for job in self.fresh_jobs(trial) if job.is_done)
        return [value for job in done if (value := self.objective(job)) is not None]

    def objective(self, job: Job) -> float | None:
        """Return the mean return of the job's last `hpo.evaluations` evaluations, or None if there are none."""
        returns = job.curve.returns[-self.study.hpo.evaluations :]
        return float(np.mean(returns)) if len(returns) else None

    def _jobs(self, trial: Trial) -> list[Job]:
        if trial.jobs:
            return [self.sweep.jobs[number - 1] for number in trial.jobs]
        first = self.study.seed
        return self._jobs_for(typed(trial.values), range(first, first + self.study.hpo.seeds))

    def _jobs_for(self, values: Sequence[str], seeds: Sequence[int]) -> list[Job]:
        overrides = [[*self.study.fixed, *values, f"seed={seed}"] for seed in seeds]
        self.sweep.add(overrides)
        jobs = {frozenset(job.overrides): job for job in self.sweep.jobs}
        return [jobs[frozenset(each)] for each in overrides]

    def _curve(self, jobs: Sequence[Job]) -> dict[int, float]:
        """Return the mean return over the jobs by evaluation period, for periods with an evaluation of every job."""
        curves = []
        for curve in (job.curve for job in jobs):
            periods, first = np.unique(curve.positions // self.eval_period, return_index=True)
            curves.append(dict(zip(periods.astype(int).tolist(), curve.returns[first].tolist(), strict=True)))
        return {at: float(np.mean([curve[at] for curve in curves])) for at in curves[0] if all(at in c for c in curves)}

    def _end_if_over(self, trial: Trial) -> None:
        """End the trial if all its jobs are done or one has failed. Interrupted and killed jobs can be resumed."""
        jobs = self._jobs(trial)
        self.study.report(trial, self._curve(jobs))
        values = [value for job in jobs if (value := self.objective(job)) is not None]
        if any(job.status in ("failed", "diverged") for job in jobs):
            self.study.end(trial, "failed")
        elif all(job.is_done for job in jobs):
            is_scored = len(values) == len(jobs)
            self.study.end(trial, *(("done", float(np.mean(values))) if is_scored else ("failed", None)))


def _optuna_state(trial: Trial) -> Any:
    from optuna.trial import TrialState

    return {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[trial.state]


def _sampler(hpo: HpoConfig, seed: int) -> Any:
    from optuna import samplers

    if hpo.sampler == "tpe":
        return samplers.TPESampler(seed=seed, constant_liar=True)  # constant_liar: parallel trials get different values
    kinds = {"gp": samplers.GPSampler, "cma": samplers.CmaEsSampler, "random": samplers.RandomSampler}
    return kinds[hpo.sampler](seed=seed)


def _pruner(hpo: HpoConfig) -> Any:
    from optuna import pruners

    if hpo.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3)
    return pruners.SuccessiveHalvingPruner(min_resource=3) if hpo.pruner == "halving" else pruners.NopPruner()

"""`drl-train -m hpo=tpe ...`: run the trials that Optuna proposes, then the best and default values on new seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from drl_cli.config.config import Config
from drl_cli.config.sections import HpoConfig
from drl_cli.errors import DONE, MISSING, USER_CODE, UsageError
from drl_cli.settings.space import Choice, Space, corners
from drl_cli.settings.space import space as read_space
from drl_cli.sweeps.jobs import check_jobs, claim_sweep, is_dry_run, run_jobs
from drl_cli.sweeps.results import finish_search
from drl_cli.sweeps.study import Study, Trials
from drl_cli.sweeps.sweep import Job, Sweep
from drl_cli.utils.outside import source_file
from drl_cli.utils.shown import print

SEARCH_KEYS = ("trials", "seeds", "pruner", "fresh_seeds")
POPULATION_KEYS = ("members", "rounds", "quantile", "resample")
"""Keys of the group `hpo`: SEARCH_KEYS are only for a search, POPULATION_KEYS only for a population."""
UNCHANGEABLE = ("seeds", "pruner", "evaluations")
"""Keys of the group `hpo` that a resumed search can't change, because finished trials depend on them."""


def is_search(overrides: Sequence[str]) -> bool:
    """Return whether the overrides choose a search or a population."""
    return any(arg.startswith("hpo=") and arg != "hpo=none" for arg in overrides)


def new_search(sweep: Sweep, output_dir: str, options: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Check the corners of the search space, then search. Return the exit code. Raise UsageError if a check fails."""
    check_options(options)
    fixed, space = read_space(overrides)
    if not space:
        raise UsageError("hpo: nothing to search: say for example 'algo.lr=tag(log,interval(1e-4,3e-3))'")
    if "seed" in space:
        raise UsageError("seed: a search sets the seeds: hpo.seeds=3 runs each trial with three")
    configs = check_corners(sweep, fixed, space, options)
    config, hpo = configs[0], configs[0].hpo
    if hpo.sampler == "cma" and all(isinstance(domain, Choice) for domain in space.values()):
        raise UsageError("hpo=cma searches numbers, and there are only choices: say hpo=tpe")
    if is_dry_run(options, f"{plan(hpo, space)}; all checks passed at {len(configs)} points"):
        return DONE
    sweep.make_folder(output_dir)
    with claim_sweep(sweep.folder):
        fixed = [arg for arg in fixed if not arg.startswith("seed=")]
        study = Study(sweep.folder, space, fixed, hpo, config.seed)
        return search(sweep, study, configs)


def resume_search(sweep: Sweep, options: Mapping[str, str]) -> int:
    """Resume the search in the sweep's folder, with new numbers of trials and of fresh seeds if these keys are set."""
    check_options(options)
    refuse_keys(options, UNCHANGEABLE, "can't change any more; hpo.trials and hpo.fresh_seeds can")
    study = Study.open(sweep.folder)
    configs = check_corners(sweep, study.fixed, study.space, options)
    new = {name: getattr(configs[0].hpo, name) for name in ("trials", "fresh_seeds") if f"hpo.{name}" in options}
    study.hpo = replace(study.hpo, **new)
    if is_dry_run(options, f"{len(study.trials)} of {study.hpo.trials} trials begun; all checks passed"):
        return DONE
    return search(sweep, study, configs)


def plan(hpo: HpoConfig, space: Space) -> str:
    """Return the number of trials and of jobs of a search as text."""
    seeds = f" with {hpo.seeds} seeds each" if hpo.seeds > 1 else ""
    text = f"{hpo.trials} trials over {', '.join(space)}{seeds}: {hpo.trials * hpo.seeds} jobs"
    if not hpo.fresh_seeds:
        return text
    fresh = f"{hpo.fresh_seeds} fresh seed{'s' if hpo.fresh_seeds > 1 else ''}"
    return f"{text}, then {2 * hpo.fresh_seeds} jobs to compare the best values with the defaults on {fresh}"


def check_options(options: Mapping[str, str]) -> None:
    """Raise UsageError if Optuna is not installed (exit 3), or if an option is only for a population."""
    if source_file("optuna") is None:
        raise UsageError("hpo needs Optuna:  pip install 'drl-cli[hpo]'", MISSING)
    refuse_keys(options, POPULATION_KEYS, "is of hpo=pbt, not of a search")


def refuse_keys(options: Mapping[str, str], names: Sequence[str], why: str) -> None:
    """Raise UsageError if `hpo.sampler` or one of the keys `hpo.<name>` is set."""
    problems = [f"hpo.{name}: {why}" for name in names if f"hpo.{name}" in options]
    if "hpo.sampler" in options:
        problems.append(f"hpo.sampler: say hpo={options['hpo.sampler']}")
    if problems:
        raise UsageError(problems)


def check_corners(sweep: Sweep, fixed: Sequence[str], space: Space, options: Mapping[str, str]) -> list[Config]:
    """Return the configs at the corners of the space. Raise UsageError if a config is wrong or no config can run."""
    points = [Job(number, [*fixed, *point], {}) for number, point in enumerate(corners(space), 1)]
    configs = check_jobs(sweep, points, options)
    if not configs:
        raise UsageError("hpo: no trial can run without that file", USER_CODE)
    return configs


def search(sweep: Sweep, study: Study, configs: Sequence[Config]) -> int:
    """Run the remaining trials, then the fresh seeds. Print and write the results. Return the exit code."""
    study.save()
    trials = Trials(sweep, study, configs[0].manage.eval_period)
    begun = f"; {len(study.trials)} trials begun" if study.trials else ""
    print(f"search by {study.hpo.sampler}: {plan(study.hpo, study.space)}{begun}  ->  {sweep.folder}", flush=True)
    run_jobs(sweep, trials.unfinished_jobs(), configs, trials.next_jobs, trials)
    if study.best is not None:
        fresh = [*trials.fresh_jobs(study.best), *trials.fresh_jobs(None)]
        sweep.save()
        run_jobs(sweep, [job for job in fresh if not job.is_done], configs)
    return finish_search(trials)

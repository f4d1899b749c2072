"""Check that a run can have re-analysers."""

from collections.abc import Iterator

from drl_cli.algos.base import Policy
from drl_cli.algos.lookup import load_algorithm, title
from drl_cli.runtime.config import Config


def reanalysis_problems(config: Config) -> Iterator[str]:
    """Yield a line for each reason why re-analysers (`reanalyzer.num`) can't work in this run."""
    if not config.reanalyzer.num:
        return
    typed, replay, most = f"reanalyzer.num={config.reanalyzer.num}", config.replay, config.reanalyzed_per_call
    name, share = title(config.algo_name), getattr(config.algo, "reanalyze", 0.0)
    if load_algorithm(config.algo.name).Policy.reanalyze is Policy.reanalyze:
        yield f"{typed}: {name} stores no results of a search that could be found again; say reanalyzer.num=0"
        return
    if config.mode != "async":
        instead = "" if share or not hasattr(config.algo, "reanalyze") else ", with algo.reanalyze=0.5 for the trainer"
        yield f"{typed}: mode={config.mode} has no re-analysers; say mode=async, or reanalyzer.num=0{instead}"
    if share:
        yield f"algo.reanalyze={share:g}: with {typed} the trainer does not search again; say algo.reanalyze=0"
    if replay.table != "windows":
        yield f"{typed}: re-analysers draw windows, and replay={replay.option} has none; say replay=windows"
    elif most > replay.num_transitions:
        yield (
            f"reanalyzer.windows={config.reanalyzer.windows}: a call searches {most} steps, more than "
            f"replay.capacity={replay.num_transitions}"
        )

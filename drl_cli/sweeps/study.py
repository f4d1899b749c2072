"""Study: the trials of a search in one file, and who proposes the next one."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from drl_cli.runs.run import read_json
from drl_cli.runtime.sections import HpoConfig
from drl_cli.settings.space import Space, Value, domain
from drl_cli.sweeps.sweep import whole

FILE = "study.json"

State = Literal["running", "done", "pruned", "failed"]


@dataclass
class Trial:
    """Values that were tried: its jobs by number, the mean return by evaluation periods, the objective at the end."""

    values: dict[str, Value]
    jobs: list[int] = field(default_factory=list)
    state: State = "running"
    objective: float | None = None
    curve: dict[int, float] = field(default_factory=dict)


class Study:
    """study.json in the search's folder, written whole at every change: a search that was killed goes on with it.

    `fixed` are the overrides of every job. Optuna proposes values and says which trials to prune; what it knows is told
    to it anew when a search goes on.
    """

    def __init__(self, folder: Path, space: Space, fixed: list[str], hpo: HpoConfig, seed: int) -> None:
        self.folder, self.space, self.fixed, self.hpo, self.seed = folder, space, fixed, hpo, seed
        self.trials: list[Trial] = []
        self._optuna: Any = None  # Optuna's study, which is not typed here
        self._asked: dict[int, Any] = {}

    @classmethod
    def open(cls, folder: Path) -> "Study":
        """One that exists; raises ValueError when it is none."""
        content = read_json(folder / FILE)
        if "trials" not in content:
            raise ValueError(f"{folder} is no search: it has no readable {FILE}")
        space = {key: domain(known) for key, known in content["space"].items()}
        study = cls(folder, space, content["fixed"], HpoConfig(**content["hpo"]), content["seed"])
        for known in content["trials"]:
            curve = {int(at): mean for at, mean in dict(known["curve"]).items()}  # json's keys are text
            study.trials.append(Trial(**known | {"curve": curve}))
        return study

    def save(self) -> None:
        """In one piece."""
        content = {
            "hpo": asdict(self.hpo),
            "seed": self.seed,
            "fixed": self.fixed,
            "space": {key: asdict(domain) for key, domain in self.space.items()},
            "trials": [asdict(trial) for trial in self.trials],
        }
        with whole(self.folder / FILE) as path:
            path.write_text(json.dumps(content, indent=1))

    def propose(self) -> Trial:
        """The next trial, as Optuna would have it."""
        asked = self._study().ask({key: domain.distribution() for key, domain in self.space.items()})
        trial = Trial(dict(asked.params))
        self._asked[len(self.trials)] = asked
        self.trials.append(trial)
        return trial

    def report(self, trial: Trial, curve: dict[int, float]) -> bool:
        """The returns at its evaluations so far, by evaluation periods; whether it should be pruned."""
        asked = self._handle(trial)
        for at in sorted(curve.keys() - trial.curve.keys()):
            asked.report(curve[at], at)
        trial.curve = curve
        return self.hpo.pruner != "none" and bool(asked.should_prune())

    def end(self, trial: Trial, state: State, objective: float | None = None) -> None:
        """Its end, with the objective where it is done."""
        handle = self._handle(trial)
        trial.state, trial.objective = state, objective
        self._study().tell(handle, objective, _state(trial))
        self.save()

    @property
    def best(self) -> Trial | None:
        """The one with the highest objective, the first of equal ones."""
        done = [trial for trial in self.trials if trial.state == "done" and trial.objective is not None]
        return max(done, key=lambda trial: trial.objective or 0.0, default=None)

    def importances(self) -> dict[str, float]:
        """How much of the objective's variance among good trials each key explains (PED-ANOVA, Watanabe 2023).

        Empty with fewer than eight trials that are done, of which little can be said.
        """
        if sum(trial.state == "done" for trial in self.trials) < 8 or len(self.space) < 2:
            return {}
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        found = get_param_importances(self._study(), evaluator=PedAnovaImportanceEvaluator())
        return {key: float(value) for key, value in found.items() if math.isfinite(value)}

    def _handle(self, trial: Trial) -> Any:
        self._study()
        return self._asked[next(i for i, other in enumerate(self.trials) if other is trial)]

    def _study(self) -> Any:
        """Optuna's, which knows all trials there are."""
        if self._optuna is None:
            import optuna
            from optuna.trial import create_trial

            optuna.logging.set_verbosity(optuna.logging.ERROR)
            self._optuna = optuna.create_study(
                direction="maximize", sampler=_sampler(self.hpo, self.seed + len(self.trials)), pruner=_pruner(self.hpo)
            )
            distributions = {key: domain.distribution() for key, domain in self.space.items()}
            for trial in self.trials:
                if trial.state != "running":
                    known = {"params": trial.values, "intermediate_values": trial.curve}
                    value = trial.objective if trial.state == "done" else None
                    self._optuna.add_trial(
                        create_trial(state=_state(trial), value=value, distributions=distributions, **known)
                    )
            for number, trial in enumerate(self.trials):
                if trial.state == "running":
                    self._optuna.enqueue_trial(trial.values)
                    self._asked[number] = self._optuna.ask(distributions)
                    trial.curve = {}
        return self._optuna


def _state(trial: Trial) -> Any:
    """As Optuna has it."""
    from optuna.trial import TrialState

    return {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[trial.state]


def _sampler(hpo: HpoConfig, seed: int) -> Any:
    from optuna import samplers

    match hpo.sampler:
        case "tpe":
            return samplers.TPESampler(seed=seed, constant_liar=True)  # several at once must not choose alike
        case "gp":
            return samplers.GPSampler(seed=seed)
        case "cma":
            return samplers.CmaEsSampler(seed=seed)
    return samplers.RandomSampler(seed=seed)


def _pruner(hpo: HpoConfig) -> Any:
    from optuna import pruners

    match hpo.pruner:
        case "median":
            return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3)
        case "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=3)
    return pruners.NopPruner()

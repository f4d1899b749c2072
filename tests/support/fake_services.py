"""Fakes of wandb 0.31 and MLflow 3.17 with the same names and arguments, which record what was sent.

`install_wandb(monkeypatch)` and `install_mlflow(monkeypatch)` replace the packages.
"""

import sys
import types
from dataclasses import dataclass
from itertools import count

SETTINGS = {"console", "silent", "disable_code", "disable_git", "x_disable_meta", "x_disable_stats"}


class FakeWandb(types.ModuleType):
    """The package; `runs` has all runs and what they were given."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []

    def Settings(self, **values):
        assert set(values) <= SETTINGS
        return values

    def Video(self, path, caption=None, fps=None, format=None):
        return f"video {path} {format}"

    def init(self, *, mode, dir, project, id, name, resume, config, settings):
        assert mode in ("offline", "online")
        assert not set(id) & set("/\\#?%:")
        self.runs.append(FakeWandbRun(mode, dir, project, id, name, resume, config))
        return self.runs[-1]


@dataclass
class FakeWandbRun:
    mode: str
    dir: str
    project: str
    id: str
    name: str
    resume: str
    config: dict

    def __post_init__(self):
        self.metrics, self.logged, self.exit_code = {}, [], None

    def define_metric(self, name, step_metric=None):
        self.metrics[name] = step_metric

    def log(self, data, step=None):
        assert step is None  # it may not go back
        assert self.exit_code is None
        self.logged.append(data)

    def finish(self, exit_code=None):
        self.exit_code = exit_code


def install_wandb(monkeypatch):
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@dataclass(frozen=True)
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Param:
    key: str
    value: str


class FakeMlflow(types.ModuleType):
    """The stores by tracking URI: experiments by name, and runs by id."""

    def __init__(self):
        super().__init__("mlflow")
        self.stores = {}
        self.ids = count(1)
        self.MlflowClient = lambda tracking_uri=None: FakeClient(self, tracking_uri)


class FakeClient:
    def __init__(self, module, uri):
        self.module = module
        self.experiments, self.runs = module.stores.setdefault(uri, ({}, {}))

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name, artifact_location=None):
        made = types.SimpleNamespace(experiment_id=str(next(self.module.ids)), artifacts=artifact_location)
        assert name not in self.experiments
        self.experiments[name] = made
        return made.experiment_id

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        info = types.SimpleNamespace(run_id=f"run{next(self.module.ids)}", status="RUNNING", run_name=run_name)
        made = types.SimpleNamespace(
            info=info, tags=tags, params={}, metrics=[], artifacts=[], experiment=experiment_id
        )
        self.runs[info.run_id] = made
        return made

    def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None):
        assert len(params) <= 100
        assert len(metrics) <= 1000
        run = self.runs[run_id]
        for param in params:
            assert run.params.setdefault(param.key, param.value) == param.value  # it may not change
            assert len(param.value) <= 6000
        run.metrics += [(metric.key, metric.value, metric.step) for metric in metrics]

    def log_artifact(self, run_id, local_path, artifact_path=None):
        self.runs[run_id].artifacts.append((local_path, artifact_path))

    def update_run(self, run_id, status=None, name=None):
        self.runs[run_id].info.status = status

    def set_terminated(self, run_id, status=None, end_time=None):
        self.runs[run_id].info.status = status


def install_mlflow(monkeypatch):
    module, entities = FakeMlflow(), types.ModuleType("mlflow.entities")
    entities.Metric, entities.Param = Metric, Param
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return module

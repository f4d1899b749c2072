import math

import pytest
from fake_services import install_mlflow

from drl_cli.metrics.mlflow import Mlflow
from drl_cli.metrics.recorders import RunInfo
from drl_cli.utils.files import lock

SERVER = "http://somewhere:5000"


@pytest.fixture
def mlflow(monkeypatch):
    return install_mlflow(monkeypatch)


@pytest.fixture
def make(tmp_path):
    """Create the recorder of a run in output_dir/env/algo-mode/."""

    def make_it(uri="offline", id="20260101-000000-000000-s3", **hparams):
        folder = tmp_path / "env" / "algo-mode" / id
        folder.mkdir(parents=True, exist_ok=True)
        return Mlflow(RunInfo(id, f"name of {id}", folder, "mine", hparams), uri)

    return make_it


def only(mlflow):
    (store,) = mlflow.stores.values()
    (run,) = store[1].values()
    return run


def test_runs_are_in_one_database_beside_them(mlflow, make, tmp_path):
    make(id="a")
    make(id="b")
    ((uri, (experiments, runs)),) = mlflow.stores.items()
    assert uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert {name: experiment.artifacts for name, experiment in experiments.items()} == {
        "mine": (tmp_path / "mlartifacts").as_uri()
    }
    assert [run.info.run_name for run in runs.values()] == ["name of a", "name of b"]
    assert [run.tags["drl.run"] for run in runs.values()] == ["a", "b"]


def test_only_one_of_two_runs_creates_the_database(mlflow, make, tmp_path, monkeypatch):
    taken = []

    def create(*args):
        with pytest.raises(BlockingIOError):
            lock(tmp_path / ".mlflow.db.lock")
        taken.append(args)
        return "1"

    monkeypatch.setattr("fake_services.FakeClient.create_experiment", lambda self, *args: create(*args))
    make()
    assert len(taken) == 1
    lock(tmp_path / ".mlflow.db.lock").close()


def test_hyperparameters_are_sent_in_parts_and_shortened(mlflow, make):
    make(**{f"k{i}": i for i in range(250)}, long="x" * 10_000, none=None)
    params = only(mlflow).params
    assert (len(params), (params["k249"], params["none"], params["long"])) == (252, ("249", "None", "x" * 500))


def test_scalars_are_over_env_steps_and_finite_under_names_that_are_allowed(mlflow, make):
    recorder = make()
    recorder.record({"perf/a.b-c": 1, "rollout/lap time (s)": 2.5, "bad": math.nan, "worse": -math.inf}, 200)
    recorder.record({"eval/a": 1.0}, 100)
    assert only(mlflow).metrics == [("perf/a.b-c", 1.0, 200), ("rollout/lap time _s_", 2.5, 200), ("eval/a", 1.0, 100)]


@pytest.mark.parametrize(("status", "told"), [("done", "FINISHED"), ("interrupted", "KILLED"), ("diverged", "FAILED")])
def test_the_end_gives_the_status(mlflow, make, status, told):
    make().close(status)
    assert only(mlflow).info.status == told


def test_a_video_is_an_artifact(mlflow, make, tmp_path):
    make().video("eval/video", tmp_path / "x.gif", 100)
    assert only(mlflow).artifacts == [(str(tmp_path / "x.gif"), "videos")]


def test_a_resumed_run_continues_the_same_mlflow_run(mlflow, make):
    make(lr=1.0).close("interrupted")
    again = make(lr=2.0)
    assert only(mlflow).info.status == "RUNNING"
    again.record({"a": 1.0}, 5)
    assert (only(mlflow).params, only(mlflow).metrics) == ({"lr": "1.0"}, [("a", 1.0, 5)])


def test_a_resumed_run_is_new_on_another_server(mlflow, make):
    make()
    make(SERVER)
    assert [len(runs) for _, runs in mlflow.stores.values()] == [1, 1]
    assert mlflow.stores[SERVER][0]["mine"].artifacts is None  # the server has a place for them

"""MLflow recorder (an optional extra): each run is one MLflow run, whose id is stored in the run's folder."""

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drl_cli.metrics.recorders import RunInfo
from drl_cli.utils.files import lock

STATUS = {"done": "FINISHED", "interrupted": "KILLED"}
MAX_PARAMS = 100
"""MLflow's limit on the number of parameters in one call."""
MAX_CHARACTERS = 500
"""MLflow's limit on the length of a parameter's value."""
DATABASE = "mlflow.db"
START_S = 60.0
"""Maximum time [s] to wait while another job creates the tables of a new database."""


class Mlflow:
    """Records to a tracking server, or, if `uri` is "offline", to the database mlflow.db in output_dir.

    MLflow's steps are environment steps. Numbers that are not finite are left out.
    """

    def __init__(self, run: RunInfo, uri: str) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric: Any = Metric
        if uri == "offline":
            root = run.folder.parents[2]
            with lock(root / f".{DATABASE}.lock", timeout_s=START_S):  # only one job may create the tables
                self._begin(mlflow, f"sqlite:///{root / DATABASE}", run, (root / "mlartifacts").as_uri())
        else:
            self._begin(mlflow, uri, run, None)
        if self._is_new:
            params = [Param(_name(key), str(value)[:MAX_CHARACTERS]) for key, value in run.hparams.items()]
            for first in range(0, len(params), MAX_PARAMS):
                self._client.log_batch(self._id, params=params[first : first + MAX_PARAMS])

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        finite = ((_name(tag), float(value)) for tag, value in scalars.items() if math.isfinite(value))
        metrics = [self._metric(name, value, now_ms, env_steps) for name, value in finite]
        self._client.log_batch(self._id, metrics=metrics)

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        self._client.log_artifact(self._id, str(path), "videos")

    def close(self, status: str) -> None:
        self._client.set_terminated(self._id, STATUS.get(status, "FAILED"))

    def _begin(self, mlflow: Any, uri: str, run: RunInfo, artifacts: str | None) -> None:
        """Continue the MLflow run in mlflow.json if it is on the same server. Otherwise create an MLflow run."""
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        note = run.folder / "mlflow.json"
        kept = json.loads(note.read_text()) if note.exists() else {}
        self._is_new = kept.get("tracking_uri") != uri
        if not self._is_new:
            self._id: str = kept["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(run.project)
        place = experiment.experiment_id if experiment else self._client.create_experiment(run.project, artifacts)
        created = self._client.create_run(
            place, run_name=run.name, tags={"drl.run": run.id, "drl.folder": str(run.folder)}
        )
        self._id = created.info.run_id
        note.write_text(json.dumps({"run_id": self._id, "tracking_uri": uri}))


def _name(key: str) -> str:
    """Return the key with `_` in place of characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w\-. /]", "_", key)

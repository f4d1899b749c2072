"""Recorders: the two text files of each run, Weights & Biases, and MLflow, each in a thread of its own."""

import csv
import json
import logging
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, TypeAlias

from drl_cli.metrics.status import finite
from drl_cli.utils.files import lock, regular, write_csv
from drl_cli.utils.run_clock import Unit

Value: TypeAlias = float | int | str | bool | None


@dataclass(frozen=True)
class RunInfo:
    """The run that is recorded.

    `id` is the name of the run's `folder` and stays the same after a resume. `name` is a title. `hparams` are the
    values of the config by key. `project` is the value of logger.project. `unit` is what positions count: env_steps, or
    opt_steps in a run without workers. `typed` are the keys that the user or a sweep set.
    """

    id: str
    name: str
    folder: Path
    project: str
    hparams: Mapping[str, Value]
    unit: Unit = "env_steps"
    typed: Collection[str] = ()


class Recorder(Protocol):
    """Receives reports and evaluations (`eval/...`): scalars by tag, with the number of environment steps.

    In a run without workers (mode=offline), `env_steps` is the number of updates.

    An evaluation may have fewer `env_steps` than the report before, because training continues during an evaluation.
    The constructor of a recorder in the user's code (logger.recorders) takes a RunInfo.
    """

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write these scalars."""

    def close(self, status: str) -> None:
        """Write everything that is pending. `status` is the final status of the run (done, failed, ...)."""


class JsonLines:
    """Writes metrics.jsonl: one JSON object per report. NaN and infinity become null."""

    def __init__(self, path: Path, unit: Unit = "env_steps") -> None:
        self.file, self.unit = open(path, "a", buffering=1, opener=regular), unit  # noqa: SIM115

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        self.file.write(json.dumps({self.unit: env_steps, **finite(scalars)}) + "\n")

    def close(self, status: str) -> None:
        self.file.close()


class Csv:
    """Writes eval.csv: one line per evaluation. The first columns are the fixed `columns`.

    A new name gets a new last column; lines without this name have an empty cell there. Columns never change their
    order, even if a resumed run continues the file. On a full disk, the first line opens the file.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.fixed, self.columns = path, tuple(columns), list(columns)
        self.file: TextIO | None = None
        with suppress(OSError):  # a run can also start on a full disk
            self._begin()

    def write(self, row: Mapping[str, float], more: Mapping[str, float] | None = None) -> None:
        """Write one line: the fixed columns from `row`, others from `more`. Raise KeyError if `row` lacks a column."""
        values = {**(more or {}), **{column: row[column] for column in self.fixed}}
        file = self.file or self._begin()
        if new := [name for name in values if name not in self.columns]:
            with open(self.path, newline="", opener=regular) as old:
                _, *rows = csv.reader(old)
            self._rewrite([*self.columns, *new], rows)
            self.columns += new
            file.close()
            file = self._open()
        csv.writer(file).writerow([values.get(column, "") for column in self.columns])

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _begin(self) -> TextIO:
        if self.path.exists() and self.path.stat().st_size:
            with open(self.path, newline="", opener=regular) as file:
                self.columns = next(csv.reader(file))
        else:
            self._rewrite(self.columns, [])
        return self._open()

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        wide = ([*row, *[""] * (len(columns) - len(row))] for row in rows)
        write_csv(self.path, columns, wide)

    def _open(self) -> TextIO:
        self.file = open(self.path, "a", newline="", buffering=1, opener=regular)  # noqa: SIM115
        return self.file


log = logging.getLogger(__name__)

MAX_WAITING = 1000
"""Maximum number of calls in the queue. One report every two seconds fills the queue in half an hour."""


class BackgroundRecorder:
    """Makes a recorder and forwards calls to it in order, without delaying the caller.

    `take_problem` returns the first problem once. A recorder that fails is called again at the next report, because a
    server may recover. If the queue is full, further calls are dropped.
    """

    def __init__(self, name: str, make: Callable[[], Recorder]) -> None:
        self.name, self.make = name, make
        self._calls: queue.Queue[tuple[Any, ...]] = queue.Queue(MAX_WAITING)
        self._problem: str | None = None
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"recorder {name}", daemon=True)
        self._thread.start()

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        self._put("record", dict(scalars), env_steps)

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        """Queue a video. The video is dropped if the recorder has no method `video`."""
        self._put("video", tag, path, env_steps)

    def close(self, status: str) -> None:
        """Queue the end of the recording. Later calls record nothing."""
        self._put("close", status)

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until a closed recorder has written everything."""
        self._thread.join(max(0.0, timeout_s))
        if self._thread.is_alive():
            self._fail("is still busy at the end; unwritten values are lost")

    def take_problem(self) -> str | None:
        problem, self._problem = self._problem, None
        return problem

    def _put(self, *call: Any) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            if self._thread.is_alive():
                self._fail("is too slow; some values are left out")

    def _run(self) -> None:
        try:
            recorder = self.make()
        except (Exception, SystemExit) as error:
            self._fail(f"can't be made: {one_line(error)}", error)
            return
        method = ""
        while method != "close":
            method, *args = self._calls.get()
            try:
                if method != "video" or hasattr(recorder, "video"):
                    getattr(recorder, method)(*args)
            except (Exception, SystemExit) as error:
                self._fail(f"{method} raised {one_line(error)}", error)

    def _fail(self, what: str, error: BaseException | None = None) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._problem = f"{self.name} {what} (shown once; training continues)"
            log.info("%s", self._problem, exc_info=error)


def one_line(error: BaseException) -> str:
    """Return the type and text of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class Wandb:
    """Writes to `wandb/` in the run's folder. In mode `online`, it also sends the data to the server.

    The x axis is `env_steps`, or `opt_steps` without workers. wandb's own step can't decrease, but the step of an
    evaluation can.
    """

    def __init__(self, run: RunInfo, mode: Literal["offline", "online"]) -> None:
        import wandb

        self._wandb: Any = wandb
        self._unit = run.unit
        quiet = wandb.Settings(  # do not record console output, code or machine
            console="off", silent=True, disable_code=True, disable_git=True, x_disable_meta=True, x_disable_stats=True
        )
        self._run: Any = wandb.init(
            mode=mode, dir=str(run.folder), project=run.project, id=run.id, name=run.name, resume="allow",
            config=dict(run.hparams), settings=quiet,
        )  # fmt: skip
        self._run.define_metric(run.unit)
        self._run.define_metric("*", step_metric=run.unit)

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        self._run.log({**scalars, self._unit: env_steps})

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        self._run.log({tag: self._wandb.Video(str(path), format="gif"), self._unit: env_steps})

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "done" else 1)


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

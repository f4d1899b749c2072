"""Weights & Biases recorder (an optional extra): each run is one wandb run, with the same id after a resume."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from drl_cli.metrics.recorders import RunInfo


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

"""Weights & Biases, an extra: one run of its own for each of ours, found again by our run's id when that is resumed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from drl_cli.metrics.recorders import RunInfo


class Wandb:
    """Writes to `wandb/` in the run's folder; `online` sends it to the server as well.

    The x axis is `env_steps`, as wandb's own step may not go back, and an evaluation's does.
    """

    def __init__(self, run: RunInfo, mode: Literal["offline", "online"]) -> None:
        import wandb

        self._wandb: Any = wandb
        quiet = wandb.Settings(  # none of its looking around, at the console, the code and the machine
            console="off", silent=True, disable_code=True, disable_git=True, x_disable_meta=True, x_disable_stats=True
        )
        self._run: Any = wandb.init(
            mode=mode, dir=str(run.folder), project=run.project, id=run.id, name=run.name, resume="allow",
            config=dict(run.hparams), settings=quiet,
        )  # fmt: skip
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        self._run.log({**scalars, "env_steps": env_steps})

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        self._run.log({tag: self._wandb.Video(str(path), format="gif"), "env_steps": env_steps})

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "done" else 1)

"""Camera: films one greedy episode of a parameter version."""

import os
from dataclasses import replace
from pathlib import Path

from drl_cli.envs.frames import frames_per_second
from drl_cli.metrics.film import Film
from drl_cli.runtime.config import Config
from drl_cli.runtime.roles.evaluator import Evaluator
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.headless import headless


class Camera:
    """Films episodes in a separate environment, which renders and starts from the first seed of the evaluations."""

    def __init__(self, config: Config, spec: EnvSpec, seed: int, folder: Path) -> None:
        os.environ.update(headless())
        rendering = {**config.manage.env_kwargs, "render_mode": "rgb_array"}
        config = replace(config, manage=replace(config.manage, env_kwargs=rendering))
        self.evaluator, self.folder = Evaluator(config, spec, [seed]), folder
        self.env = self.evaluator.envs[0].raw

    def film(self, params: Array, position: int) -> Path:
        """Write an animated GIF and return its path. Raise ValueError if the environment does not render."""
        film = Film(frames_per_second(self.env))
        self.evaluator.evaluate(params, watch=lambda: film.step(self.env.render))
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"eval_{position:09d}.gif"
        path.write_bytes(film.gif())
        return path

    def close(self) -> None:
        self.evaluator.close()

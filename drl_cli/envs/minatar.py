"""MinAtar's games as Gymnasium environments."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from drl_cli.envs.catalog import check_number
from drl_cli.envs.config import EnvError
from drl_cli.types import Array, State
from drl_cli.utils.ranges import Range

PIXELS = 16
"""Height and width of a cell in a rendered image, in pixels."""
COLORS = np.array(
    [
        *((0, 0, 0), (64, 160, 255), (255, 200, 60), (130, 130, 130), (220, 70, 70), (110, 210, 110)),
        *((200, 110, 240), (255, 140, 40), (90, 220, 220), (240, 240, 240), (160, 100, 60)),
    ],
    np.uint8,
)
"""Colors of an empty cell and of each channel. If several channels are set in a cell, the last one has priority."""


class MinAtar(gymnasium.Env[Array, Any]):
    """A game of MinAtar with observations bool `[10, 10, channels]`, one channel for each kind of object.

    With probability `sticky`, a step repeats the previous action. With `ramping`, some games become more difficult over
    time. `minimal_actions` keeps only those of the 6 actions that have an effect in the game. With equal seeds and
    actions, this class and the package's own environment have the same episodes. Unlike that environment, this class
    does not import plotting packages, and a resumed run can repeat its episodes. Raise EnvError if `sticky` is not in
    [0, 1].
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # a plain dict, as in gymnasium.Env

    def __init__(
        self,
        game: str,
        *,
        sticky: float = 0.1,
        ramping: bool = True,
        minimal_actions: bool = True,
        render_mode: str | None = None,
    ) -> None:
        check_number("sticky", sticky, Range(0, 1), is_whole=False)
        self.sticky, self.render_mode = sticky, render_mode
        self._game: Any = _module(game).Env(ramping=ramping)
        self._actions = self._game.minimal_action_set() if minimal_actions else list(range(6))
        self._last = 0
        self.observation_space = Box(0, 1, self._game.state_shape(), np.bool_)
        self.action_space = Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            self._game.random = np.random.RandomState(seed)
        self._game.reset()
        return self._game.state(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._game.random.rand() >= self.sticky:
            self._last = self._actions[action]
        reward, terminated = self._game.act(self._last)
        return self._game.state(), float(reward), bool(terminated), False, {}

    def render(self) -> Array:
        state = self._game.state()
        topmost = (state * np.arange(1, state.shape[2] + 1)).max(2)
        picture: Array = COLORS[topmost].repeat(PIXELS, 0).repeat(PIXELS, 1)
        return picture

    def save_state(self) -> State:
        """Return the state of the random generator and the last action, which a sticky step would repeat."""
        _, key, position, *_ = self._game.random.get_state()
        return {"generator": key, "position": np.array([position, self._last])}

    def load_state(self, state: State) -> None:
        position, self._last = state["position"].tolist()
        self._game.random.set_state(("MT19937", state["generator"], position))


@cache
def _module(game: str) -> ModuleType:
    """Import a game's module without the package, because the package imports plotting libraries (1.5 s, 100 MB)."""
    package = importlib.util.find_spec("minatar")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'minatar'", name="minatar")
    if not game.isidentifier():  # from env.kwargs, so that it might lead to another folder
        raise EnvError(f"env.kwargs.game={game}: there is no such game")
    path = Path(package.submodule_search_locations[0]) / "environments" / f"{game}.py"
    spec = importlib.util.spec_from_file_location(f"{__name__}.{game}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Atari: single environments and ale-py's vector environment (env.backend=ale)."""

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding
from packaging.version import Version

from drl_cli.envs.catalog import check_choice, check_number, games
from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.types import Array, FrameStack, State
from drl_cli.utils.ranges import Range


def area_resize(shape: Sequence[int], size: int) -> Callable[[Array], Array]:
    """Return a function that resizes grey images uint8 `[height, width]` to `[size, size]`.

    Height and width must not be multiples of `size`. The result has the same bytes as OpenCV's `resize` with
    INTER_AREA, because both sum in the same order (along rows first). The function is as fast as OpenCV on one thread,
    and avoids the 150 MB of memory that OpenCV needs.
    """
    height, width = shape
    rows, columns = _parts(height, size), _parts(width, size)

    def resize(image: Array) -> Array:
        across = _sum(image.T.astype(np.float32, order="C"), columns)  # transposed, because taking rows is faster
        small = _sum(np.ascontiguousarray(across.T), rows)
        return np.rint(small, out=small).astype(np.uint8)

    return resize


Parts = list[tuple[Array, Array]]
"""Pairs of old row indices `[size]` and weights `[size, 1]`. The weighted sum over all pairs gives the new rows."""


def _sum(image: Array, parts: Parts) -> Array:
    (index, weight), *rest = parts
    total: Array = image.take(index, 0)
    total *= weight
    for index, weight in rest:
        part = image.take(index, 0)
        part *= weight
        total += part
    return total


def _parts(length: int, size: int) -> Parts:
    scale = length / size
    covered: list[list[tuple[int, float]]] = []
    for i in range(size):
        start, stop = i * scale, min((i + 1) * scale, length)
        first, last = math.ceil(start - 1e-9), math.floor(stop + 1e-9)
        parts = [(first - 1, first - start)] if first - start > 1e-3 else []
        parts += [(j, 1.0) for j in range(first, last)]
        parts += [(last, stop - last)] if stop - last > 1e-3 else []
        covered.append([(j, share / scale) for j, share in parts])
    most = max(map(len, covered))
    padded = [parts + [(0, 0.0)] * (most - len(parts)) for parts in covered]
    return [
        (np.array([parts[k][0] for parts in padded]), np.array([[parts[k][1]] for parts in padded], np.float32))
        for k in range(most)
    ]


SIZE = 84
"""Height and width of a frame in pixels."""


PROTOCOLS = {
    "nature": {"sticky": 0.0, "full_action_set": False, "noop_max": 30, "episodic_life": True},
    "machado": {"sticky": 0.25, "full_action_set": True, "noop_max": 0, "episodic_life": False},
}
"""Default arguments of `Atari` by evaluation protocol."""


class Atari(gymnasium.Env[Array, Any]):
    """A game of the Arcade Learning Environment with uint8 observations `[stack, 84, 84]`, the newest frame last.

    A step repeats an action for `frameskip` frames. The newest frame of the observation is the pixelwise maximum of the
    step's last two frames. Rewards are not clipped. Gymnasium's environment with the wrappers AtariPreprocessing and
    FrameStackObservation has identical observations.

    `protocol` sets defaults for the other arguments:

    - nature (Mnih et al. 2015, Nature 518): only the actions that have an effect in this game
      (`full_action_set=False`), 1 to `noop_max` = 30 no-op frames at the start of an episode, and `episodic_life`.
    - machado (Machado et al. 2018, JAIR 61): all 18 actions, no no-op frames and no `episodic_life`. With probability
      `sticky` = 0.25, a frame repeats the action of the previous frame.

    With `episodic_life`, a step that costs a life without ending the game has `life_lost` in its info. Training treats
    this step as terminated, although the game continues. An episode is a whole game, truncated after `max_frames`.

    `mode` and `difficulty` are switches of the Atari console. Raise EnvError if the game does not have the given value.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  # a plain dict, as in gymnasium.Env

    def __init__(
        self,
        game: str,
        protocol: Literal["nature", "machado"] = "nature",
        *,
        sticky: float | None = None,
        full_action_set: bool | None = None,
        noop_max: int | None = None,
        episodic_life: bool | None = None,
        frameskip: int = 4,
        stack: int = 4,
        max_frames: int = 108_000,
        mode: int | None = None,
        difficulty: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        from ale_py import ALEInterface, LoggerMode, roms

        check_choice("protocol", protocol, tuple(PROTOCOLS))
        plain: Mapping[str, Any] = PROTOCOLS[protocol]
        self.noop_max = plain["noop_max"] if noop_max is None else noop_max
        self.sticky = plain["sticky"] if sticky is None else sticky
        check_number("sticky", self.sticky, Range(0, 1), is_whole=False)
        check_number("noop_max", self.noop_max, Range(0))
        for name, value in {"frameskip": frameskip, "stack": stack, "max_frames": max_frames}.items():
            check_number(name, value, Range(1))
        self.episodic_life = plain["episodic_life"] if episodic_life is None else episodic_life
        self.full_action_set = plain["full_action_set"] if full_action_set is None else full_action_set
        self.game, self.frameskip, self.max_frames = game, frameskip, max_frames
        self.mode, self.difficulty, self.render_mode = mode, difficulty, render_mode
        self._rom = roms.get_rom_path(game)
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale = ALEInterface()
        self._ale.setFloat("repeat_action_probability", self.sticky)
        self._ale.setInt("max_num_frames_per_episode", max_frames)
        self._seed(None)
        self._actions = self._ale.getLegalActionSet() if self.full_action_set else self._ale.getMinimalActionSet()
        self._last_two = np.zeros((2, *self._ale.getScreenDims()), np.uint8)
        self._resize = area_resize(self._ale.getScreenDims(), SIZE)
        self._frames = np.zeros((stack, SIZE, SIZE), np.uint8)
        self._lives = 0
        self.frame_stack = FrameStack(0, stack)
        self.observation_space = Box(0, 255, self._frames.shape, np.uint8)
        self.action_space = Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            self._seed(seed)
        self._ale.reset_game()
        for _ in range(self.np_random.integers(1, self.noop_max + 1) if self.noop_max else 0):
            self._ale.act(self._actions[0])
            if self._ale.game_over():
                self._ale.reset_game()
        self._lives = self._ale.lives()
        self._ale.getScreenGrayscale(self._last_two[0])
        self._last_two[1] = 0
        self._frames[:] = self._frame()
        return self._frames.copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        ale, made, reward = self._ale, self._actions[action], 0.0
        for left in range(self.frameskip - 1, -1, -1):
            reward += ale.act(made)
            terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            if terminated or truncated:
                break
            if left < 2:
                ale.getScreenGrayscale(self._last_two[left])
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._frame()
        lives, before = ale.lives(), self._lives
        self._lives = lives
        has_lost = self.episodic_life and 0 < lives < before  # some games have 0 lives for a while before they end
        return self._frames.copy(), reward, terminated, truncated, {"life_lost": True} if has_lost else {}

    def render(self) -> Array:
        picture: Array = self._ale.getScreenRGB()
        return picture

    def save_state(self) -> State:
        """Return the state of the console, which includes its random generator. `np_random` is saved separately."""
        return {"console": np.frombuffer(self._ale.cloneState(include_rng=True).serialize(), np.uint8)}

    def load_state(self, state: State) -> None:
        from ale_py import ALEState

        self._ale.restoreState(ALEState(state["console"].tobytes()))

    def _seed(self, seed: int | None) -> None:
        """Restart the console and seed all random generators, in the same way as the environment of ale_py."""
        ours, consoles = np.random.SeedSequence(seed).generate_state(2)
        self._np_random, _ = seeding.np_random(int(ours))
        self._ale.setInt("random_seed", int(np.int32(consoles)))
        self._ale.loadROM(self._rom)
        if self.mode is not None:
            check_choice("mode", self.mode, self._ale.getAvailableModes())
            self._ale.setMode(self.mode)
        if self.difficulty is not None:
            check_choice("difficulty", self.difficulty, self._ale.getAvailableDifficulties())
            self._ale.setDifficulty(self.difficulty)

    def _frame(self) -> Array:
        """Return the pooled frame, uint8 `[84, 84]`.

        Keep the maximum in `_last_two`, because the next step reuses it if the game ends before new frames are written.
        """
        np.maximum(self._last_two[0], self._last_two[1], out=self._last_two[0])
        return self._resize(self._last_two[0])


OLDEST = "0.12.1"
"""Oldest version of ale-py that can be used. A reset of some of the environments blocks for ever in version 0.12.0."""


def check_game(config: EnvConfig) -> None:
    """Raise MissingExtra or EnvError, with one line of advice, if ale-py's vector environment can't play the config."""
    _vector_env()
    game = games().get(config.id)
    if game is None or not str(game.entry_point).endswith(":Atari"):
        names = "only Atari games, such as env=Pong or env=ALE/Seaquest-v5"
        raise EnvError(f"env: env.backend=ale has {names}, not {config.id!r}; say env.backend=gymnasium")
    for name in ("mode", "difficulty"):
        if config.kwargs.get(name) is not None:
            raise EnvError(
                f"env.kwargs.{name}: ale-py's vector environment can't set the {name}; say env.backend=gymnasium"
            )


def make_vector(game: Atari, size: int, num_threads: int = 1) -> Any:
    """Return a vector environment with `size` environments that play as `game` does.

    The results do not depend on `num_threads`. The caller must do three things, because the vector environment differs
    from `Atari`:

    - reset an environment again if its episode began without no-op frames and `game.noop_max` is above 0. The vector
      environment plays 0 to `noop_max` no-op frames, `Atari` plays 1 to `noop_max`.
    - replace the black frames before the first frame of an episode by copies of the first frame.
    - derive lost lives from the info `lives`.
    """
    return _vector_env()(
        game.game,
        size,
        num_threads=num_threads,
        max_num_frames_per_episode=game.max_frames,
        repeat_action_probability=game.sticky,
        full_action_space=game.full_action_set,
        img_height=SIZE,
        img_width=SIZE,
        stack_num=game.frame_stack.k,
        frameskip=game.frameskip,
        noop_max=game.noop_max + 1 if game.noop_max else 0,
        episodic_life=False,
        reward_clipping=False,
        use_fire_reset=False,
    )


def _vector_env() -> Any:
    try:
        installed = metadata.version("ale-py")
    except metadata.PackageNotFoundError as error:
        raise MissingExtra("env.backend=ale needs ale-py:  pip install 'drl-cli[atari]'") from error
    if Version(installed) < Version(OLDEST):
        raise MissingExtra(f"env.backend=ale needs ale-py {OLDEST}, not {installed}:  pip install 'ale-py>={OLDEST}'")
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv

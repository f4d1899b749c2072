"""ale-py's vector environment (`env.backend=ale`): check that it can play a config, and make it."""

from importlib import metadata
from typing import Any

from packaging.version import Version

from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.games.atari import SIZE, Atari
from drl_cli.envs.games.names import games

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


def make_vector(game: Atari, size: int, num_threads: int = 1) -> Any:  # Any: ale-py has no precise types
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

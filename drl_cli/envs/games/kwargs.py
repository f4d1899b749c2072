"""Check the values of `env.kwargs.*` for the games."""

from collections.abc import Sequence

from drl_cli.envs.config import EnvError
from drl_cli.utils.ranges import Range


def check_number(name: str, value: object, allowed: Range, *, is_whole: bool = True) -> None:
    """Raise EnvError unless the value is a number (by default a whole number) in the allowed range."""
    kinds = int if is_whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise EnvError(f"env.kwargs.{name}: must be a {'whole ' if is_whole else ''}number, got {value!r}")
    if value not in allowed:
        raise EnvError(f"env.kwargs.{name}: must be {allowed}, got {value}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise EnvError unless the value is one of the choices."""
    if value not in choices:
        raise EnvError(f"env.kwargs.{name}={value}: there are {', '.join(map(str, choices))}")

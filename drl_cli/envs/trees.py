"""Dict and Tuple spaces as trees."""

from typing import Any, TypeAlias

from gymnasium import spaces

Space: TypeAlias = spaces.Space[Any]


def inner(space: Space) -> dict[Any, Space] | None:
    """The spaces that a Dict or Tuple is made of, by key or position; None for any other space."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None

"""Treat Dict and Tuple spaces as trees of other spaces."""

from typing import Any, TypeAlias

from gymnasium import spaces

Space: TypeAlias = spaces.Space[Any]

Path: TypeAlias = tuple[str | int, ...]
"""Keys of Dict spaces and positions in Tuple spaces that lead from the outermost space to an inner space."""


def inner(space: Space) -> dict[Any, Space] | None:
    """Return the spaces inside a Dict (by key) or Tuple (by position), or None for any other space."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def space_leaves(space: Space, path: Path = ()) -> list[tuple[Path, Space]]:
    """Return the path and space of each leaf of the tree. Leaves are all spaces except a Dict or Tuple with parts."""
    parts = inner(space)
    if not parts:
        return [(path, space)]
    return [leaf for key, part in parts.items() for leaf in space_leaves(part, (*path, key))]

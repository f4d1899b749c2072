"""Treat Dict and Tuple spaces as trees of other spaces, and write spaces as JSON, in the form that Minari has."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from drl_cli.envs.config import EnvError
from drl_cli.types import Columns

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


def dotted(path: Path) -> str:
    """Return the keys and positions of a path as text with dots."""
    return ".".join(map(str, path))


def parts_of(values: Any, prefix: str = "") -> Columns:  # Any: arrays, or dicts and tuples of them
    """Return the arrays in nested dicts and tuples by dotted path."""
    if isinstance(values, tuple):
        values = dict(enumerate(values))
    if not isinstance(values, Mapping):
        return {prefix.removesuffix("."): np.asarray(values)}
    return {name: part for key, value in values.items() for name, part in parts_of(value, f"{prefix}{key}.").items()}


def tree_of(space: Space, parts: Columns, prefix: str = "") -> Any:  # Any: arrays, or dicts and tuples of them
    """Return arrays by dotted path as the nested dicts and tuples of a space: the inverse of `parts_of`."""
    inside = inner(space)
    if not inside:
        return parts[prefix.removesuffix(".")]
    tree = {key: tree_of(part, parts, f"{prefix}{key}.") for key, part in inside.items()}
    return tree if isinstance(space, spaces.Dict) else tuple(tree.values())


def same_values(one: Space, other: Space) -> bool:
    """Return whether actions of two spaces mean the same. The dtype of a box does not matter."""
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        bounds = ((one.low, other.low), (one.high, other.high))
        return one.shape == other.shape and all(np.allclose(a, b) for a, b in bounds)
    parts, others = inner(one), inner(other)
    if parts is None or others is None:
        return type(one) is type(other) and one == other
    return parts.keys() == others.keys() and all(same_values(parts[key], others[key]) for key in parts)


def space_to_json(space: Space) -> str:
    """Return a space as JSON. Raise EnvError if it has a part that can't be recorded."""
    return json.dumps(_node(space))


def space_from_json(text: str) -> Space:
    """Return the space. Raise EnvError if the text describes none."""
    try:
        return _space(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise EnvError(f"its spaces can't be read ({error})") from error


def _node(space: Space) -> dict[str, Any]:
    kind = type(space).__name__
    if (parts := inner(space)) is not None:
        nodes = {str(key): _node(part) for key, part in parts.items()}
        return {"type": kind, "subspaces": nodes if kind == "Dict" else [*nodes.values()]}
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": kind, "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": kind, "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": kind, "dtype": str(space.dtype), "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": kind, "n": space.n if isinstance(space.n, int) else list(space.n)}
    raise EnvError(f"{space} can't be recorded")


def _space(node: dict[str, Any]) -> Space:
    match node["type"]:
        case "Dict":
            return spaces.Dict({key: _space(part) for key, part in node["subspaces"].items()})
        case "Tuple":
            return spaces.Tuple([_space(part) for part in node["subspaces"]])
        case "Box":
            low, high = (np.array(node[bound], node["dtype"]) for bound in ("low", "high"))
            return spaces.Box(low, high, tuple(node["shape"]), np.dtype(node["dtype"]).type)
        case "Discrete":
            return spaces.Discrete(node["n"], start=node["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(node["nvec"], np.dtype(node["dtype"]).type, start=node.get("start"))
        case "MultiBinary":
            return spaces.MultiBinary(node["n"])
        case kind:
            raise EnvError(f"{kind} spaces are not handled")

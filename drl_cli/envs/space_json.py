"""Write spaces as JSON, and read them, in the form in which Minari has them."""

import json
from typing import Any

import numpy as np
from gymnasium import spaces

from drl_cli.envs.config import EnvError
from drl_cli.envs.trees import Space, inner


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

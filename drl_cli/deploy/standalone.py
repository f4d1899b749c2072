"""A policy without drl-cli: `Policy(folder)` takes observations and gives actions, in the environment's own units.

This file imports numpy only. drl-export copies it as policy.py beside the weights and spec.json. An ONNX export also
needs onnxruntime, and a torch.export export needs torch.

    policy = Policy("export/numpy-step_000200000")
    action = policy(obs)                   # one observation, or a batch: actions `[n, ...]`
    policy.reset()                         # a new episode begins; only a policy with memory needs this
"""

import json
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
"""The types of arrays in a safetensors file."""


class Caller:
    """Check observations against a `signature`, keep track of where episodes begin, and call `act`.

    Subclasses implement `act`. In this class, Any is an observation or an action of the environment's spaces.
    """

    def __init__(self, signature: Mapping[str, Any]) -> None:
        self.signature = signature
        self._begins: Array | None = None

    def __call__(self, obs: Any, action_mask: Any = None, reward: Any = None) -> Any:
        """Return the best action for an observation, or a batch of actions for a batch of a vector environment.

        `action_mask` is `info["action_mask"]` if the environment has this entry. `reward` is the reward of the last
        step. Only custom policies use the reward. If a part of the observation is not in the environment's space, raise
        ValueError with the name of the part.
        """
        inputs, lead = self._read(obs, action_mask)
        num = lead[0] if lead else 1
        if self._begins is None or len(self._begins) != num:
            if self._begins is not None and self.signature["state"]:
                before = len(self._begins)
                raise ValueError(f"this policy remembers {before} episodes, and was given {num}: call reset() before")
            self._begins = np.ones(num, np.bool_)
        actions = self.act(inputs, self._begins, np.zeros(num) if reward is None else np.reshape(reward, num))
        self._begins = np.zeros(num, np.bool_)
        return _tree(self.signature["actions"], iter(actions if lead else [_first(action) for action in actions]))

    def reset(self, ended: Any = None) -> None:
        """Begin new episodes at the next call. In a batch, `ended` (bool `[n]`) can select some of the episodes."""
        if ended is None or self._begins is None:
            self._begins = None
        else:
            self._begins = self._begins | np.reshape(ended, self._begins.shape).astype(np.bool_)

    def act(self, inputs: list[Array], begins: Array, reward: Array) -> list[Array]:
        """Return the signature's outputs `[n, ...]` for `inputs` `[n, ...]`. `begins` and `reward` have shape `[n]`."""
        raise NotImplementedError

    def _read(self, obs: Any, action_mask: Any) -> tuple[list[Array], tuple[int, ...]]:
        """Return the inputs `[n, ...]`, and the batch shape: `(n,)` for a batch, `()` for one observation."""
        arrays, lead = [], None
        for part in self.signature["inputs"]:
            value = _at(obs, action_mask, part)
            shape = tuple(part["shape"])
            extra = value.shape[: value.ndim - len(shape)]
            lead = extra if lead is None else lead
            if len(extra) > 1 or value.shape != (*lead, *shape):
                expected = f"{shape}, or (n, {', '.join(map(str, shape))}) for a batch"
                raise ValueError(f"{part['name']} has shape {value.shape}, expected {expected}")
            arrays.append(_checked(part, value).reshape(*(lead or (1,)), *shape))
        assert lead is not None
        return arrays, lead


class Policy(Caller):
    """The policy in a folder that drl-export wrote.

    If actions are choices, `values` are the Q values or logits `[n, choices]` of the last call.
    """

    def __init__(self, folder: str | Path) -> None:
        spec = json.loads((Path(folder) / "spec.json").read_text())
        super().__init__(spec)
        makers: dict[str, Callable[..., Callable[[Sequence[Array]], list[Array]]]]
        makers = {"numpy": _numpy, "onnx": _onnx, "torch": _torch}
        self._run = makers[spec["format"]](spec, Path(folder) / spec["file"])
        self._state: Array = np.zeros((0, 0), np.float32)
        self.values: Array | None = None

    def act(self, inputs: list[Array], begins: Array, reward: Array) -> list[Array]:
        state = self.signature["state"]
        if state:
            before = self._state if len(self._state) == len(begins) else np.zeros((len(begins), state["size"]))
            inputs = [*inputs, np.where(begins[:, None], 0, before).astype(np.float32)]
        outputs = self._run(inputs)
        if state:
            self._state = outputs.pop()
        if self.signature["values"]:
            self.values = outputs.pop()
        return outputs


def _onnx(spec: Mapping[str, Any], file: Path) -> Callable[[Sequence[Array]], list[Array]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda inputs: list(session.run(None, dict(zip(names, inputs, strict=True))))


def _torch(spec: Mapping[str, Any], file: Path) -> Callable[[Sequence[Array]], list[Array]]:
    import torch

    module = torch.export.load(file).module()

    def run(inputs: Sequence[Array]) -> list[Array]:
        with torch.no_grad():
            outputs = module(*(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs))
        return [output.numpy() for output in outputs]

    return run


def _numpy(spec: Mapping[str, Any], file: Path) -> Callable[[Sequence[Array]], list[Array]]:
    arrays, network = read_safetensors(file), runpy.run_path(str(file.with_name("network.py")))
    weights = network["load_act"](arrays["parameters"], [arrays[f"constant{i}"] for i in range(len(arrays) - 1)])
    return lambda inputs: list(network["act"](weights, None, *inputs))


def bounds(part: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return the lower and upper bounds `[size]` of a part. A missing bound is infinite."""
    size = int(np.prod(part["shape"]))
    low, high = (np.array(part[name], np.float64) for name in ("low", "high"))  # None becomes NaN
    low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    return np.broadcast_to(low.reshape(-1), size), np.broadcast_to(high.reshape(-1), size)


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a safetensors file, by name."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        array = np.frombuffer(content[start + first : start + last], DTYPES[entry["dtype"]])
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def _at(obs: Any, action_mask: Any, part: Mapping[str, Any]) -> Array:
    if part["name"] == "action_mask" and not part["path"]:
        if action_mask is None:
            raise ValueError(
                "this environment says in info which actions are allowed: policy(obs, info['action_mask'])"
            )
        obs = action_mask
    for key in part["path"]:
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the observation has no part {'.'.join(map(str, part['path']))!r}") from error
    if part["name"] == "action_mask" and isinstance(obs, tuple):  # one mask per component of the action
        return np.concatenate([np.asarray(each) for each in obs], -1)
    return np.asarray(obs)


def _checked(part: Mapping[str, Any], value: Array) -> Array:
    """Convert the value to the dtype of the input. Raise ValueError if the value is not in the input's space."""
    if value.dtype.kind not in "buif" or (part["dtype"] == "uint8" and value.dtype.kind == "f"):
        raise ValueError(f"{part['name']} is {value.dtype}, expected {part['dtype']}")
    if part["choices"]:
        least = np.array(part["start"])
        if not ((value >= least) & (value < least + np.reshape(part["choices"], part["shape"]))).all():
            raise ValueError(f"{part['name']} is outside its space: {value.tolist()}")
    return value.astype(part["dtype"])


def from_zero(part: Mapping[str, Any], value: Array) -> Array:
    """Return choices counted from 0 instead of the space's `start`. Return other values unchanged."""
    return value - np.array(part["start"]) if part["choices"] else value


def some_allowed(mask: Array, choices: Sequence[int]) -> Array:
    """Return the mask, but allow every choice of an action component for which the mask allows no choice."""
    parts = np.split(mask, np.cumsum(choices)[:-1], 1)
    return np.concatenate([part | ~part.any(1, keepdims=True) for part in parts], 1)


def _tree(tree: Any, actions: Iterator[Any]) -> Any:
    if tree is None:
        return next(actions)
    if isinstance(tree, Mapping):
        return {key: _tree(inner, actions) for key, inner in tree.items()}
    return tuple(_tree(inner, actions) for inner in tree)


def _first(action: Array) -> Any:
    return action[0].item() if action.ndim == 1 and action.dtype.kind in "iu" else action[0]

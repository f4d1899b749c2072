"""A policy without drl-cli: `Policy(folder)` takes observations and gives actions, in the environment's own units.

This file imports numpy only. drl-export copies it as policy.py beside the weights and spec.json. An ONNX export also
needs onnxruntime, and a torch.export export needs torch.

    policy = Policy("export/numpy-step_000200000")
    action = policy(obs)                   # one observation, or a batch: actions `[n, ...]`
    policy.reset()                         # a new episode begins; only a policy with memory needs this
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

FORBIDDEN = -1e9
"""The value of a choice that the legal-action mask forbids."""
NORM_EPS = 1e-5
"""The constant that layer norm adds to a variance."""


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
        makers = {"numpy": Network, "onnx": _onnx, "torch": _torch}
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


class Network:
    """The network in numpy. It maps inputs and state to actions, the values of choices, and the new state."""

    def __init__(self, spec: Mapping[str, Any], file: Path) -> None:
        self.spec, self.plan, self.weights = spec, spec["network"], read_safetensors(file)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        parts = {part["name"]: part for part in self.spec["inputs"]}
        given = dict(zip(parts, inputs, strict=False))
        mask = given.pop("action_mask", None)
        seen = {name: self._normalized(name, from_zero(parts[name], array)) for name, array in given.items()}
        features = [self._torso(torso, seen[torso["input"]]) for torso in self.plan["torsos"]]
        features += [_flat(parts[name], seen[name]) for name in self.plan["flat"]]
        x, state = np.concatenate(features, 1), []
        if self.plan["memory"]:
            x, after = self._remember(x, inputs[-1])
            state = [after]
        x = self._head(x)
        if not self.plan["choices"]:
            x = most_likely(x, self.plan.get("components", 1))
            raw = np.tanh(x) if self.plan["is_squashed"] else x
            return [*box_actions(self.spec["outputs"], raw), *state]
        values = x if mask is None else np.where(some_allowed(mask, self.plan["choices"]), x, np.float32(FORBIDDEN))
        return [*chosen(self.spec["outputs"], values), values, *state]

    def _normalized(self, name: str, x: Array) -> Array:
        if f"{name}.mean" not in self.weights:
            return x
        bound, mean, scale = self.plan["bound"], self.weights[f"{name}.mean"], self.weights[f"{name}.scale"]
        return np.clip((x.astype(np.float32) - mean) / scale, -bound, bound)

    def _torso(self, torso: Mapping[str, Any], obs: Array) -> Array:
        n, (height, width) = len(obs), torso["sides"]
        x = obs.reshape(n, *torso["shape"]).transpose(torso["axes"]).reshape(n, -1, height, width).astype(np.float32)
        x = x * np.float32(1 / 255) if obs.dtype == np.uint8 else x
        return self._layers(torso["layers"], x).reshape(n, -1)

    def _layers(self, layers: Sequence[Any], x: Array) -> Array:
        for kind, *options in layers:
            if kind == "conv":
                name, stride, padding = options
                weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
                windows = _windows(x, weight.shape[-1], stride, padding, 0.0)
                x = (np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3))) + bias).transpose(0, 3, 1, 2)
            elif kind == "pool":
                size, stride, padding = options
                x = _windows(x, size, stride, padding, -np.inf).max((-2, -1))
            elif kind == "residual":
                x = x + self._layers(options[0], x)
            else:
                x = activated(x, kind)
        return x

    def _remember(self, x: Array, state: Array) -> tuple[Array, Array]:
        """Take one step of an LSTM or a GRU. Return the output and the new state."""
        w_in, w_state, b_in, b_state = (self.weights[f"memory.{i}"] for i in range(4))
        h, c = np.split(state, 2, 1) if self.plan["memory"] == "lstm" else (state, state)
        a, b = x @ w_in.T + b_in, h @ w_state.T + b_state
        if self.plan["memory"] == "lstm":
            i, f, g, o = np.split(a + b, 4, 1)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
            return h, np.concatenate([h, c], 1)
        (r_a, z_a, n_a), (r_b, z_b, n_b) = np.split(a, 3, 1), np.split(b, 3, 1)
        z, n = _sigmoid(z_a + z_b), np.tanh(n_a + _sigmoid(r_a + r_b) * n_b)
        h = (1 - z) * n + z * h
        return h, h

    def _head(self, x: Array) -> Array:
        if self.plan["trunk"]:
            kind = self.plan["trunk_activation"]
            x = self._mlp("trunk", x, kind)
            x = activated(normalized(x) if self.plan["norms_trunk"] else x, kind)
        if "embedded" in self.weights:  # IQN: average the quantiles at fixed fractions
            embedded = self.weights["embedded"]
            outputs = self._mlp("head", (x[:, None] * embedded).reshape(-1, x.shape[1]), self.plan["activation"])
            mean: Array = outputs.reshape(len(x), len(embedded), -1).mean(1)
            return mean
        x = self._mlp("head", x, self.plan["activation"])
        if "support" in self.weights:  # C51: average over the distribution on `support`
            support = self.weights["support"]
            powers = np.exp(x - x.max(1, keepdims=True)).reshape(len(x), -1, len(support))
            counts = risky((powers / powers.sum(-1, keepdims=True)).cumsum(-1).clip(max=1.0), *self.plan["risk"])
            x = np.diff(counts, axis=-1, prepend=np.float32(0.0)) @ support
        return x

    def _mlp(self, name: str, x: Array, activation: str) -> Array:
        step = 4 if self.plan["layer_norm"] else 2
        last = self.plan[name] - 2
        for i in range(0, last + 1, step):
            x = x @ self.weights[f"{name}.{i}"] + self.weights[f"{name}.{i + 1}"]
            if i < last:
                if step == 4:
                    x = normalized(x) * self.weights[f"{name}.{i + 2}"] + self.weights[f"{name}.{i + 3}"]
                x = activated(x, activation)
        return x


def risky(share: Any, risk: str, level: float) -> Any:
    """Return the weight that a risk measure (mean, cvar or power) gives to the worst `share` of all returns."""
    if risk == "cvar":
        return (share / level).clip(max=1.0)
    if risk == "power":
        return share ** (1.0 + level) if level >= 0 else 1.0 - (1.0 - share) ** (1.0 - level)
    return share


def most_likely(x: Array, components: int) -> Array:
    """Return the action `[n, A]` with the largest logit, given K actions and then K logits, `[n, K A + K]`."""
    if components == 1:
        return x
    best: Array = x[:, :-components].reshape(len(x), components, -1)[np.arange(len(x)), x[:, -components:].argmax(1)]
    return best


def box_actions(outputs: Sequence[Mapping[str, Any]], raw: Array) -> list[Array]:
    """Scale `raw` `[n, dimensions]` from [-1, 1] to the environment's actions: low + (raw + 1) / 2 (high - low).

    If a dimension lacks a bound, do not scale, but clip the value to the other bound if there is one.
    """
    sizes = [int(np.prod(part["shape"])) for part in outputs]
    actions = []
    for part, values in zip(outputs, np.split(raw, np.cumsum(sizes)[:-1], 1), strict=True):
        low, high = bounds(part)
        is_free = ~(np.isfinite(low) & np.isfinite(high))
        first, last = (np.where(is_free, 0.0, bound) for bound in (low, high))
        scaled = first + (np.clip(values, -1.0, 1.0) + 1.0) * ((last - first) / 2)
        scaled = np.where(is_free, np.clip(values, low, high), scaled)
        actions.append(scaled.astype(part["dtype"]).reshape(len(raw), *part["shape"]))
    return actions


def bounds(part: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return the lower and upper bounds `[size]` of a part. A missing bound is infinite."""
    size = int(np.prod(part["shape"]))
    low, high = (np.array(part[name], np.float64) for name in ("low", "high"))  # None becomes NaN
    low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    return np.broadcast_to(low.reshape(-1), size), np.broadcast_to(high.reshape(-1), size)


def chosen(outputs: Sequence[Mapping[str, Any]], values: Array) -> list[Array]:
    """Return, for each part, the environment's actions with the highest `values` `[n, sum of choices]`."""
    ends, actions = np.cumsum([n for part in outputs for n in part["choices"]]), []
    best = iter([choice.argmax(1) for choice in np.split(values, ends[:-1], 1)])
    for part in outputs:
        choices = np.stack([next(best) for _ in part["choices"]], 1)
        action = choices.reshape(len(values), *part["shape"]) + np.array(part["start"])
        actions.append(action.astype(part["dtype"]))
    return actions


def _windows(x: Array, size: int, stride: int, padding: int, fill: float) -> Array:
    """Pad `x` with `fill`, and return its sliding windows `[n, channels, height, width, size, size]`."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))[:, :, ::stride, ::stride]


def normalized(x: Array) -> Array:
    """Return rows with mean 0 and variance 1, as layer norm computes them before its weights."""
    x = x - x.mean(1, keepdims=True)
    scaled: Array = x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(NORM_EPS))
    return scaled


def activated(x: Array, kind: str) -> Array:
    """Apply the activation function `kind`: relu, tanh or elu."""
    if kind == "relu":
        return np.maximum(x, 0)
    return np.tanh(x) if kind == "tanh" else np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the float32 arrays of a safetensors file, by name."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    slices = {name: (entry["shape"], *entry["data_offsets"]) for name, entry in header.items()}
    return {
        name: np.frombuffer(content[start + first : start + last], "<f4").reshape(shape)
        for name, (shape, first, last) in slices.items()
    }


def _at(obs: Any, action_mask: Any, part: Mapping[str, Any]) -> Array:
    """Return the value of the input `part`, taken from the observation or from the legal-action mask."""
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


def _flat(part: Mapping[str, Any], x: Array) -> Array:
    """Flatten an input to float32 `[n, width]`. Choices become one-hot, and bytes are scaled to [0, 1]."""
    if part["choices"]:
        one_hot = np.zeros((len(x), sum(part["choices"])), np.float32)
        starts = np.cumsum([0, *part["choices"][:-1]])
        np.put_along_axis(one_hot, x.reshape(len(x), -1) + starts, 1.0, 1)
        return one_hot
    flat: Array = x.reshape(len(x), -1).astype(np.float32)
    return flat * np.float32(1 / 255) if x.dtype == np.uint8 else flat


def some_allowed(mask: Array, choices: Sequence[int]) -> Array:
    """Return the mask, but allow every choice of an action component for which the mask allows no choice."""
    parts = np.split(mask, np.cumsum(choices)[:-1], 1)
    return np.concatenate([part | ~part.any(1, keepdims=True) for part in parts], 1)


def _sigmoid(x: Array) -> Array:
    half: Array = 0.5 + 0.5 * np.tanh(0.5 * x)
    return half


def _tree(tree: Any, actions: Iterator[Any]) -> Any:
    """Arrange the actions in dicts and tuples as in the environment's space."""
    if tree is None:
        return next(actions)
    if isinstance(tree, Mapping):
        return {key: _tree(inner, actions) for key, inner in tree.items()}
    return tuple(_tree(inner, actions) for inner in tree)


def _first(action: Array) -> Any:
    return action[0].item() if action.ndim == 1 and action.dtype.kind in "iu" else action[0]

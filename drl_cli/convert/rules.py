"""The numpy form of each operation of torch that can be converted.

A template has the names of the operation's arguments in braces, or `out`, the shape of the result, or `dtype`, the type
of the result. Arguments that a template does not have must have their default values. An operation that is in no table
here is refused by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from drl_cli.convert.trace import Call, NotConverted, Rows


@dataclass(frozen=True)
class Op:
    """A call to be written: the source of each argument, the shape of `self`, and the shape of each result."""

    call: Call
    text: Mapping[str, str]
    shape: Sequence[int | Rows]
    outs: Sequence[Sequence[int | Rows]]

    @property
    def axis(self) -> int:
        """The argument `dim`, counted from 0."""
        return int(self.call.args["dim"]) % max(len(self.shape), 1)

    def part(self, index: str) -> str:
        """Return the source of a part of `self` along the axis `dim`."""
        return f"{self.text['self']}[{':, ' * self.axis}{index}]"


Rule = str | tuple[str, ...] | Callable[[Op], Sequence[str]]
"""One template for each result, or a function that returns the source of each result."""

IGNORED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "sparse_grad", "half_to_float")
"""Arguments that do not change values."""


def _slice(op: Op) -> list[str]:
    args = op.call.args
    end = "" if args["end"] in (None, 2**63 - 1) else op.text["end"]
    step = "" if args["step"] == 1 else f":{op.text['step']}"
    return [op.part(f"{op.text['start'] if args['start'] else ''}:{end}{step}")]


def _split(op: Op) -> list[str]:
    sizes = [shape[op.axis] for shape in op.outs]
    if any(isinstance(size, Rows) for size in sizes):
        raise NotConverted(f"{op.call.op} splits the rows")
    ends = [*accumulate(size for size in sizes if isinstance(size, int))]
    return [op.part(f"{start}:{end}") for start, end in zip([0, *ends], ends, strict=False)]


def _arange(op: Op) -> list[str]:
    limits = ", ".join(op.text[name] for name in ("start", "end", "step") if name in op.text)
    return [f"np.arange({limits}, dtype={op.text['dtype']})"]


def _convolution(op: Op) -> list[str]:
    args = op.call.args
    if args["transposed"] or args["groups"] != 1 or set(args["dilation"]) != {1} or len(args["stride"]) != 2:
        raise NotConverted("only plain convolutions of images have a numpy form")
    return ["convolution({input}, {weight}, {bias}, {stride}, {padding})".format_map(op.text)]


def _max_pool(op: Op) -> list[str]:
    args = op.call.args
    if set(args["dilation"]) != {1} or args["ceil_mode"] or len(args["kernel_size"]) != 2:
        raise NotConverted("only plain pooling of images has a numpy form")
    sides = {name: op.text[name] for name in ("kernel_size", "padding")}
    stride = op.text["stride"] if args["stride"] else sides["kernel_size"]
    return [f"max_pool({op.text['self']}, {sides['kernel_size']}, {stride}, {sides['padding']})"]


UFUNCS: Mapping[str, Rule] = {
    "add": "np.add({self}, {other})",
    "sub": "np.subtract({self}, {other})",
    "rsub": "np.subtract({other}, {self})",
    "mul": "np.multiply({self}, {other})",
    "div": "np.divide({self}, {other})",
    "maximum": "np.maximum({self}, {other})",
    "minimum": "np.minimum({self}, {other})",
    "relu": "np.maximum({self}, 0.0)",
    "clamp_min": "np.maximum({self}, {min})",
    "clamp_max": "np.minimum({self}, {max})",
    "abs": "np.abs({self})",
    "neg": "np.negative({self})",
    "atanh": "np.arctanh({self})",
    **{name: f"np.{name}({{self}})" for name in ("tanh", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos")},
    **{name: f"np.{name}({{self}})" for name in ("sign", "floor", "reciprocal")},
}
"""Operations that may write their result over an argument, if nothing else needs the argument."""

RESHAPES = ("view", "_unsafe_view", "squeeze", "unsqueeze", "detach", "alias", "lift_fresh")
"""Operations whose result has the elements of the argument in the same order."""

VIEWS: Mapping[str, Rule] = {
    **dict.fromkeys(RESHAPES, "{self}.reshape({out})"),
    "t": "{self}.T",
    "transpose": "{self}.swapaxes({dim0}, {dim1})",
    "permute": "{self}.transpose({dims})",
    "expand": "np.broadcast_to({self}, {out})",
    "select": lambda op: [op.part(op.text["index"])],
    "slice": _slice,
    "unbind": lambda op: [op.part(str(i)) for i in range(len(op.outs))],
    **dict.fromkeys(("split", "unsafe_split", "split_with_sizes"), _split),
}
"""Operations whose results may share the memory of their argument."""

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_SIGNS |= {"bitwise_and": "&", "logical_and": "&", "bitwise_or": "|", "logical_or": "|"}
_REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "any": "any", "all": "all"}
_REDUCTIONS |= {"argmax": "argmax", "argmin": "argmin"}

FRESH: Mapping[str, Rule] = {
    **dict.fromkeys(("mm", "bmm"), "{self} @ {mat2}"),
    "mv": "{self} @ {vec}",
    "elu": "elu({self}, {alpha})",
    "sigmoid": "sigmoid({self})",
    "silu": "{self} * sigmoid({self})",
    "mish": "{self} * np.tanh(softplus({self}, 1.0, 20.0))",
    "softplus": "softplus({self}, {beta}, {threshold})",
    "leaky_relu": "np.where({self} > 0, {self}, {negative_slope} * {self})",
    "clamp": "clamp({self}, {min}, {max})",
    "hardtanh": "clamp({self}, {min_val}, {max_val})",
    "pow": "{self} ** {exponent}",
    "rsqrt": "1.0 / np.sqrt({self})",
    "addcmul": "{self} + {value} * {tensor1} * {tensor2}",
    "lerp": "{self} + {weight} * ({end} - {self})",
    "where": "np.where({condition}, {self}, {other})",
    "masked_fill": "np.where({mask}, {value}, {self})",
    "_softmax": "softmax({self}, {dim})",
    "_log_softmax": "log_softmax({self}, {dim})",
    "native_layer_norm": "layer_norm({input}, {normalized_shape}, {weight}, {bias}, {eps})",
    "linalg_vector_norm": "np.sqrt(np.square({self}).sum({dim}, keepdims={keepdim}))",
    "convolution": _convolution,
    "max_pool2d_with_indices": _max_pool,
    **{op: f"{{self}}.{name}({{dim}}, keepdims={{keepdim}})" for op, name in _REDUCTIONS.items()},
    "max": ("{self}.max({dim}, keepdims={keepdim})", "{self}.argmax({dim}, keepdims={keepdim})"),
    "min": ("{self}.min({dim}, keepdims={keepdim})", "{self}.argmin({dim}, keepdims={keepdim})"),
    "cumsum": "{self}.cumsum({dim})",
    "cat": "np.concatenate({tensors}, {dim})",
    "stack": "np.stack({tensors}, {dim})",
    "gather": "np.take_along_axis({self}, {index}, {dim})",
    "index_select": "np.take({self}, {index}, {dim})",
    "embedding": "{weight}[{indices}]",
    "scatter": "scattered({self}, {dim}, {index}, {value})",
    "copy": "np.broadcast_to({src}, {out}).astype({dtype})",
    "clone": "{self}.copy()",
    "_to_copy": "{self}.astype({dtype})",
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like", "zero"), "np.zeros({out}, {dtype})"),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), "np.ones({out}, {dtype})"),
    **dict.fromkeys(("full", "full_like"), "np.full({out}, {fill_value}, {dtype})"),
    "fill": "np.full({out}, {value}, {dtype})",
    "scalar_tensor": "np.array({s}, {dtype})",
    "arange": _arange,
    **{op: f"{{self}} {sign} {{other}}" for op, sign in _SIGNS.items()},
    **dict.fromkeys(("bitwise_not", "logical_not"), "~{self}"),
}

"""Each rule: what the generated numpy function returns, compared with torch for other inputs and numbers of rows."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from drl_cli.convert.program import KERNELS
from drl_cli.convert.rules import FRESH, RESHAPES, UFUNCS, VIEWS
from drl_cli.convert.source import write
from drl_cli.convert.trace import Draws, merged, needed, record, without_reshapes, without_writes

WEIGHTS = 24


def data(rows):
    """Return inputs `x` [n, 4], `i` [n, 2] of 0 to 3, `b` [n, 4] and `image` [n, 2, 5, 6], and the weights `w` [24]."""
    rng = np.random.default_rng(rows)
    x, image = rng.standard_normal((rows, 4), np.float32), rng.standard_normal((rows, 2, 5, 6), np.float32)
    return [x, rng.integers(4, size=(rows, 2)), x > 0, image, rng.standard_normal(WEIGHTS, np.float32)]


def outputs(made):
    return made if isinstance(made, dict) else {"out": made}


def numpy_form(function):
    """Return a function of numpy arrays that does what `function(x, i, b, image, w)` does, its source and its trace."""

    def traced(rows):
        *inputs, weights = map(torch.from_numpy, data(rows))
        rng = Draws(np.random.PCG64(rows))
        names = dict(zip(("x", "i", "b", "image"), inputs, strict=True))
        return record(lambda: outputs(function(*inputs, weights)), names, [weights], rng)

    trace = needed(without_reshapes(without_writes(merged(traced(3), traced(5), (3, 5))), RESHAPES))
    constants = []
    source = write("f", trace, constants)
    scope = {"np": np, **KERNELS}
    exec(source, scope)

    def run(*inputs):
        *inputs, weights = inputs
        results = scope["f"](scope["load_f"](weights, constants), None, *inputs)
        return results[0] if len(results) == 1 else results

    return run, source, trace


def check(function, rows=(1, 2, 7)):
    """Check that the numpy form of a function gives its results, and changes no input. Return the source."""
    run, source, _ = numpy_form(function)
    for n in rows:
        arrays = data(n)
        with torch.no_grad():
            expected = function(*(torch.from_numpy(each.copy()) for each in arrays)).numpy()
        before = [each.copy() for each in arrays]
        found = run(*arrays)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
        for array, same in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, same)
            assert not np.shares_memory(found, array)
        again = run(*data(n + 1))
        assert not np.shares_memory(found, again)
    return source


def W(w):
    return w[:16].view(4, 4)


CASES = {
    "add": lambda x, i, b, image, w: x + w[:4],
    "sub": lambda x, i, b, image, w: x - w[:4],
    "rsub": lambda x, i, b, image, w: 3.0 - x,
    "mul": lambda x, i, b, image, w: x * w[:4],
    "div": lambda x, i, b, image, w: x / w[:4],
    "maximum": lambda x, i, b, image, w: torch.maximum(x, w[:4]),
    "minimum": lambda x, i, b, image, w: torch.minimum(x, w[:4]),
    "relu": lambda x, i, b, image, w: F.relu(x),
    "clamp_min": lambda x, i, b, image, w: torch.clamp_min(x, 0.2),
    "clamp_max": lambda x, i, b, image, w: torch.clamp_max(x, 0.2),
    "abs": lambda x, i, b, image, w: x.abs(),
    "neg": lambda x, i, b, image, w: -x,
    "atanh": lambda x, i, b, image, w: (x / 10).atanh(),
    "tanh": lambda x, i, b, image, w: x.tanh(),
    "exp": lambda x, i, b, image, w: x.exp(),
    "expm1": lambda x, i, b, image, w: x.expm1(),
    "log": lambda x, i, b, image, w: (x.abs() + 0.1).log(),
    "log1p": lambda x, i, b, image, w: x.abs().log1p(),
    "sqrt": lambda x, i, b, image, w: x.abs().sqrt(),
    "sin": lambda x, i, b, image, w: x.sin(),
    "cos": lambda x, i, b, image, w: x.cos(),
    "sign": lambda x, i, b, image, w: x.sign(),
    "floor": lambda x, i, b, image, w: x.floor(),
    "reciprocal": lambda x, i, b, image, w: (x.abs() + 0.5).reciprocal(),
    "view": lambda x, i, b, image, w: x.view(-1, 2, 2) * 1.0,
    "_unsafe_view": lambda x, i, b, image, w: torch.matmul(x.view(-1, 2, 2).transpose(1, 2), w[:4].view(2, 2)),
    "squeeze": lambda x, i, b, image, w: x.view(-1, 1, 4).squeeze(1) + 1,
    "unsqueeze": lambda x, i, b, image, w: x.unsqueeze(1) + x.unsqueeze(-1),
    "detach": lambda x, i, b, image, w: x.detach() + 1,
    "alias": lambda x, i, b, image, w: torch.ops.aten.alias(x) + 1,
    "lift_fresh": lambda x, i, b, image, w: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "t": lambda x, i, b, image, w: x @ W(w).t(),
    "transpose": lambda x, i, b, image, w: x.view(-1, 2, 2).transpose(1, 2) * w[:2],
    "permute": lambda x, i, b, image, w: image.permute(0, 3, 1, 2) * w[:5, None][:, :1].T[:, :1].exp(),
    "expand": lambda x, i, b, image, w: w[:4].expand(x.shape[0], 4),
    "select": lambda x, i, b, image, w: x[:, 2] + image[:, 1, -1, 0],
    "slice": lambda x, i, b, image, w: x[:, 1:3] + x[:, ::2] + x[:, -2:] + x[:, :2],
    "unbind": lambda x, i, b, image, w: x.unbind(1)[1] * x.unbind(1)[3],
    "split": lambda x, i, b, image, w: x.split(2, 1)[1] - x.split(2, 1)[0],
    "unsafe_split": lambda x, i, b, image, w: torch.ops.aten.unsafe_split(x, 2, 1)[1] + 1,
    "split_with_sizes": lambda x, i, b, image, w: x.split([1, 3], -1)[1] + x.split([3, 1], -1)[1],
    "mm": lambda x, i, b, image, w: x @ W(w),
    "bmm": lambda x, i, b, image, w: torch.bmm(x.view(-1, 2, 2), x.view(-1, 2, 2)),
    "mv": lambda x, i, b, image, w: x @ w[:4],
    "elu": lambda x, i, b, image, w: F.elu(3 * x, 0.5),
    "sigmoid": lambda x, i, b, image, w: torch.sigmoid(100 * x),
    "silu": lambda x, i, b, image, w: F.silu(x),
    "mish": lambda x, i, b, image, w: F.mish(x),
    "softplus": lambda x, i, b, image, w: F.softplus(40 * x, 2.0, 15.0),
    "leaky_relu": lambda x, i, b, image, w: F.leaky_relu(x, 0.2),
    "clamp": lambda x, i, b, image, w: x.clamp(-0.5, 0.25) + x.clamp(max=0.1) + x.clamp(min=0.2),
    "hardtanh": lambda x, i, b, image, w: F.hardtanh(x, -0.5, 0.25),
    "pow": lambda x, i, b, image, w: x**3,
    "rsqrt": lambda x, i, b, image, w: (x.abs() + 0.1).rsqrt(),
    "addcmul": lambda x, i, b, image, w: torch.addcmul(x, w[:4], w[4:8], value=0.5),
    "lerp": lambda x, i, b, image, w: x.lerp(w[:4], 0.3) + x.lerp(w[4:8], w[8:12]),
    "where": lambda x, i, b, image, w: torch.where(b, x, w[:4]),
    "masked_fill": lambda x, i, b, image, w: x.masked_fill(b, -float("inf")),
    "_softmax": lambda x, i, b, image, w: x.softmax(-1),
    "_log_softmax": lambda x, i, b, image, w: x.view(-1, 2, 2).log_softmax(1),
    "native_layer_norm": lambda x, i, b, image, w: (
        F.layer_norm(x, (4,), w[:4], w[4:8]) + F.layer_norm(x.view(-1, 2, 2), (2, 2), eps=0.1).view(-1, 4)
    ),
    "linalg_vector_norm": lambda x, i, b, image, w: F.normalize(x, dim=1),
    "max_pool2d_with_indices": lambda x, i, b, image, w: F.max_pool2d(image, 3, stride=2, padding=1),
    "convolution": lambda x, i, b, image, w: (
        F.conv2d(image, w[:8].view(2, 2, 1, 2), w[8:10], stride=2, padding=1)
        + F.conv2d(image, w[8:16].view(2, 2, 1, 2), stride=(2, 2), padding=1)
    ),
    "sum": lambda x, i, b, image, w: image.sum((1, 3)) + x.sum(-1, keepdim=True),
    "mean": lambda x, i, b, image, w: x.mean(-1),
    "amax": lambda x, i, b, image, w: x.amax(-1),
    "amin": lambda x, i, b, image, w: x.amin(-1, keepdim=True),
    "any": lambda x, i, b, image, w: b.any(-1),
    "all": lambda x, i, b, image, w: b.all(-1),
    "argmax": lambda x, i, b, image, w: x.argmax(-1),
    "argmin": lambda x, i, b, image, w: x.argmin(-1, keepdim=True),
    "max": lambda x, i, b, image, w: x.max(-1)[0] + x.max(-1)[1],
    "min": lambda x, i, b, image, w: x.min(1)[0] + x.min(1)[1],
    "cumsum": lambda x, i, b, image, w: x.cumsum(-1),
    "cat": lambda x, i, b, image, w: torch.cat([x, x.exp(), w[:3].expand(x.shape[0], 3)], -1),
    "stack": lambda x, i, b, image, w: torch.stack([x, x.exp()], 1),
    "gather": lambda x, i, b, image, w: x.gather(-1, i),
    "index_select": lambda x, i, b, image, w: x.index_select(1, torch.tensor([3, 0])),
    "embedding": lambda x, i, b, image, w: F.embedding(i, W(w)),
    "scatter": lambda x, i, b, image, w: torch.zeros(len(x), 4).scatter_(1, i, 1.0) + x.scatter(1, i, 2.0),
    "copy": lambda x, i, b, image, w: torch.zeros(x.shape[0], 4).copy_(w[:4]),
    "clone": lambda x, i, b, image, w: x.clone().add_(1),
    "_to_copy": lambda x, i, b, image, w: b.float() + i.sum(-1, keepdim=True).to(torch.float32),
    "zeros": lambda x, i, b, image, w: torch.zeros(2 * x.shape[0], 3),
    "new_zeros": lambda x, i, b, image, w: x.new_zeros(x.shape[0]),
    "zeros_like": lambda x, i, b, image, w: torch.zeros_like(x),
    "zero": lambda x, i, b, image, w: x.exp().zero_(),
    "ones": lambda x, i, b, image, w: torch.ones(x.shape[0], dtype=torch.bool),
    "new_ones": lambda x, i, b, image, w: x.new_ones(x.shape[0], dtype=torch.int64),
    "ones_like": lambda x, i, b, image, w: torch.ones_like(x),
    "full": lambda x, i, b, image, w: torch.full((x.shape[0], 2), 7.5),
    "full_like": lambda x, i, b, image, w: torch.full_like(x, 2),
    "fill": lambda x, i, b, image, w: x.exp().fill_(3),
    "scalar_tensor": lambda x, i, b, image, w: x + torch.scalar_tensor(2.0),
    "arange": lambda x, i, b, image, w: (
        (i.unsqueeze(-1) == torch.arange(4)) & (torch.arange(1, 9, 2) < i.sum(-1)[:, None, None])
    ),
    "eq": lambda x, i, b, image, w: i == 1,
    "ne": lambda x, i, b, image, w: i != 1,
    "lt": lambda x, i, b, image, w: x < w[:4],
    "le": lambda x, i, b, image, w: i <= 2,
    "gt": lambda x, i, b, image, w: x > w[:4],
    "ge": lambda x, i, b, image, w: i >= 2,
    "bitwise_and": lambda x, i, b, image, w: b & (x < 1),
    "logical_and": lambda x, i, b, image, w: torch.logical_and(b, x < 1),
    "bitwise_or": lambda x, i, b, image, w: b | (x < -1),
    "logical_or": lambda x, i, b, image, w: torch.logical_or(b, x < -1),
    "bitwise_not": lambda x, i, b, image, w: ~b,
    "logical_not": lambda x, i, b, image, w: torch.logical_not(b),
}


@pytest.mark.parametrize("op", CASES)
def test_a_rule_gives_what_torch_gives(op):
    check(CASES[op])
    *inputs, weights = map(torch.from_numpy, data(3))
    names = dict(zip(("x", "i", "b", "image"), inputs, strict=True))
    trace = record(lambda: {"out": CASES[op](*inputs, weights)}, names, [weights], Draws(np.random.PCG64(0)))
    assert op in {call.op.removesuffix("_") if call.op != "_" else call.op for call in trace.calls}


def test_every_rule_has_a_case():
    assert {*CASES} == {*UFUNCS, *VIEWS, *FRESH}


SUMS = {
    "addmm": lambda x, i, b, image, w: torch.addmm(w[16:20], x, W(w)),
    "baddbmm": lambda x, i, b, image, w: torch.baddbmm(w[:2], x.view(-1, 2, 2), x.view(-1, 2, 2)),
    "addmv": lambda x, i, b, image, w: torch.addmv(x[:, 0], x, w[:4]),
}


@pytest.mark.parametrize("op", SUMS)
def test_a_product_and_a_sum(op):
    check(SUMS[op])

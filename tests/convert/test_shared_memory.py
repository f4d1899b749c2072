"""Operations that change tensors, and values that share memory: right, or refused by name."""

import numpy as np
import pytest
import torch
from test_rules import check, data, numpy_form

from drl_cli.convert.trace import Draws, NotConverted, record


def changed_twice(x, i, b, image, w):
    y = x * 2
    y += 1
    z = y * y
    y.mul_(3)
    return z + y


def changed_chunks(x, i, b, image, w):
    """As an LSTM: parts of one tensor that do not overlap."""
    gates = x.exp()
    first, second = gates.split(2, 1)
    return first.sigmoid_() + second.tanh_()


def changed_before_a_view(x, i, b, image, w):
    y = x + 1
    y.relu_()
    return y[:, :2] + y.view(-1, 2, 2)[:, 1]


def written_to_out(x, i, b, image, w):
    y = torch.zeros(x.shape[0], 4)
    torch.mul(x, 2.0, out=y)
    return y


def kept_for_later(x, i, b, image, w):
    """The result of exp is needed after the sum that could be written over it."""
    y = x.exp()
    z = y + 1
    return z.tanh() * y


def kept_by_a_view(x, i, b, image, w):
    y = x.exp()
    part = y[:, :2]
    z = (y + 1).sum(-1, keepdim=True)
    return part * z


def kept_as_a_result_of_reshape(x, i, b, image, w):
    y = x.exp()
    flat = y.view(-1, 2, 2)
    z = y.tanh().sum(-1)
    return flat[:, 0, 0] + z


def broadcast(x, i, b, image, w):
    """A column must not get the result of a sum that is wider."""
    y = x.sum(-1, keepdim=True)
    return y + w[:4]


def of_another_type(x, i, b, image, w):
    y = i.sum(-1)
    return y * 0.5


def of_types_of_numbers(x, i, b, image, w):
    """A tensor without axes does not change the type of the result, unlike in numpy."""
    return x * torch.tensor(0.5, dtype=torch.float64) + b * 0.5


def of_numbers(x, i, b, image, w):
    """Numbers of numpy have no memory to write to."""
    return x[0, 0].exp().tanh() * x


def of_one_weight(x, i, b, image, w):
    """The memory of a parameter must not get the result."""
    y = w[:4].exp()
    return y + 1 + x * 0


RIGHT = (changed_twice, changed_chunks, changed_before_a_view, written_to_out, kept_for_later, kept_by_a_view)
RIGHT += (kept_as_a_result_of_reshape, broadcast, of_another_type, of_types_of_numbers, of_numbers, of_one_weight)


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_results_do_not_depend_on_shared_memory(function):
    check(function)


def test_a_result_is_kept_that_a_later_call_uses():
    def both(x, i, b, image, w):
        y = x.exp()
        return {"first": y, "second": y.tanh()}

    run, _, _ = numpy_form(both)
    x = data(2)[0]
    first, second = run(*data(2))
    np.testing.assert_allclose(first, np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(second, np.tanh(np.exp(x)), rtol=1e-6)


def test_memory_is_used_again():
    source = check(lambda x, i, b, image, w: torch.tanh(torch.addmm(w[16:20], x, w[:16].view(4, 4))).exp())
    assert source.count("out=") == 3
    assert source.count("t") > 3


def test_what_only_depends_on_parameters_is_computed_when_they_arrive():
    run, source, _ = numpy_form(lambda x, i, b, image, w: x @ w[:16].view(4, 4).t() + w[:4].exp())
    load, _, function = source.partition("\n\n\n")
    assert "np.exp" in load
    assert ".T" in load
    assert "np.exp" not in function
    arrays = data(2)
    before = arrays[-1].copy()
    assert np.array_equal(run(*arrays), run(*arrays))
    assert np.array_equal(arrays[-1], before)


def changed_view(x, i, b, image, w):
    y = x + 1
    y[:, 0] = 0.0
    return y


def changed_under_a_view(x, i, b, image, w):
    y = x + 1
    part = y[:, 1:]
    y.mul_(2)
    return part


def changed_input(x, i, b, image, w):
    return x.mul_(2)


def changed_view_of_input(x, i, b, image, w):
    return x.view(-1, 2, 2).mul_(2)


def changed_weights(x, i, b, image, w):
    w[0] += 1
    return x


REFUSED = {
    changed_view: "changes memory that is used elsewhere",
    changed_under_a_view: "mul_ changes memory that is used elsewhere",
    changed_input: "mul_ changes memory that is used elsewhere",
    changed_view_of_input: "mul_ changes memory that is used elsewhere",
    changed_weights: "add_ changes memory that is used elsewhere",
    (lambda x, i, b, image, w: torch.ones(len(x) * (2 if len(x) == 3 else 1))): "ones: something depends",
    (lambda x, i, b, image, w: x.sort(-1)[0]): "aten.sort has no numpy form",
    (lambda x, i, b, image, w: x.sum()): "aten.sum has no numpy form with",
    (lambda x, i, b, image, w: torch.div(x, 2, rounding_mode="floor")): "aten.div has no numpy form with rounding_mode",
    (lambda x, i, b, image, w: torch.add(x, x, alpha=2)): "aten.add has no numpy form with alpha",
    (lambda x, i, b, image, w: torch.addmm(x, x, w[:16].view(4, 4), beta=2)): "aten.addmm .* alpha and beta",
    (lambda x, i, b, image, w: torch.native_layer_norm(x, (4,), None, None, 1e-5)[1]): "with more results",
    (lambda x, i, b, image, w: torch.rand(x.shape[0], 3)): "aten.rand has no numpy form",
    (
        lambda x, i, b, image, w: x + torch.from_numpy(np.random.default_rng().random(4))
    ): "a constant: something depends",
    (lambda x, i, b, image, w: x * float(x[0, 0])): "aten._local_scalar_dense has no|mul: something depends",
    (lambda x, i, b, image, w: x * x.numpy().max()): "Python reads a tensor's values: Tensor.numpy",
    (lambda x, i, b, image, w: x * max(map(max, x.tolist()))): "Python reads a tensor's values: Tensor.tolist",
    (lambda x, i, b, image, w: x * np.asarray(x).max()): "Python reads a tensor's values: Tensor.__array__",
    (lambda x, i, b, image, w: x / (x.shape[0] + 1)): "div: something depends",
    (lambda x, i, b, image, w: torch.stack([row.tanh() for row in x])): "depend on values or on the number of rows",
    (lambda x, i, b, image, w: x.split(2, 0)[0]): "depend on values or on the number of rows|splits the rows",
    (
        lambda x, i, b, image, w: torch.nn.functional.conv2d(image, w[:4].view(2, 1, 1, 2), groups=2)
    ): "plain convolutions",
}


@pytest.mark.parametrize("function", REFUSED, ids=REFUSED.values())
def test_what_has_no_numpy_form_is_refused_by_name(function):
    with pytest.raises(NotConverted, match=REFUSED[function]):
        numpy_form(function)


def test_a_view_that_was_made_before_is_refused():
    x = torch.from_numpy(data(3)[0])
    view = x[:, 1:]
    with pytest.raises(NotConverted, match="a view of a tensor was made outside"):
        record(lambda: {"out": view * 2}, {"x": x}, [], Draws(np.random.PCG64(0)))

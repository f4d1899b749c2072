import shutil

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from drl_cli.optim import products
from drl_cli.optim.context import Context
from drl_cli.optim.products import BFloat16, OneDNN, Products, make_products

CPU = torch.device("cpu")


def emulated():
    rounding = BFloat16(CPU)
    rounding.is_emulated = True
    return rounding


def libraries(kind, rows, inputs, outputs):
    """Return the library that computes each of the three products of these sizes."""
    x, d, weight = torch.randn(rows, inputs), torch.randn(rows, outputs), torch.randn(inputs, outputs)
    three = (
        lambda: kind.linear(x, weight, torch.zeros(outputs)),
        lambda: kind.weight_gradient(x, d, torch.zeros_like(weight)),
        lambda: kind.input_gradient(d, weight),
    )
    made, own = [], products._onednn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_onednn", lambda *operands: (made.append("onednn"), own(*operands))[1])
        for i, product in enumerate(three, 1):
            product()
            made += ["torch"] * (i - len(made))
    return made


KINDS = [(Products, 1e-5), (OneDNN, 1e-5), (lambda: BFloat16(CPU), 0.02), (emulated, 0.02)]


@pytest.mark.parametrize(("make", "tolerance"), KINDS)
@pytest.mark.parametrize("rows", [3, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(10, 256), (256, 1), (256, 4), (256, 80), (64, 64)])
def test_products_equal_float64(make, tolerance, rows, inputs, outputs):
    rng, kind = torch.Generator().manual_seed(0), make()
    x, d = torch.randn(rows, inputs, generator=rng), torch.randn(rows, outputs, generator=rng)
    weight, bias = torch.randn(inputs, outputs, generator=rng), torch.randn(outputs, generator=rng)
    gradient = torch.full_like(weight, 7.0)
    kind.weight_gradient(x, d, gradient)
    x64, d64, weight64 = x.double(), d.double(), weight.double()
    for own, exact, terms in (
        (kind.linear(x, weight, bias), x64 @ weight64 + bias, inputs),
        (kind.input_gradient(d, weight), d64 @ weight64.t(), outputs),
        (gradient, x64.t() @ d64, rows),
    ):
        assert own.dtype == torch.float32
        torch.testing.assert_close(own.double(), exact, rtol=tolerance, atol=tolerance * terms**0.5)


@pytest.mark.parametrize("has_bias", [False, True])
def test_autograd_and_torch_func_follow_the_operator(has_bias):
    a, b, bias, d = torch.randn(9, 8), torch.randn(8, 7), torch.randn(7), torch.randn(9, 7)
    product = OneDNN().differentiable

    def loss(a, b, bias):
        return (product(a, b, bias if has_bias else None) * d).sum()

    exact = (d @ b.t(), a.t() @ d, d.sum(0))[: 2 + has_bias]
    inputs = [tensor.clone().requires_grad_() for tensor in (a, b, bias)]
    by_autograd = torch.autograd.grad(loss(*inputs), inputs[: 2 + has_bias])
    by_func = torch.func.grad(loss, tuple(range(2 + has_bias)))(a, b, bias)
    for three in zip(exact, by_autograd, by_func, strict=True):
        torch.testing.assert_close(three[1], three[0])
        torch.testing.assert_close(three[2], three[0])


@pytest.mark.parametrize("make", [lambda: BFloat16(CPU), emulated])
def test_bfloat16_rounds_wide_products_and_no_others(make):
    kind, exact = make(), Products()
    for shape, is_rounded in (((64, 64), True), ((63, 64), False), ((64, 63), False)):
        x, weight, bias = torch.randn(5, shape[0]), torch.randn(shape), torch.zeros(shape[1])
        assert torch.equal(kind.linear(x, weight, bias), exact.linear(x, weight, bias)) != is_rounded


def test_small_bfloat16_changes_are_kept_by_a_float32_bias():
    """The product is rounded; the bias that is added to it is not."""
    bias = torch.full((64,), 1.0 + 2.0**-20)
    assert torch.equal(BFloat16(CPU).linear(torch.zeros(3, 64), torch.ones(64, 64), bias), bias.expand(3, 64))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
@pytest.mark.parametrize("make", [OneDNN, emulated])
def test_compiled_products_are_the_same(make):
    kind, context = make(), Context(CPU, compiles=True)
    x, d, weight, bias = torch.randn(9, 64), torch.randn(9, 80), torch.randn(64, 80), torch.randn(80)

    def all_three(gradient):
        kind.weight_gradient(x, d, gradient)
        return kind.linear(x, weight, bias), kind.input_gradient(d, weight)

    plain, compiled = torch.zeros_like(weight), torch.zeros_like(weight)
    with torch.no_grad():
        torch.testing.assert_close(context.compiled(all_three)(compiled), all_three(plain))
    torch.testing.assert_close(compiled, plain)


ZEN_4, ZEN_5, INTEL = (
    "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t: 17\n",
    "vendor_id : AuthenticAMD\ncpu family : 26\n",
    "vendor_id\t: GenuineIntel\ncpu family\t: 26\n",
)


@pytest.fixture
def processor(monkeypatch):
    """Pretend to be another processor, with or without AVX-512, and with or without oneDNN in torch."""

    def become(text, capability="AVX512", has_onednn=True):
        monkeypatch.setattr("drl_cli.utils.machine.describe_processor", lambda: text)
        monkeypatch.setattr(products, "_has_onednn", lambda: has_onednn)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    return become


@pytest.mark.parametrize("is_repeatable", [False, True])
@pytest.mark.parametrize(
    ("text", "capability", "has_onednn"),
    [
        *[(INTEL, "AVX512", True), ("", "DEFAULT", True), (ZEN_4, "AVX512", True), (ZEN_5, "AVX2", True)],
        (ZEN_5, "AVX512", False),
    ],
)
def test_auto_is_torch_except_on_zen_5_with_avx512(processor, text, capability, has_onednn, is_repeatable):
    processor(text, capability, has_onednn)
    assert type(make_products("auto", "float32", CPU, is_repeatable)) is Products


@pytest.mark.parametrize(
    ("is_repeatable", "large", "small"),
    [
        (True, [(256, 256, 256)], [(255, 256, 256), (256, 255, 256), (256, 256, 255)]),
        (False, [(32, 256, 256), (512, 64, 64)], [(31, 256, 256), (511, 64, 64), (999, 63, 256), (999, 256, 63)]),
    ],
)
def test_auto_is_onednn_for_large_products_on_zen_5(processor, is_repeatable, large, small):
    processor(ZEN_5)
    assert type(make_products("torch", "float32", CPU, is_repeatable)) is Products
    rule = make_products("auto", "float32", CPU, is_repeatable)
    assert rule.chosen()["library"] == "onednn"
    assert rule.chosen()["from_rows"] == (256 if is_repeatable else 1)
    assert [libraries(rule, *sizes) for sizes in large] == [["onednn"] * 3] * len(large)
    assert [libraries(rule, *sizes) for sizes in small] == [["torch"] * 3] * len(small)


@pytest.mark.parametrize(("device", "is_transposed"), [("cpu", True), ("meta", False)])
def test_only_mkl_computes_the_transposed_product(device, is_transposed):
    """The device `meta`, which has no data, stands in for a GPU, where the copies would only take time."""
    rule, made = Products(), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    x, weight, bias = (torch.ones(size, device=device) for size in ((256, 64), (64, 4), (4,)))
    out, d = torch.ones(64, 4, device=device), torch.ones(256, 4, device=device)
    with Watch():
        assert rule.linear(x, weight, bias).shape == (256, 4)
        rule.weight_gradient(x, d, out)
    assert ("addmm" in made, "copy_" in made) == (not is_transposed, is_transposed)


def test_onednn_and_bf16_when_asked_for(monkeypatch):
    assert type(make_products("onednn", "float32", CPU)) is OneDNN
    assert type(make_products("torch", "bf16", CPU)) is BFloat16
    assert type(make_products("onednn", "float32", torch.device("cuda"))) is Products
    monkeypatch.setattr(products, "_has_onednn", lambda: False)
    with pytest.raises(ValueError, match=r"trainer\.products=onednn.*trainer\.products=auto"):
        make_products("onednn", "float32", CPU)
    assert BFloat16(CPU).is_emulated

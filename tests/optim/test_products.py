import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from drl_cli.optim import products
from drl_cli.optim.products import BFloat16, OneDNN, Products, make_products

CPU = torch.device("cpu")


def emulated():
    rounding = BFloat16(CPU)
    rounding.is_emulated = True
    return rounding


class Watch(TorchDispatchMode):
    """Notes the names of operations."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.made.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def libraries(kind, rows, inputs, outputs):
    """Return the library that computes each of a layer's three products of these sizes."""
    x, weight = (torch.randn(size, requires_grad=True) for size in ((rows, inputs), (inputs, outputs)))
    with Watch() as watch:
        kind.linear(x, weight, torch.zeros(outputs)).sum().backward()
    names = {"_linear_pointwise": "onednn", "mm": "torch", "addmm": "torch"}
    return [names[each] for each in watch.made if each in names]


KINDS = [(Products, 1e-5), (OneDNN, 1e-5), (lambda: BFloat16(CPU), 0.02), (emulated, 0.02)]


@pytest.mark.parametrize(("make", "tolerance"), KINDS)
@pytest.mark.parametrize("is_amd", [False, True])
@pytest.mark.parametrize("rows", [3, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(10, 256), (256, 1), (256, 4), (256, 80), (64, 64)])
def test_products_and_gradients_equal_float64(monkeypatch, make, tolerance, is_amd, rows, inputs, outputs):
    monkeypatch.setattr(products, "is_amd", lambda: is_amd)
    rng = torch.Generator().manual_seed(0)
    x, weight, bias, d = (
        torch.randn(size, generator=rng) for size in ((rows, inputs), (inputs, outputs), (outputs,), (rows, outputs))
    )
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    out = make().linear(*leaves)
    d_x, d_weight, d_bias = torch.autograd.grad(out, leaves, d)
    x64, d64, weight64 = x.detach().double(), d.double(), weight.detach().double()
    for own, exact, terms in (
        (out, x64 @ weight64 + bias, inputs),
        (d_x, d64 @ weight64.t(), outputs),
        (d_weight, x64.t() @ d64, rows),
        (d_bias, d64.sum(0), rows),
    ):
        assert own.dtype == torch.float32
        torch.testing.assert_close(own.double(), exact, rtol=tolerance, atol=tolerance * terms**0.5)


@pytest.mark.parametrize("needed", range(3))
def test_only_the_needed_gradients_are_computed(needed):
    tensors = [torch.randn(size) for size in ((9, 64), (64, 64), (64,))]
    tensors[needed].requires_grad_()
    grads = torch.autograd.grad(OneDNN().linear(*tensors).square().sum(), tensors[needed])
    torch.testing.assert_close(
        grads,
        torch.autograd.grad(torch.addmm(*tensors[2:], *tensors[:2]).square().sum(), tensors[needed]),
        rtol=1e-4,
        atol=1e-3,
    )


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


@pytest.mark.parametrize(
    ("is_amd", "device", "is_transposed"), [(True, "cpu", True), (False, "cpu", False), (True, "meta", False)]
)
def test_only_mkl_on_amd_computes_the_transposed_product(monkeypatch, is_amd, device, is_transposed):
    """The device `meta`, which has no data, stands in for a GPU."""
    monkeypatch.setattr(products, "is_amd", lambda: is_amd)
    x, weight, bias = (torch.ones(size, device=device) for size in ((256, 64), (64, 4), (4,)))
    with Watch() as watch:
        assert Products().linear(x, weight, bias).shape == (256, 4)
    assert ("addmm" in watch.made) == (not is_transposed)


def test_onednn_and_bf16_when_asked_for(monkeypatch):
    assert type(make_products("onednn", "float32", CPU)) is OneDNN
    assert type(make_products("torch", "bf16", CPU)) is BFloat16
    assert type(make_products("onednn", "float32", torch.device("cuda"))) is Products
    monkeypatch.setattr(products, "_has_onednn", lambda: False)
    with pytest.raises(ValueError, match=r"trainer\.products=onednn.*trainer\.products=auto"):
        make_products("onednn", "float32", CPU)
    assert BFloat16(CPU).is_emulated

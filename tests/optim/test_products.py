"""Matrix products by every library and in both precisions against float64; what is chosen."""

import shutil

import pytest
import torch

from drl_cli.optim import products
from drl_cli.optim.group import Context
from drl_cli.optim.products import BFloat16, Measured, OneDNN, Products, least_seconds, make_products

CPU = torch.device("cpu")


def emulated():
    rounding = BFloat16(CPU)
    rounding.is_emulated = True
    return rounding


def raced(*seconds):
    """Products measured by races that end so, one after the other; the operands of each are used up to the end."""
    results = iter(seconds)

    def race(sides, product):
        for side in sides:
            product(side)
        return next(results)

    return Measured(race)


def libraries(kind, rows, inputs, outputs):
    """Who makes the three products of these sizes: the calls of each that came to oneDNN."""
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


FAST, SLOW = [1.0, 0.89], [1.0, 0.91]  # seconds by torch and by oneDNN
KINDS = [
    (Products, 1e-5),
    (OneDNN, 1e-5),
    (lambda: raced(FAST, FAST, FAST), 1e-5),
    (lambda: raced(SLOW, SLOW, SLOW), 1e-5),
    (lambda: BFloat16(CPU), 0.02),
    (emulated, 0.02),
]


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


@pytest.mark.parametrize("make", [lambda: BFloat16(CPU), emulated])
def test_bfloat16_rounds_wide_products_and_no_others(make):
    kind, exact = make(), Products()
    for shape, is_rounded in (((64, 64), True), ((63, 64), False), ((64, 63), False)):
        x, weight, bias = torch.randn(5, shape[0]), torch.randn(shape), torch.zeros(shape[1])
        assert torch.equal(kind.linear(x, weight, bias), exact.linear(x, weight, bias)) != is_rounded


def test_small_bfloat16_changes_are_kept_by_a_float32_bias():
    """The product is rounded, what is added to it is not."""
    bias = torch.full((64,), 1.0 + 2.0**-20)
    assert torch.equal(BFloat16(CPU).linear(torch.zeros(3, 64), torch.ones(64, 64), bias), bias.expand(3, 64))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
@pytest.mark.parametrize("make", [OneDNN, pytest.param(emulated, marks=pytest.mark.exhaustive)])
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


ZEN_4, ZEN_5 = (
    "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t: 17\n",
    "vendor_id : AuthenticAMD\ncpu family : 26\n",
)
INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 26\n"


@pytest.fixture
def processor(monkeypatch):
    """Have this be another processor, with or without AVX-512, its torch with or without oneDNN."""

    def become(text, capability="AVX512", has_onednn=True):
        monkeypatch.setattr(products, "_processor", lambda: text)
        monkeypatch.setattr(products, "_has_onednn", lambda: has_onednn)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    return become


@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize(
    ("text", "capability", "has_onednn"),
    [(INTEL, "AVX512", True), ("", "DEFAULT", True), (ZEN_5, "AVX2", True), (ZEN_5, "AVX512", False)],
)
def test_auto_is_torch_but_on_amd_with_avx512(processor, text, capability, has_onednn, measures):
    processor(text, capability, has_onednn)
    assert type(make_products("auto", "float32", CPU, measures)) is Products


def test_auto_by_rule_is_onednn_for_large_products_on_zen_5(processor):
    processor(ZEN_4)
    assert type(make_products("auto", "float32", CPU)) is Products
    assert type(make_products("torch", "float32", CPU, True)) is Products
    processor(ZEN_5)
    rule = make_products("auto", "float32", CPU)
    assert rule.chosen() == {"library": "onednn", "from_rows": 256, "from_width": 256, "else": "torch"}
    for rows, inputs, outputs in ((256, 256, 256), (255, 256, 256), (256, 255, 256), (256, 256, 255)):
        made = libraries(rule, rows, inputs, outputs)
        assert made == ["onednn" if (rows, inputs, outputs) == (256, 256, 256) else "torch"] * 3


@pytest.mark.parametrize("text", [ZEN_4, ZEN_5])
def test_auto_measures_on_both_where_it_may(processor, text):
    processor(text)
    assert type(make_products("auto", "float32", CPU, True)) is Measured


def test_measured_takes_the_faster_for_each_product_and_shape():
    kind = raced(FAST, SLOW, FAST, SLOW, FAST, SLOW)
    for _ in range(2):  # the first makes three races, the second none
        libraries(kind, 9, 64, 80), libraries(kind, 7, 64, 80)
    assert libraries(kind, 9, 64, 80) == ["onednn", "torch", "onednn"]
    assert libraries(kind, 7, 64, 80) == ["torch", "onednn", "torch"]
    microseconds = kind.chosen()["microseconds"]
    assert list(microseconds) == [
        f"{name} {rows}x64x80" for rows in (9, 7) for name in ("linear", "weight_gradient", "input_gradient")
    ]
    assert microseconds["linear 9x64x80"] == {"torch": 1e6, "onednn": 0.89e6}


def test_measured_holds_no_race_for_thin_products():
    assert libraries(raced(), 256, 63, 256) == libraries(raced(), 256, 256, 63) == ["torch"] * 3


def test_measured_gives_torchs_bits_where_torch_is_faster():
    x, weight, bias = torch.randn(9, 64), torch.randn(64, 80), torch.randn(80)
    assert torch.equal(raced(SLOW).linear(x, weight, bias), Products().linear(x, weight, bias))


@pytest.mark.parametrize(("slow", "rounds"), [(1e-6, 20), (1.0, 3), (0.0009, 4)])
def test_a_race_takes_the_least_of_turns_and_ends_in_time(slow, rounds):
    time, turns = [0.0], []

    def product(side):
        turns.append(side)
        time[0] += {"torch": slow, "onednn": 2 * slow}[side] * (100 if len(turns) <= 2 else 1 + 1 / len(turns))

    seconds = least_seconds(("torch", "onednn"), product, lambda: time[0])
    assert turns == ["torch", "onednn"] * (1 + rounds)
    last = len(turns)
    assert seconds == pytest.approx([slow * (1 + 1 / (last - 1)), 2 * slow * (1 + 1 / last)], rel=1e-6)


def test_onednn_and_bf16_when_asked_for(monkeypatch):
    assert type(make_products("onednn", "float32", CPU)) is OneDNN
    assert type(make_products("torch", "bf16", CPU)) is BFloat16
    assert type(make_products("onednn", "float32", torch.device("cuda"))) is Products
    monkeypatch.setattr(products, "_has_onednn", lambda: False)
    with pytest.raises(ValueError, match=r"trainer\.products=onednn.*trainer\.products=auto"):
        make_products("onednn", "float32", CPU)
    assert BFloat16(CPU).is_emulated

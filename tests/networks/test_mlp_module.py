import copy
import math
import shutil

import pytest
import torch

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp_module import MLP
from drl_cli.optim.context import Context
from drl_cli.optim.gradients import Gradients
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.optim.products import BFloat16

CPU = torch.device("cpu")
SIZES = {"hidden": (5, 4), "init": "orthogonal"}
KINDS = [(activation, False, 1) for activation in ("relu", "tanh", "elu")]
KINDS += [(activation, True, 2) for activation in ("relu", "tanh", "elu")]


def make(activation="tanh", layer_norm=False, ensemble=1, norm="none"):
    torch.manual_seed(3)
    return MLP(3, 2, NetworkConfig(activation=activation, layer_norm=layer_norm, **SIZES), ensemble, norm=norm)


def reference(mlp, x, masks=()):
    """The same networks from torch's own functions, `[N, B, 2]`."""
    step, outputs = 4 if len(mlp.shapes[2]) == 1 else 2, []
    size = len(mlp.flat) // mlp.ensemble
    for number, flat in enumerate(mlp.flat.split(size)):
        pieces = flat.split([math.prod(shape) for shape in mlp.shapes])
        params, h = [piece.view(shape) for piece, shape in zip(pieces, mlp.shapes, strict=True)], x
        for i in range(0, len(params), step):
            h = h @ params[i] + params[i + 1]
            if i < len(params) - 2:
                if step == 4:
                    h = torch.nn.functional.layer_norm(h, h.shape[1:], params[i + 2], params[i + 3])
                h = getattr(torch.nn.functional, mlp.activation)(h)
                h = h * masks[i // step][number] if masks else h
        outputs.append(h)
    return torch.stack(outputs)


def gradients(out, x, mlp):
    weights = torch.linspace(-1, 2, out.numel()).view(out.shape)
    return torch.autograd.grad((out * weights).sum() + out.square().sum(), (x, mlp.flat))


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize(("activation", "layer_norm", "ensemble"), KINDS)
def test_outputs_and_gradients_equal_autograd(activation, layer_norm, ensemble, rate):
    mlp, x = make(activation, layer_norm, ensemble), torch.randn(7, 3, requires_grad=True)
    masks = mlp.masks(torch.rand(7, mlp.dropout_size), rate) if rate else ()
    out, expected = mlp(x, masks), reference(mlp, x, masks)
    torch.testing.assert_close(out, expected if ensemble > 1 else expected[0])
    for ours, theirs in zip(gradients(out, x, mlp), gradients(expected.reshape(out.shape), x, mlp), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num", [1, 2, 3])
def test_only_the_first_networks_of_an_ensemble(num):
    mlp, x = make(ensemble=3), torch.randn(7, 3, requires_grad=True)
    out, expected = mlp(x, first=num), reference(mlp, x)[:num]
    torch.testing.assert_close(out, expected if num > 1 else expected[0])
    for ours, theirs in zip(gradients(out, x, mlp), gradients(expected.reshape(out.shape), x, mlp), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def torchs(mlp, kind):
    """The networks of an MLP with two hidden layers, as nn.Linear layers with torch's own parametrization."""
    networks = []
    for flat in mlp.flat.detach().split(len(mlp.flat) // mlp.ensemble):
        pieces, layers = flat.split([math.prod(shape) for shape in mlp.shapes]), []
        for i in (0, 2, 4):
            layer = torch.nn.Linear(*mlp.shapes[i])
            layer.weight.data, layer.bias.data = pieces[i].view(mlp.shapes[i]).T.clone(), pieces[i + 1].clone()
            if i < 4 and kind == "weight":
                torch.nn.utils.parametrizations.weight_norm(layer).parametrizations.weight.original0.data.fill_(1.0)
            elif i < 4:
                torch.nn.utils.parametrizations.spectral_norm(layer, n_power_iterations=60)
            layers += [layer, torch.nn.Tanh()]
        networks.append(torch.nn.Sequential(*layers[:-1]))
    return networks


def weights_and_biases(network):
    """The trained parameters of a network of `torchs`, in the order of an MLP."""
    parts = [(getattr(layer, "parametrizations", None), layer) for layer in network[::2]]
    weights = [
        layer.weight if norm is None else getattr(norm.weight, "original1", getattr(norm.weight, "original", None))
        for norm, layer in parts
    ]
    return [each for weight, (_, layer) in zip(weights, parts, strict=True) for each in (weight, layer.bias)]


@pytest.mark.parametrize("ensemble", [1, 2])
@pytest.mark.parametrize("kind", ["weight", "spectral"])
def test_weight_and_spectral_norm_equal_torchs_parametrizations(kind, ensemble):
    torch.manual_seed(3)
    mlp = make(ensemble=ensemble, norm=kind)
    with torch.no_grad():
        mlp.flat.add_(0.3 * torch.randn_like(mlp.flat))
        x, others = torch.randn(7, 3), torchs(mlp, kind)
    for _ in range(60):
        mlp(x)  # power iterations until the singular vectors are exact
    x.requires_grad_()
    out, expected = mlp(x), torch.stack([other(x) for other in others])
    torch.testing.assert_close(out, expected if ensemble > 1 else expected[0], rtol=1e-4, atol=1e-5)
    d_x, d_flat = gradients(out, x, mlp)
    params = [each for other in others for each in weights_and_biases(other)]
    scale = torch.linspace(-1, 2, out.numel()).view(out.shape)
    loss = (expected.reshape(out.shape) * scale).sum() + expected.square().sum()
    d_expected = torch.autograd.grad(loss, [x, *params])
    torch.testing.assert_close(d_x, d_expected[0], rtol=1e-3, atol=1e-4)
    pieces = [d.T if d.ndim == 2 else d for d in d_expected[1:]]
    torch.testing.assert_close(d_flat, torch.cat([d.flatten() for d in pieces]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["weight", "spectral"])
def test_a_step_the_target_and_the_policy_of_normalised_weights(kind):
    """One loss uses a network twice, and frozen. The policy's copy gives the same outputs and does not change."""
    torch.manual_seed(3)
    networks = [MLP(3, 2, NetworkConfig(activation="tanh", **SIZES), norm=kind) for _ in range(2)]
    context, x = Context(CPU), torch.randn(7, 3)
    params, policy = (Params(context, actor=network) for network in networks)
    target, optimizer = params.target("actor"), Optimizer(params, {"actor": 0.1}, context)

    def loss(nets, batch, noise):
        return nets.actor(batch).square().sum() + (nets.actor(2 * batch) * nets.frozen.actor(batch)).sum(), {}

    before = networks[0](x)
    for _ in range(3):
        optimizer.step(Gradients(params, loss, context)(x)[0])
    params.follow(1.0)
    with torch.no_grad():
        policy.load_vector(("actor",), params.vector(("actor",)))
        out, kept = networks[0](x), policy.vector(("actor",))
        assert not torch.allclose(out, before)
        for _ in range(3):
            assert torch.equal(networks[1](x), out)
        assert torch.equal(target(x), out)
        assert (policy.vector(("actor",)) == kept).all()
        first = networks[0].normalised(networks[0].flat)[:15].view(3, 5)
    length = first.norm(dim=0) if kind == "weight" else torch.linalg.matrix_norm(first, 2)
    torch.testing.assert_close(length, torch.ones_like(length), rtol=0.05, atol=0.0)


def test_params_adopt_the_module_and_its_networks_follow():
    mlp, x = make(), torch.randn(4, 3)
    mlp(x)
    params = Params(Context(CPU), critic=mlp)
    frozen, target = params.frozen("critic"), params.target("critic")
    params["critic"].flat.mul_(2.0)
    torch.testing.assert_close(mlp(x), reference(mlp, x)[0])
    assert torch.equal(frozen(x), mlp(x))
    assert not torch.equal(target(x), mlp(x))
    mlp(x).sum().backward()
    assert params["critic"].grad.any()
    before = params.flat.clone()
    frozen(x.requires_grad_()).sum().backward()
    (expected,) = torch.autograd.grad(reference(mlp, x)[0].sum(), [x])
    torch.testing.assert_close(x.grad, expected)
    assert torch.equal(params.flat, before)


def test_other_parameters_can_be_given_for_one_call():
    mlp, x = make(), torch.randn(4, 3)
    out, doubled = mlp(x), 2 * mlp.flat
    expected = torch.func.functional_call(copy.deepcopy(mlp), {"flat": doubled}, (x,))
    assert torch.equal(torch.func.functional_call(mlp, {"flat": doubled}, (x,)), expected)
    with torch.no_grad():
        mlp.flat.mul_(2)
    torch.testing.assert_close(reference(mlp, x)[0], expected)
    assert not torch.equal(out, expected)


def test_a_step_makes_an_older_graph_stale():
    mlp, context = make(), Context(CPU)
    params = Params(context, critic=mlp)
    optimizer, x = Optimizer(params, {"critic": 1e-2}, context), torch.randn(4, 3)
    stale = mlp(x).sum()
    optimizer.minimize(mlp(x).sum())
    with pytest.raises(RuntimeError, match="has been modified inplace"):
        optimizer.minimize(stale)


def test_bf16_reaches_the_products():
    mlp, x = MLP(64, 2, NetworkConfig((64, 64), "tanh", "orthogonal")), torch.randn(64, 64)
    exact = mlp(x)
    Params(Context(CPU, products=BFloat16(CPU)), critic=mlp)
    rounded = mlp(x)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)


def test_bf16_rounds_no_narrow_layer():
    mlp, x = make(), torch.randn(5, 3)
    exact = mlp(x)
    Params(Context(CPU, products=BFloat16(CPU)), critic=mlp)
    assert torch.equal(mlp(x), exact)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("activation", "layer_norm", "ensemble", "norm"),
    [("elu", True, 2, "weight")],
)
def test_one_compiled_graph_has_the_same_gradients(activation, layer_norm, ensemble, norm):
    def gradient(compiles):
        mlp, context = make(activation, layer_norm, ensemble, norm=norm), Context(CPU, compiles=compiles)
        params = Params(context, critic=mlp)

        def loss(nets, batch, noise):
            masks = mlp.masks(noise, 0.3)
            return (nets.critic(batch, masks) - nets.frozen.critic(batch).square()).square().mean(), {}

        torch.manual_seed(0)
        Gradients(params, loss, context)(torch.randn(7, 3), torch.rand(7, mlp.dropout_size))
        return params.grad

    torch.testing.assert_close(gradient(True), gradient(False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ensemble", [1, 2])
def test_inputs_may_have_several_axes_of_rows(ensemble):
    mlp, x = MLP(3, 2, NetworkConfig(**SIZES, activation="relu"), ensemble), torch.randn(4, 5, 3)
    out, rows = mlp(x), mlp(x.flatten(0, 1))
    assert out.shape == (*((ensemble,) if ensemble > 1 else ()), 4, 5, 2)
    assert torch.equal(out.flatten(-3, -2), rows)
    (grad,) = torch.autograd.grad(out.square().sum(), mlp.flat)
    torch.testing.assert_close(grad, *torch.autograd.grad(rows.square().sum(), mlp.flat))

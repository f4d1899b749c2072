import numpy as np
import pytest
import torch

from drl_cli.networks.mlp import FlatMLP, mlp_numpy, mlp_shapes, num_params, split

ACTIVATIONS = ("relu", "tanh", "elu")


def build(shapes, activation="relu", ensemble=1):
    return FlatMLP(shapes, activation, torch.zeros(num_params(shapes, ensemble)), ensemble)


def make(inputs=3, hidden=(5, 4), outputs=2, activation="relu", ensemble=1, how="uniform", seed=0, layer_norm=False):
    mlp = build(mlp_shapes(inputs, hidden, outputs, layer_norm=layer_norm), activation, ensemble)
    mlp.init(how, torch.Generator().manual_seed(seed))
    return mlp


def make_normed(**kwargs):
    """With layer norm, whose gains and biases are not what they begin with."""
    mlp = make(layer_norm=True, **kwargs)
    for network in mlp.networks:
        for i in range(0, len(network) - 2, 4):
            for vector in network[i + 2 : i + 4]:
                vector += torch.linspace(-0.3, 0.4, len(vector))
    return mlp


def test_shapes():
    assert mlp_shapes(3, (5, 4), 2) == [(3, 5), (5,), (5, 4), (4,), (4, 2), (2,)]
    assert mlp_shapes(3, (), 2) == mlp_shapes(3, (), 2, layer_norm=True) == [(3, 2), (2,)]
    normed = [(3, 5), (5,), (5,), (5,), (5, 4), (4,), (4,), (4,), (4, 2), (2,)]
    assert mlp_shapes(3, (5, 4), 2, layer_norm=True) == normed


def test_layout_is_weight_then_bias_layer_by_layer_network_by_network():
    mlp = build(mlp_shapes(2, (1,), 1), ensemble=2)
    mlp.flat.copy_(torch.arange(10.0))
    assert [[p.tolist() for p in network] for network in mlp.networks] == [
        [[[0.0], [1.0]], [2.0], [[3.0]], [4.0]],
        [[[5.0], [6.0]], [7.0], [[8.0]], [9.0]],
    ]
    # Input (1, 10): relu(0 + 10 + 2) * 3 + 4 and relu(5 + 60 + 7) * 8 + 9.
    out = mlp.forward(torch.tensor([[1.0, 10.0]]))
    assert out.tolist() == [[[40.0]], [[585.0]]]


def test_split_gives_views_and_refuses_other_sizes():
    shapes = mlp_shapes(3, (5,), 2)
    flat = np.arange(32, dtype=np.float32)
    parts = split(flat, shapes)
    assert [part.shape for part in parts] == shapes
    assert all(np.shares_memory(part, flat) for part in parts)
    assert np.concatenate([part.ravel() for part in parts]).tolist() == flat.tolist()
    for wrong in (flat[:-1], np.zeros(33, np.float32), flat.reshape(1, 32)):
        with pytest.raises(ValueError, match=r"shape .* needs \(32,\)"):
            split(wrong, shapes)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (7,), (33, 17, 9)])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_numpy_equals_torch(activation, hidden, layer_norm):
    mlp = (make_normed if layer_norm else make)(inputs=6, hidden=hidden, outputs=4, activation=activation)
    x = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32) * 3
    kept, out = x.copy(), mlp_numpy(split(mlp.flat.numpy(), mlp.shapes), x, activation)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, mlp.forward(torch.from_numpy(x))[0].numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(x, kept)


def test_dropout_masks_leave_out_a_share_and_keep_the_mean():
    mlp = make(hidden=(100, 50), ensemble=2)
    uniform = torch.rand(40, 300, generator=torch.Generator().manual_seed(0))
    masks = mlp.masks(uniform, 0.25)
    assert [mask.shape for mask in masks] == [(2, 40, 100), (2, 40, 50)]
    for mask in masks:
        assert set(mask.unique().tolist()) == {0.0, torch.tensor(4 / 3).item()}
        assert abs(mask.mean() - 1.0) < 0.03
    assert torch.equal(masks[0][1] > 0, uniform[:, 100:200] >= 0.25)  # a row's masks come from its own numbers
    assert torch.equal(masks[1][0] > 0, uniform[:, 200:250] >= 0.25)
    x = torch.ones(40, 3)
    assert torch.equal(mlp.forward(x, mlp.masks(uniform, 0.0)), mlp.forward(x))


@pytest.mark.parametrize("how", ["uniform", "orthogonal"])
def test_layer_norm_starts_as_nothing_but_norm_on_the_same_weights(how):
    plain, normed = make(how=how, ensemble=2), make(how=how, ensemble=2, layer_norm=True)
    for network, other in zip(plain.networks, normed.networks, strict=True):
        weights = [param for i, param in enumerate(other) if i % 4 < 2]
        assert all(torch.equal(*pair) for pair in zip(network, weights, strict=True))
        for i in range(0, len(other) - 2, 4):
            assert (other[i + 2] == 1.0).all()
            assert (other[i + 3] == 0.0).all()


def test_uniform_init_fills_its_range():
    mlp = make(64, (256,), 100, how="uniform")
    for weight, bias in zip(mlp.networks[0][::2], mlp.networks[0][1::2], strict=True):
        bound = len(weight) ** -0.5
        for tensor in (weight, bias):
            assert tensor.abs().max() <= bound
            assert tensor.max() > 0.9 * bound
            assert tensor.min() < -0.9 * bound


@pytest.mark.parametrize("inputs", [4, 32])
def test_orthogonal_init(inputs):
    mlp = make(inputs, (16,), 8, how="orthogonal")
    first, bias, last, last_bias = mlp.networks[0]
    gram = first @ first.t() if inputs < 16 else first.t() @ first
    torch.testing.assert_close(gram, 2.0 * torch.eye(min(inputs, 16)), atol=1e-5, rtol=0)
    torch.testing.assert_close(last.t() @ last, torch.eye(8), atol=1e-5, rtol=0)
    assert (bias == 0).all()
    assert (last_bias == 0).all()


@pytest.mark.parametrize("how", ["uniform", "orthogonal"])
def test_init_is_seeded_and_networks_differ(how):
    first, again, other = make(how=how, ensemble=2), make(how=how, ensemble=2), make(how=how, ensemble=2, seed=1)
    assert torch.equal(first.flat, again.flat)
    assert not torch.equal(first.flat, other.flat)
    assert not torch.equal(first.networks[0][0], first.networks[1][0])


@pytest.mark.parametrize("how", ["uniform", "orthogonal"])
def test_the_last_layer_can_start_small(how):
    plain, small = (make(how=how, ensemble=2) for _ in range(2))
    small.init(how, torch.Generator().manual_seed(0), last=0.01)
    for network, other in zip(plain.networks, small.networks, strict=True):
        assert all(torch.equal(*pair) for pair in zip(network[:-2], other[:-2], strict=True))
        for tensor, scaled in zip(network[-2:], other[-2:], strict=True):
            torch.testing.assert_close(0.01 * tensor, scaled)

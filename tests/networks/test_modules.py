import torch
from networks import network

from drl_cli.networks.inputs import as_image
from drl_cli.networks.modules import convolution
from drl_cli.networks.torsos import make_torso
from drl_cli.types import ActionSpec, Column, EnvSpec


def make(kind, shape, dtype="uint8", **changes):
    torch.manual_seed(0)
    return convolution(kind, as_image(Column(shape, dtype)), network(**changes))


def random_bytes(*shape):
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def count(module):
    return sum(param.numel() for param in module.parameters())


def test_nature_has_the_published_number_of_parameters():
    """With its layer of 512 units and 4 actions 1,686,180, as Mnih et al.'s network for Breakout."""
    torso = make("cnn", (84, 84, 4))
    assert (torso.size, count(torso) + (3136 + 1) * 512 + (512 + 1) * 4) == (3136, 1_686_180)
    convs = [module for module in torso.modules() if isinstance(module, torch.nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in convs] == [(32, 8, 4), (64, 4, 2), (64, 3, 1)]


def test_minatar_has_the_published_number_of_parameters():
    assert count(make("cnn", (10, 10, 4), "bool")) == 4 * 9 * 16 + 16


def test_impala_has_the_published_layers():
    """15 convolutions; on the published frame of 72x96x3, with the 256 units behind them, 982,592 parameters."""
    torso = make("resnet", (72, 96, 3))
    convs = [module for module in torso.modules() if isinstance(module, torch.nn.Conv2d)]
    assert ([conv.out_channels for conv in convs], count(torso)) == ([16] * 5 + [32] * 10, 97_600)
    assert count(torso) + (torso.size + 1) * 256 == 982_592


def test_the_residual_network_is_that_of_the_figure():
    """Written out with functions, section by section."""
    torso = make("resnet", (16, 16, 3))
    convs = [module for module in torso.modules() if isinstance(module, torch.nn.Conv2d)]
    obs = random_bytes(2, 16, 16, 3)
    relu, x = torch.relu, obs.permute(0, 3, 1, 2) / 255
    for first, *blocks in (convs[i : i + 5] for i in (0, 5, 10)):
        x = torch.nn.functional.max_pool2d(first(x), 3, 2, 1)
        for one, two in (blocks[:2], blocks[2:]):
            x = x + two(relu(one(relu(x))))
    torch.testing.assert_close(torso(obs), relu(x).flatten(1))


def test_torsos_of_several_parts_are_joined():
    obs_spec = {"a.b": Column((6, 6, 1), "uint8"), "c": Column((5, 5), "bool"), "d": Column((3,), "float32")}
    spec = EnvSpec("X-v0", obs_spec, ActionSpec("box", 1, "Box"))
    torso = make_torso(network(torso_activation="tanh", channels=0.2), spec, torch.Generator()).double()
    d = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    obs = {"d": d, "c": random_bytes(2, 5, 5) > 127, "a.b": random_bytes(2, 6, 6, 1)}
    parts = [torso.torsos[0](obs["a.b"]), torso.torsos[1](obs["c"]), d]
    assert torch.equal(torso(obs), torch.cat(parts, 1))


def test_orthogonal_filters_and_no_bias():
    conv = make("cnn", (10, 10, 3), init="orthogonal").layers[0]
    filters = conv.weight.flatten(1)
    torch.testing.assert_close(filters @ filters.t(), 2.0 * torch.eye(16), atol=1e-5, rtol=0)
    assert not conv.bias.any()


def test_channels_last_channels_first_and_stacked_frames_are_the_same_image():
    last = make("cnn", (40, 36, 6))
    obs = random_bytes(3, 40, 36, 6)
    first, stacked, both = (make("cnn", shape) for shape in [(6, 40, 36), (2, 40, 36, 3), (2, 3, 40, 36)])
    for torso in (first, stacked, both):
        torso.load_state_dict(last.state_dict())
    channels_first = obs.permute(0, 3, 1, 2).contiguous()
    frames = torch.stack([obs[..., :3], obs[..., 3:]], 1)
    assert torch.equal(last.pixels(obs), channels_first * torch.tensor(1 / 255))
    for torso, same in ((first, channels_first), (stacked, frames), (both, channels_first.unflatten(1, (2, 3)))):
        assert torch.equal(torso.pixels(same), last.pixels(obs))
        torch.testing.assert_close(torso(same), last(obs))


def test_planes_of_booleans_are_0_and_1_and_floats_stay():
    planes = torch.tensor([True, False] * 50).view(1, 10, 10)
    assert torch.equal(make("cnn", (10, 10), "bool").pixels(planes), planes.float().unsqueeze(1))
    floats = 300 * torch.randn(1, 10, 10, 3, generator=torch.Generator().manual_seed(0))
    before = floats.clone()
    assert torch.equal(make("cnn", (10, 10, 3), "float32").pixels(floats), floats.permute(0, 3, 1, 2))
    assert torch.equal(floats, before)

import subprocess
import sys

import numpy as np
import pytest
import torch
from networks import network

from drl_cli.networks.torsos import describe, make_torso, torso, torso_name
from drl_cli.types import ActionSpec, Column, EnvSpec, map_parts

IMAGE, SMALL = Column((84, 84, 4), "uint8"), Column((10, 10, 4), "bool")
VECTOR, CHOICE, MASK = Column((7,), "float32"), Column((), "int32", (3,)), Column((4,), "bool")
TREE = {"cam.left": IMAGE, "state": VECTOR, "mode": CHOICE, "map": SMALL, "action_mask": MASK}


def spec(obs):
    return EnvSpec("X-v0", obs, ActionSpec("discrete", 4, "Discrete(4)"))


def seed(number=0):
    return torch.Generator().manual_seed(number)


def sample(column, rows=3):
    random = np.random.default_rng(0)
    if isinstance(column, dict):
        return {path: sample(part, rows) for path, part in column.items()}
    if column.choices:
        return torch.from_numpy(random.integers(0, column.choices, (rows, *column.shape), np.int32))
    return torch.from_numpy((random.random((rows, *column.shape)) * 255).astype(column.dtype))


class Mean(torch.nn.Module):
    """A user's torso: needs all the parts it was told of, and no other."""

    def __init__(self, parts, network):
        super().__init__()
        self.parts, self.size = parts, network.hidden[0]
        self.layer = torch.nn.Linear(1, self.size)

    def forward(self, obs):
        if isinstance(obs, dict):
            assert obs.keys() == self.parts.keys()
            obs = torch.cat([part.flatten(1) for part in obs.values()], 1)
        return self.layer(obs.flatten(1).float().mean(1, keepdim=True))


class NoModule:
    def __init__(self, parts, network):
        self.size = 3


class NoSize(torch.nn.Module):
    def __init__(self, parts, network):
        super().__init__()


@pytest.mark.parametrize(
    ("obs", "torso", "name", "text"),
    [
        (IMAGE, "auto", "cnn", "cnn (Nature) 84x84x4 -> 3136, mlp [16, 12]"),
        (IMAGE, "resnet", "resnet", "resnet (IMPALA) 84x84x4 -> 3872, mlp [16, 12]"),
        (IMAGE, "mlp", None, "28224 inputs, mlp [16, 12]"),
        (SMALL, "cnn", "cnn", "cnn (MinAtar) 10x10x4 -> 1024, mlp [16, 12]"),
        (VECTOR, "auto", None, "7 inputs, mlp [16, 12]"),
        (CHOICE, "mlp", None, "3 inputs, mlp [16, 12]"),
        ({"state": VECTOR, "mode": CHOICE, "action_mask": MASK}, "auto", None, "10 inputs, mlp [16, 12]"),
        ({"state": VECTOR, "mode": CHOICE}, "multi", None, "10 inputs, mlp [16, 12]"),
        (
            {"obs": IMAGE, "action_mask": MASK},
            "auto",
            "multi",
            "multi (obs cnn (Nature) 84x84x4 -> 3136), mlp [16, 12]",
        ),
        (
            TREE,
            "auto",
            "multi",
            "multi (cam.left cnn (Nature) 84x84x4 -> 3136; map cnn (MinAtar) 10x10x4 -> 1024; state mode 10), "
            "mlp [16, 12]",
        ),
        (
            TREE,
            "resnet",
            "multi",
            "multi (cam.left resnet (IMPALA) 84x84x4 -> 3872; map resnet (IMPALA) 10x10x4 -> 128; state mode 10), "
            "mlp [16, 12]",
        ),
        (IMAGE, "test_torsos:Mean", "test_torsos:Mean", "test_torsos:Mean, mlp [16, 12]"),
    ],
)
def test_the_observation_chooses_unless_the_config_does(obs, torso, name, text):
    config = network(torso=torso)
    assert (torso_name(config, spec(obs)), describe(config, spec(obs))) == (name, text)
    module = make_torso(config, spec(obs), seed())
    assert (module is None) == (name is None)
    if module is not None:
        features = module(sample(obs))
        assert features.shape == (3, module.size)
        assert f"-> {module.size}" in text or name in ("multi", "test_torsos:Mean")


def test_all_that_is_on_is_described():
    config = network(memory="lstm", memory_size=64, layer_norm=True, dropout=0.25, channels=2)
    text = "cnn (Nature) 84x84x4 -> 6272, lstm 64, mlp [16, 12] with layer norm, dropout 0.25"
    assert describe(config, spec(IMAGE)) == text


@pytest.mark.parametrize(
    ("obs", "torso", "message"),
    [
        (
            VECTOR,
            "cnn",
            r"network\.torso=cnn needs an image; X-v0 gives float32 \[7\]. For this: network\.torso=auto or",
        ),
        (VECTOR, "resnet", r"network\.torso=resnet needs an image"),
        ({"a": VECTOR, "b": CHOICE}, "cnn", r"needs an image; X-v0 gives a float32 \[7\], b int32 \[\]\. "),
        (IMAGE, "multi", r"network\.torso=multi needs a Dict or Tuple space; .* For this: network\.torso=auto$"),
        (Column((7, 7, 3), "uint8"), "resnet", r"resnet needs images of at least 8x8 pixels; .* network\.torso=cnn$"),
        (Column((9, 2, 3), "uint8"), "cnn", r"network\.torso=cnn needs an image"),
    ],
)
def test_what_cannot_work_is_refused_by_name(obs, torso, message):
    for function in (torso_name, describe):
        with pytest.raises(ValueError, match=message):
            function(network(torso=torso), spec(obs))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_pkg.net:Net", "no_such_pkg.net:Net: there is no module 'no_such_pkg' to import"),
        ("test_torsos:Nett", "test_torsos:Nett: test_torsos has no 'Nett'"),
        ("test_torsos:NoModule", "test_torsos:NoModule: must be a torch.nn.Module with a whole number `size`"),
        ("test_torsos:NoSize", "test_torsos:NoSize: must be a torch.nn.Module with a whole number `size`"),
    ],
)
def test_a_class_that_is_no_torso_is_refused(path, message):
    with pytest.raises(ValueError, match=rf"network\.torso={message}"):
        make_torso(network(torso=path), spec(IMAGE), seed())


def test_a_class_of_the_users_never_sees_the_mask():
    obs = {"state": VECTOR, "action_mask": MASK}
    made = make_torso(network(torso="test_torsos:Mean"), spec(obs), seed())
    seen = sample(obs)
    expected = made.torso({"state": seen["state"]})
    assert torch.equal(made(seen), expected)


@pytest.mark.parametrize("torso", ["cnn", "resnet", "test_torsos:Mean"])
@pytest.mark.parametrize("init", ["uniform", "orthogonal"])
def test_equal_seeds_give_equal_weights_and_torchs_own_generator_stays(torso, init):
    config, state = network(torso=torso, init=init), torch.get_rng_state()
    first, again, other = (make_torso(config, spec(IMAGE), seed(n)).state_dict() for n in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_choosing_and_describing_need_no_torch():
    code = """
import sys
from drl_cli.networks import config, encoder, inputs, mlp, torsos
from drl_cli.types import ActionSpec, Column, EnvSpec, map_parts
network = config.NetworkConfig((8,), "relu", "uniform", torso="resnet", memory="gru")
spec = EnvSpec("X", Column((84, 84, 4), "uint8"), ActionSpec("box", 1, ""))
assert "IMPALA" in torsos.describe(network, spec) and network.state_size == 256
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("obs", "name"),
    [(IMAGE, "auto"), (SMALL, "auto"), (VECTOR, "auto"), (CHOICE, "auto"), (TREE, "auto"), (IMAGE, "test_torsos:Mean")],
    ids=["image", "small image", "vector", "choice", "tree", "user's"],
)
def test_windows_of_observations_give_windows_of_features(obs, name):
    module, rows = torso(network(torso=name), spec(obs)), sample(obs, rows=6)
    windows = map_parts(lambda part: part.view(3, 2, *part.shape[1:]), rows)
    with torch.no_grad():
        features = module(windows)
        assert features.shape == (3, 2, module.size)
        assert torch.equal(features.flatten(0, 1), module(rows))

import numpy as np
import pytest
import torch

from drl_cli.networks.inputs import Inputs
from drl_cli.types import Column

TREE = {
    "angles": Column((2,), "float32"),
    "arm.mode": Column((), "int32", (3,)),
    "buttons": Column((2,), "bool"),
    "camera": Column((1, 2), "uint8"),
    "keys": Column((2,), "int32", (2, 3)),
    "speed": Column((), "float32"),
    "action_mask": Column((4,), "bool"),
}
OBS = {
    "angles": np.float32([[0.1, -7.0], [3.0, 2.0]]),
    "arm.mode": np.int32([2, 0]),
    "buttons": np.array([[True, False], [False, False]]),
    "camera": np.uint8([[[51, 255]], [[0, 1]]]),
    "keys": np.int32([[1, 0], [0, 2]]),
    "speed": np.float32([0.5, -2.0]),
    "action_mask": np.array([[True] * 4, [False] * 4]),
}
ROWS = np.float32(
    [[0.1, -7.0, 0, 0, 1, 1, 0, 0.2, 1, 0, 1, 1, 0, 0, 0.5], [3.0, 2.0, 1, 0, 0, 0, 0, 0, 1 / 255, 1, 0, 0, 0, 1, -2]]
)


def both(column, obs):
    """`Inputs` in numpy, shown to be equal in torch, and to leave the observation as it was."""
    inputs, before = Inputs(column), obs.copy()
    x = inputs.array(obs)
    assert (x.dtype, x.shape) == (np.float32, (len(obs), inputs.size))
    assert inputs.tensor(torch.from_numpy(obs)).numpy().tobytes() == x.tobytes()
    assert np.array_equal(obs, before)
    return x


def test_the_parts_of_a_tree_one_after_the_other_without_the_mask():
    inputs = Inputs(TREE)
    assert inputs.size == 15
    rows = inputs.array(OBS)
    np.testing.assert_allclose(rows, ROWS, rtol=1e-6)
    torch_obs = {path: torch.from_numpy(part) for path, part in OBS.items()}
    assert inputs.tensor(torch_obs).numpy().tobytes() == rows.tobytes()


@pytest.mark.parametrize("path", [path for path in TREE if path != "action_mask"])
def test_a_plain_observation_is_what_it_is_in_a_tree(path):
    alone = both(TREE[path], OBS[path])
    assert alone.tobytes() == Inputs({path: TREE[path]}).array({path: OBS[path]}).tobytes()


def test_every_byte_is_its_share_of_255():
    obs = np.arange(256, dtype=np.uint8).reshape(2, 8, 16)
    rows = both(Column((8, 16), "uint8"), obs)
    np.testing.assert_allclose(rows.ravel(), np.arange(256) / 255, rtol=1e-6)


def test_floats_are_not_copied():
    obs = np.zeros((3, 4), np.float32)
    inputs = Inputs(Column((4,), "float32"))
    assert np.shares_memory(inputs.array(obs), obs)
    obs = torch.zeros(3, 4)
    assert inputs.tensor(obs).data_ptr() == obs.data_ptr()


def test_choices_of_several_axes_are_one_hot_in_their_order():
    column = Column((2, 2), "int32", (2, 3, 4, 5))
    rows = both(column, np.int32([[[1, 2], [3, 4]], [[0, 0], [0, 0]]]))
    assert (rows.shape, np.flatnonzero(rows[0]).tolist()) == ((2, 14), [1, 4, 8, 13])
    assert np.flatnonzero(rows[1]).tolist() == [0, 2, 5, 9]

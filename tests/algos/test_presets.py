"""Ape-X and R2D2, yaml that chooses options of DQN: the contract, the probes."""

import numpy as np
import pytest

from drl_cli.testing import Case, check_algorithm, check_learning
from drl_cli.testing.learning import learned
from drl_cli.types import Last

FAST = ("algo.gamma=0.9", "algo.lr=3e-3", "algo.target_period=20")
SMALL = ("network.hidden=[16,16]", "network.memory_size=6", "replay.seq_len=5", "replay.burn_in=3", "replay.overlap=2")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("apex", SMALL[:1]),
        ("r2d2", SMALL),
        ("c51", (*SMALL, "replay=sequences", "network=gru", "algo.n_step=3", "algo.rescale=1e-3", "algo.noisy=true")),
        ("sac", (*SMALL, "replay=sequences", "network=gru", "algo.n_step=2")),
    ],
    ids=["apex", "r2d2", "c51", "sac"],
)
def test_the_contract(name, options):
    check_algorithm(name, *options)


def test_apex_learns():
    check_learning("apex", *FAST, updates=250)


def test_r2d2_remembers_and_its_twin_without_a_memory_does_not():
    """A cue four steps old, which nothing but the memory knows; half of the cues are guessed without."""
    assert recalled("network=lstm") == [0, 1]
    assert recalled("network=auto") != [0, 1]


def recalled(*options):
    """What the learned policy chooses at the end of Cue's two episodes."""
    cue = ("env=drl_cli.envs.probes:Cue-v0", "+env.kwargs.delay=4")
    small = (
        "network.memory_size=16",
        "network.hidden=[16]",
        "replay.seq_len=4",
        "replay.burn_in=2",
        "replay.overlap=2",
    )
    case = Case("r2d2", *cue, *options, *small, *FAST)
    policy = learned(case, 250, batch_size=32)
    last = Last.none(case.spec, 2)
    for step in range(5):
        obs = np.zeros((2, 3), np.float32)
        if step == 0:
            obs[[0, 1], [0, 1]] = 1
        obs[:, 2] = step == 4
        action = policy.greedy(obs, last)
        last = Last.of(action, np.zeros(2, np.float32), [])
    return action.tolist()

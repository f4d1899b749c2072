"""Finding algorithms by name, and saying why one does not fit."""

import pytest

from drl_cli.algos.base import algorithms, load_algorithm, refusal
from drl_cli.types import ActionSpec, Column, EnvSpec


def test_unknown_names_are_refused_with_what_there_is():
    assert "sac" in algorithms()
    assert "base" not in algorithms()
    with pytest.raises(ValueError, match=r"unknown algorithm 'sca'; available: .*sac"):
        load_algorithm("sca")


def test_refusal_says_why():
    box, discrete = ActionSpec("box", 2, "Box(2,)"), ActionSpec("discrete", 4, "Discrete(4)")
    obs = Column((3,), "float32")
    assert refusal("sac", EnvSpec("Car-v0", obs, box), "async", "uniform") is None
    line = refusal("sac", EnvSpec("Cart-v1", obs, discrete), "async", "uniform")
    assert line == "SAC needs a continuous (Box) action space; Cart-v1 has Discrete(4). For this: algo=dqn or algo=ppo"
    assert refusal("dqn", EnvSpec("Cart-v1", obs, discrete), "async", "uniform") is None
    line = refusal("dqn", EnvSpec("Car-v0", obs, box), "async", "uniform")
    assert line == "DQN needs a discrete action space; Car-v0 has Box(2,). For this: algo=ppo or algo=sac"
    several = ActionSpec("multidiscrete", 5, "MultiDiscrete([3 2])", (3, 2))
    line = refusal("dqn", EnvSpec("Arm-v0", obs, several), "async", "uniform")
    fits = [f"algo={name}" for name in algorithms() if "multidiscrete" in load_algorithm(name).ACTIONS]
    advice = f"For this: {' or '.join(fits)}" if fits else "No algorithm here handles that yet."
    assert line == f"DQN needs a discrete action space; Arm-v0 has MultiDiscrete([3 2]). {advice}"
    assert refusal("ppo", EnvSpec("Car-v0", obs, box), "async", "fifo-once") is None
    line = refusal("ppo", EnvSpec("Car-v0", obs, box), "async", "uniform")
    assert line == "PPO can't learn from replay=uniform; say replay=fifo-once"
    line = refusal("sac", EnvSpec("Car-v0", obs, box), "async", "fifo-once")
    assert line == "SAC can't learn from replay=fifo-once; say replay=uniform or replay=prioritized"
    assert "does not run in mode=batch" in refusal("sac", EnvSpec("Car-v0", obs, box), "batch", "uniform")

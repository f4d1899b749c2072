"""Updates on a device that is not the CPU: nothing mixes devices, and no update waits for a number from the device."""

import pytest
from elsewhere import watched

REACH, CHOOSE, PATCH = (f"env=drl_cli.envs.probes:{name}-v0" for name in ("Reach", "Choose", "Patch"))
EVERY = pytest.mark.exhaustive
OFF_POLICY = [
    *[(REACH, "algo=sac"), (REACH, "algo=td3", "algo.actor_period=1"), (CHOOSE, "algo=dqn")],
    *[(CHOOSE, "algo=c51", "algo.noisy=true"), (PATCH, "algo=dqn")],
    *(pytest.param((REACH, f"algo={name}"), marks=EVERY) for name in ("ddpg", "tqc", "redq", "droq", "crossq", "xqc")),
    *(pytest.param((REACH, f"algo={name}"), marks=EVERY) for name in ("d4pg", "mpo", "mrq")),
    *(pytest.param((CHOOSE, f"algo={name}"), marks=EVERY) for name in ("qr_dqn", "iqn", "sac_discrete", "rainbow")),
]
ON_POLICY = [
    (CHOOSE, "algo=ppo"),
    *(pytest.param((CHOOSE, f"algo={name}"), marks=EVERY) for name in ("pqn", "appo", "vmpo")),
]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", OFF_POLICY, ids=" ".join)
def test_no_update_reads_or_copies_numbers(overrides, monkeypatch):
    one, three = (watched(monkeypatch, num, *overrides) for num in (1, 3))
    assert three.mixtures == []
    assert three.reads == one.reads != []  # once in each train call
    assert three.copies == one.copies != []


@pytest.mark.slow
@pytest.mark.parametrize("overrides", ON_POLICY, ids=" ".join)
def test_no_minibatch_reads_numbers(overrides, monkeypatch):
    """Advantages are computed on the CPU, once for each rollout or epoch."""
    words = (*overrides, "trainer.batch_size=16")
    two, four = (watched(monkeypatch, 1, *words, f"algo.minibatch_size={size}") for size in (8, 4))
    assert four.mixtures == []
    assert four.reads == two.reads != []
    assert four.copies == two.copies != []

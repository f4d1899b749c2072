import pytest
from graphs import COUNTER, TINY, make_config

import drl_cli.settings.fill as fill
from drl_cli.settings.build import build
from drl_cli.settings.compose import mapping

MODE = {"async": ("mode=async", "worker.num=3"), "sync": ("mode=sync", "worker.num=3"), "single": ("mode=single",)}


@pytest.mark.parametrize(
    ("mode", "cores", "trainers", "batch_size", "hidden", "threads"),
    [
        ("single", 8, 1, 256, "[256,256]", 1),
        ("single", 8, 1, 2048, "[256,256]", 2),
        ("single", 1, 1, 2048, "[256,256]", 1),
        ("single", 8, 1, 1024, "[64,512,512,64]", 4),
        ("single", 8, 1, 16, "[]", 1),
        ("sync", 8, 1, 1024, "[512,512]", 4),
        ("sync", 8, 2, 1024, "[512,512]", 2),
        ("async", 5, 1, 1024, "[512,512]", 2),
        ("async", 2, 1, 1024, "[512,512]", 1),
    ],
)
def test_auto_threads_follow_from_the_largest_product_and_the_free_cores(
    monkeypatch, mode, cores, trainers, batch_size, hidden, threads
):
    monkeypatch.setattr(fill, "num_cores", lambda: cores)
    sizes = (f"trainer.batch_size={batch_size}", f"network.hidden={hidden}", f"trainer.num={trainers}")
    assert make_config(*TINY, COUNTER, *MODE[mode], *sizes, "trainer.threads=auto").num_threads == threads


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "cores", "num", "why"),
    [
        (["algo=dqn", "total_env_steps=5000"], 64, 1, "total_env_steps"),  # blocks of 64 steps
        (["algo=dqn", "total_env_steps=50_000"], 64, 15, "total_env_steps"),
        (["algo=dqn", "total_env_steps=50_000"], 8, 7, None),
        (["algo=dqn", "total_env_steps=10_000_000"], 100, 99, None),
        (["algo=dqn", "total_env_steps=10_000_000", "worker.num=auto"], 100, 64, None),
        (["algo=dqn", "total_env_steps=5000", "worker.num=5"], 64, 5, None),
        (["algo=dqn", "total_env_steps=5000", "worker.num=auto", "worker.max_num=9"], 64, 9, None),
        (["algo=dqn", "total_env_steps=5000", "mode=single"], 64, 1, None),
        (["algo=ppo", "total_env_steps=30_000"], 64, 2, "trainer.batch_size"),  # 512 = 2 x 16 x 16
        (["algo=ppo", "total_env_steps=1e6"], 64, 8, "trainer.batch_size"),
        (["algo=ppo", "total_env_steps=1e6", "mode=sync"], 64, 8, "trainer.batch_size"),
        (["algo=ppo", "total_env_steps=1e6", "worker.unroll=4"], 64, 63, None),
        (["algo=ppo", "trainer.batch_size=64"], 64, 1, "trainer.batch_size"),  # 4 steps of 16 environments
    ],
)
def test_a_run_has_no_more_workers_than_it_has_use_for(monkeypatch, words, cores, num, why):
    monkeypatch.setattr(fill, "num_cores", lambda: cores)
    asked = build(mapping(["env=CartPole-v1", "tuned=none", *words]))
    assert fill.fill(asked).num_workers == num
    line = fill.few_workers_line(asked)
    assert (line is None) == (why is None)
    assert line is None or line.startswith(f"{num} worker{'s' * (num > 1)} on 63 free cores, as many as {why} has")

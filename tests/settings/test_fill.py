import pytest
from graphs import COUNTER, TINY, make_config

import drl_cli.settings.fill as fill

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

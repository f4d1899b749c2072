import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("alternate", Path(__file__).parents[2] / "scripts/bench/alternate.py")
alternate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(alternate)


@pytest.mark.parametrize(
    ("rounds", "interval"), [(1, (1, 1)), (5, (1, 5)), (6, (1, 6)), (9, (2, 8)), (15, (4, 12)), (21, (6, 16))]
)
def test_the_interval_of_a_median_follows_the_sign_test(rounds, interval):
    assert alternate.median_interval([*range(rounds, 0, -1)]) == interval

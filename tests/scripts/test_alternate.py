"""scripts/bench/alternate.py: intervals and tables of alternating rounds."""

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


def test_a_table_has_the_ratio_of_each_round():
    results = {"ours": [{"updates/s": 3.0}, {"updates/s": 4.0}, {"updates/s": 1.0}], "before": [{"updates/s": 2.0}] * 3}
    *_, ours, before = alternate.table(results).splitlines()
    assert ours == "| updates/s | ours | 3 | 1 - 4 |  |  |"
    assert before == "| updates/s | before | 2 | 2 - 2 | 1.50 (0.50 - 2.00) | 0.500 - 2.000 |"

import datetime

import pytest

from drl_cli.utils import clock
from drl_cli.utils.clock import STAMP, stamp_after

NOON = "20260101-120000-000000"


def moved(stamp, **delta):
    return (datetime.datetime.strptime(stamp, STAMP) + datetime.timedelta(**delta)).strftime(STAMP)


@pytest.fixture(autouse=True)
def at_noon(monkeypatch):
    class Clock(datetime.datetime):
        @classmethod
        def now(cls):
            return datetime.datetime.strptime(NOON, STAMP)

    monkeypatch.setattr(clock.datetime, "datetime", Clock)


def test_the_stamp_of_a_new_folder_is_the_local_time(monkeypatch):
    assert stamp_after([]) == NOON
    assert stamp_after([f"{moved(NOON, microseconds=-1)}-s3", "zebra", "99999999-000000-000000-s0"]) == NOON


@pytest.mark.parametrize("ahead", [{"seconds": 0}, {"hours": 1}, {"days": 400}])
def test_a_clock_that_was_set_back_gives_a_stamp_after_the_newest(ahead):
    newest = moved(NOON, **ahead)
    found = stamp_after([f"{NOON}-s1", f"{newest}-s0", f"{moved(NOON, days=-1)}-s2"])
    assert newest < found <= moved(newest, milliseconds=1)
    assert len(found) == len(NOON)

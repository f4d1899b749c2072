import datetime

import pytest

from drl_cli.utils.clock import STAMP, stamp_after

NOON = "20260101-120000-000000"


def moved(stamp, **delta):
    return (datetime.datetime.strptime(stamp, STAMP) + datetime.timedelta(**delta)).strftime(STAMP)


def at_noon(*names):
    return stamp_after(names, datetime.datetime.strptime(NOON, STAMP))


def test_the_stamp_of_a_new_folder_is_the_local_time():
    assert at_noon() == NOON
    assert at_noon(f"{moved(NOON, microseconds=-1)}-s3", "zebra", "99999999-000000-000000-s0") == NOON


@pytest.mark.parametrize("ahead", [{"seconds": 0}, {"hours": 1}, {"days": 400}])
def test_a_clock_that_was_set_back_gives_a_stamp_after_the_newest(ahead):
    newest = moved(NOON, **ahead)
    found = at_noon(f"{NOON}-s1", f"{newest}-s0", f"{moved(NOON, days=-1)}-s2")
    assert newest < found <= moved(newest, milliseconds=1)
    assert len(found) == len(NOON)

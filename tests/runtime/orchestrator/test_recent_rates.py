"""RecentRates: rates and shares of time between two reports, by totals that the tests set."""

from dataclasses import replace

import pytest

from drl_cli.runtime.orchestrator.rates import WINDOW, RecentRates, Totals

BEGIN = Totals(100.0, 1000, 50, 4.0, 10.0, 5.0, 1.0, 2.0, 6.0)
LATER = Totals(110.0, 1800, 90, 12.0, 20.0, 11.0, 4.0, 5.0, 11.0)


def make(*totals, members=2):
    rates = RecentRates(members)
    for each in totals:
        rates.add(each)
    return rates


def test_nothing_is_known_before_the_second_report():
    for rates in (make(), make(BEGIN)):
        assert (rates.env_steps_per_s(), rates.opt_steps_per_s()) == (None, None)
        assert (rates.worker_time(), rates.trainer_time()) == ({}, {})


def test_rates_are_between_the_reports():
    rates = make(BEGIN, LATER)
    assert (rates.env_steps_per_s(), rates.opt_steps_per_s()) == (80.0, 4.0)


def test_workers_wait_as_the_pool_says_and_share_the_rest_as_their_hand_overs_say():
    """8 of 2 x 10 s waiting; of 10 s of work 6 in environments, 3 in the policy."""
    shares = make(BEGIN, LATER).worker_time()
    assert shares == pytest.approx({"environment": 0.36, "policy": 0.18, "rows": 0.06, "waiting": 0.4})
    assert list(shares) == ["environment", "policy", "rows", "waiting"]
    of_one = make(BEGIN, replace(LATER, worker_wait_s=9.0), members=1).worker_time()
    assert of_one["waiting"] == 0.5
    assert sum(of_one.values()) == pytest.approx(1.0)


def test_the_trainer_waits_updates_or_gets_its_batches():
    assert make(BEGIN, LATER).trainer_time() == pytest.approx({"batch": 0.2, "update": 0.5, "waiting": 0.3})
    hidden = make(BEGIN, replace(LATER, trainer_wait_s=8.0)).trainer_time()  # a call that ended had begun before
    assert hidden == pytest.approx({"batch": 0.0, "update": 0.4, "waiting": 0.6})


def test_a_share_without_any_work_is_not_known():
    assert make(BEGIN, replace(LATER, work_s=BEGIN.work_s)).worker_time() == {}
    assert make(BEGIN, replace(LATER, update_s=BEGIN.update_s)).trainer_time() == {}


def test_what_is_long_ago_does_not_count():
    rates = make(replace(BEGIN, moment=0.0, env_steps=-(10**6)))
    for i in range(WINDOW + 1):
        rates.add(replace(BEGIN, moment=100.0 + 2 * i, env_steps=1000 + 20 * i))
    assert rates.env_steps_per_s() == 10.0

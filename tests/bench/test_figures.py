"""Rates and their rounds."""

import pytest

from drl_cli.bench.figures import Figure, Rate, in_turn, middle, short, timed


def test_work_is_done_at_least_once_and_its_things_are_counted():
    calls = []
    rate = timed(lambda: calls.append(1) or 7, seconds=0.0)
    assert len(calls) == 1
    assert rate.per_s > 0
    assert timed(lambda: 0).per_s == 0


def test_it_goes_on_for_the_time():
    calls = []
    rate = timed(lambda: calls.append(1) or 2, seconds=0.05)
    assert len(calls) > 10
    assert rate.per_s <= 2 * len(calls) / 0.05


def test_all_have_their_turn_in_an_order_that_changes():
    order = []
    plays = {name: lambda name=name: order.append(name) or Rate(len(order), 1.0) for name in "ab"}
    results = in_turn(plays, rounds=3)
    assert "".join(order) == "abbaab"
    assert [rate.per_s for rate in results["a"]] == [1, 4, 5]


def test_the_median_of_rounds_counts():
    rates = [Rate(3.0, 30.0), Rate(1.0, 50.0), Rate(2.0, 40.0)]
    assert middle(rates) == Rate(2.0, 40.0)
    figure = Figure.of("replay", "draw", "batches/s", rates)
    assert (figure.value, figure.rounds) == (2.0, (3.0, 1.0, 2.0))


def test_another_unit():
    assert Rate(10.0, 20.0).times(0.5) == Rate(5.0, 10.0)


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (95.12, "95.1"), (0.125, "0.125"), (0.0, "0")])
def test_numbers_are_short(value, text):
    assert short(value) == text

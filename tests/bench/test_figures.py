"""Rates and their rounds."""

from types import SimpleNamespace

import pytest

from drl_cli.bench.figures import Figure, Rate, in_turn, middle, short, timed


@pytest.fixture
def work(monkeypatch):
    """Does so many things in a quarter of a second of the clock, of which half is processor time."""
    calls = []
    clock = SimpleNamespace(perf_counter=lambda: 0.25 * len(calls), process_time=lambda: 0.125 * len(calls))
    monkeypatch.setattr("drl_cli.bench.figures.time", clock)
    return lambda things: calls.append(things) or things


@pytest.mark.parametrize(("things", "rate"), [(7, Rate(28.0, 56.0)), (0, Rate(0.0, 0.0))])
def test_work_is_done_at_least_once_and_its_things_are_counted(work, things, rate):
    assert timed(lambda: work(things), seconds=0.0) == rate


def test_it_goes_on_for_the_time(work):
    done = []
    assert timed(lambda: done.append(work(2)) or len(done), seconds=1.0) == Rate(1 + 2 + 3 + 4, 2 * (1 + 2 + 3 + 4))
    assert len(done) == 4


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

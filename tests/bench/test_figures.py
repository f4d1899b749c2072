from types import SimpleNamespace

import pytest

from drl_cli.bench.figures import Figure, Rate, in_turn, middle, row, short, timed


@pytest.fixture
def work(monkeypatch):
    """A function that does some things in 0.25 s of wall-clock time and 0.125 s of processor time."""
    calls = []
    clock = SimpleNamespace(perf_counter=lambda: 0.25 * len(calls), process_time=lambda: 0.125 * len(calls))
    monkeypatch.setattr("drl_cli.bench.figures.time", clock)
    return lambda things: calls.append(things) or things


@pytest.mark.parametrize(("things", "rate"), [(7, Rate(28.0, 56.0)), (0, Rate(0.0, 0.0))])
def test_work_is_done_at_least_once(work, things, rate):
    assert timed(lambda: work(things), seconds=0.0) == rate


def test_work_is_repeated_for_the_time(work):
    done = []
    assert timed(lambda: done.append(work(2)) or len(done), seconds=1.0) == Rate(1 + 2 + 3 + 4, 2 * (1 + 2 + 3 + 4))
    assert len(done) == 4


def test_the_order_is_reversed_in_every_other_round():
    order = []
    plays = {name: lambda name=name: order.append(name) or Rate(len(order), 1.0) for name in "ab"}
    results = in_turn(plays)
    assert ("".join(order), [rate.per_s for rate in results["a"]]) == ("abbaabbaab", [1, 4, 5, 8, 9])


def test_the_median_of_rounds_counts():
    rates = [Rate(3.0, 30.0), Rate(1.0, 50.0), Rate(2.0, 40.0)]
    assert middle(rates) == Rate(2.0, 40.0)
    figure = Figure.of("replay", "draw", "batches/s", rates)
    assert (figure.value, figure.rounds) == (2.0, (3.0, 1.0, 2.0))


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (95.12, "95.1"), (0.125, "0.125"), (0.0, "0")])
def test_numbers_are_short(value, text):
    assert short(value) == text


def test_the_lines_of_the_table_are_aligned():
    line = str(Figure("replay", "insert, uniform", "rows/s", 15471479.0, (14e6, 15471479.0, 17e6), "half full"))
    last = str(Figure("end", "start-up to the first step", "s", 3.456))
    assert len(row("part", "what", "median", "min - max", "")) == line.index("14,000,000") + len("min - max")
    texts = ("replay  ", "insert, uniform", "15,471,479 rows/s", "14,000,000 - 17,000,000", "half full")
    assert all(text in line for text in texts)
    assert last.endswith("3.46 s")
    assert line.index("rows/s") + len("rows/s") == last.index(" s", 50) + len(" s")

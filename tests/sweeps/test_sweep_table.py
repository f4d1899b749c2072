"""How a sweep is shown: a table that is drawn anew on a terminal, a line for each change elsewhere."""

import io
import json

import pytest

from drl_cli.sweeps import table
from drl_cli.sweeps.sweep import Sweep, tell_apart
from drl_cli.sweeps.table import REFRESH_S, View


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def sweep(tmp_path):
    """Job 1 is done, 2 runs, 3 waits."""
    made = Sweep(tmp_path, [])
    made.make_folder(str(tmp_path))
    made.add([["env=A", f"seed={seed}"] for seed in (7, 8, 9)])
    tell_apart(made.jobs)
    run = tmp_path / "run-a"
    run.mkdir()
    (run / "summary.json").write_text(
        json.dumps({"exit_code": 0, "env_steps": 12000, "wall_s": 34.2, "best_return": -140.23, "final_return": -150})
    )
    made.jobs[0].run, made.jobs[0].exit_code, made.jobs[1].is_running = run, 0, True
    return made


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    time = [100.0]
    monkeypatch.setattr(table, "now", lambda: time[0])
    return time


def test_a_line_for_each_change(sweep, tmp_path):
    stream = io.StringIO()
    view = View(sweep, stream, 5)
    for job in sweep.jobs:
        view.changed(job)
    view.tick()
    view.close()
    assert stream.getvalue().splitlines() == [
        f"[job 1 of 5] done  seed=7  best -140.2  12,000 steps  34 s  {tmp_path / 'run-a'}",
        "[job 2 of 5] running  seed=8",
        "[job 3 of 5] waiting  seed=9",
    ]


def test_a_table_on_a_terminal_every_two_seconds_at_each_change_and_at_the_end(sweep, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("TERM", raising=False)
    stream = Terminal()
    drawn = []
    view = View(sweep, stream)
    monkeypatch.setattr(view.live, "update", lambda shown, refresh: drawn.append((shown, refresh)))
    for seconds in (0, 0.5, REFRESH_S - 0.1, REFRESH_S, REFRESH_S + 0.1):
        clock[0] = 100 + seconds
        view.tick()
    assert len(drawn) == 2
    view.changed(sweep.jobs[1])
    view.tick()
    assert len(drawn) == 3
    view.close()
    assert len(drawn) == 4
    assert all(refresh for _, refresh in drawn)
    assert not view.live.is_started
    assert "[job" not in stream.getvalue()


def test_the_table_has_a_row_for_each_job(sweep):
    made = table.table(sweep)
    assert made.title.endswith("  1 of 3 done")
    assert [(column.header, column.justify) for column in made.columns] == [
        ("job", "right"),
        ("seed", "left"),
        ("status", "left"),
        ("best", "right"),
        ("steps", "right"),
        ("seconds", "right"),
        ("run", "left"),
    ]
    rows = list(zip(*(column.cells for column in made.columns), strict=True))
    assert rows == [
        ("1", "7", "[green]done[/]", "-140.2", "12,000", "34", "run-a"),
        ("2", "8", "[cyan]running[/]", "-", "-", "-", ""),
        ("3", "9", "[default]waiting[/]", "-", "-", "-", ""),
    ]

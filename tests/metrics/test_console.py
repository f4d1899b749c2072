import io
import json
import re
import threading
import time
from types import SimpleNamespace

import pytest

from drl_cli.metrics import console as module
from drl_cli.metrics import display
from drl_cli.metrics.console import Console, make_display
from drl_cli.metrics.status import Status

SCORE = {"mean": 201.5, "std": 3.25, "min": 195.0, "max": 205.0, "episodes": 10}
RUNNING = {"state": "running", "awaits": "", "env_steps": 500, "total_env_steps": 1000, "train_return": 3.0}


class Terminal(io.StringIO):
    """A terminal that keeps what is printed."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Both clocks, starting at 100 s."""
    clock = SimpleNamespace(now=100.0)
    fake = SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(display, "time", fake)
    return clock


def make(kind, out=None, **options):
    out = out or io.StringIO()
    console = Console(kind, out, 90.0, **options)
    console.update(title="Pendulum-v1 sac async seed 0")
    return console, lambda: out.getvalue().splitlines()


def test_plain_shows_and_repeats_what_a_start_waits_for(clock):
    console, shown = make("plain")
    console.awaits("Ray")
    assert shown() == ["  0:00:10  waiting for Ray"]
    for second in range(1, 8):
        clock.now = 100.0 + second
        console.display.tick(console.status)
    assert shown()[1:] == ["  0:00:15  waiting for Ray"]
    console.awaits("")
    console.display.tick(console.status)
    assert len(shown()) == 2


def test_plain_shows_only_long_waits_of_a_running_run(clock):
    console, shown = make("plain")
    console.update(**RUNNING)
    console.awaits("the last checkpoint")
    console.awaits("the last evaluation")
    assert shown() == []
    for _ in range(9):
        clock.now += 2.0
        console.display.tick(console.status)
    assert shown() == ["  0:00:12  waiting for the last evaluation"]


def test_plain_does_not_repeat_a_report(clock):
    console, shown = make("plain", period_s=1.0)
    console.report(**RUNNING | {"awaits": "warm-up", "done": 5, "needed": 9})
    console.display.tick(console.status)
    (line,) = shown()
    assert "waiting for warm-up 5/9" in line


def test_plain_is_silent_before_the_run_has_a_title(clock):
    console = Console("plain", out := io.StringIO(), 90.0)
    with console:
        clock.now = 200.0
        console.display.tick(console.status)
    assert (console.status.awaits, out.getvalue()) == ("the environment", "")


def test_plain_reports_every_period_and_at_each_evaluation(clock):
    console, shown = make("plain", period_s=30.0)
    console.report(state="starting")
    for clock.now in (101.0, 129.0, 131.0, 140.0, 160.0, 161.5):
        console.report(**RUNNING)
    assert [line[:9] for line in shown()] == ["  0:00:11", "  0:00:41", "  0:01:11"]
    assert "train return       3.0" in shown()[0]
    console.evaluation(SCORE, 400, is_best=True)
    assert "  50.0%  step   500  eval  return     201.5  +- 3.2" in shown()[3]
    assert "  at step 400  " in shown()[3]
    assert (console.status.scores, console.status.best) == (((400, 201.5),), (400, 201.5))


def test_the_last_report_of_training_is_shown_before_its_period_is_over(clock):
    console, shown = make("plain", period_s=30.0)
    console.report(**RUNNING)
    console.report(**RUNNING | {"state": "ending", "awaits": "the last checkpoint"})
    assert len(shown()) == 1
    console.report(**RUNNING | {"state": "ending", "env_steps": 1000})
    assert "100.0%  step 1,000  train return       3.0" in shown()[1]
    console.report(**RUNNING | {"state": "ending", "awaits": "the last evaluation"})
    assert len(shown()) == 2


def test_json_prints_one_object_per_line(clock):
    console, shown = make("json", period_s=30.0)
    console.awaits("Ray")
    console.awaits("")
    console.line("network: mlp")
    console.report(**RUNNING | {"left_s": float("nan")})
    clock.now = 129.0
    console.report(**RUNNING)
    console.evaluation(SCORE, 400, is_best=True)
    console.end({"status": "done", "exit_code": 0}, "done: best return 3.0\nnext: drl-eval")
    events = [json.loads(line) for line in shown()]
    assert events[0] == {"event": "awaits", "what": "Ray", "wall_s": 10.0}
    assert events[1] == {"event": "note", "text": "network: mlp"}
    assert [event["event"] for event in events[2:]] == ["status", "evaluation", "end"]
    then = {"state": "running", "scores": (), "best": None, "written": 100.0, "wall_s": 10.0, "left_s": None}
    assert Status.of(events[2]) == Status(**{**vars(console.status), **then})
    assert events[3] == {"event": "evaluation", "env_steps": 400, "is_best": True, **SCORE}
    assert events[4] == {"event": "end", "status": "done", "exit_code": 0}


@pytest.mark.parametrize("kind", ["quiet", "plain", "json"])
def test_only_auto_draws_on_a_terminal(clock, kind):
    console, shown = make(kind, Terminal())
    with console:
        console.awaits("Ray")
        console.report(**RUNNING)
        console.evaluation(SCORE, 400, is_best=False)
        console.line("a note")
        console.end({"status": "done"}, "done")
    assert "\x1b" not in "".join(shown())
    assert bool(shown()) == (kind != "quiet")


def test_auto_is_a_panel_only_on_a_terminal(clock, monkeypatch):
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    console, _ = make("auto", out := Terminal())

    def shown():
        return re.sub(r"\x1b\[[?\d;]*\w", "", out.getvalue())

    with console:
        console.awaits("Ray")
        assert "waiting for  Ray" in shown()
        console.line("[a] note")
        console.report(**RUNNING)
        console.update()  # shows the report, if the console's thread has not
        console.display.tick(console.status)
        assert "50.0%   500 / 1,000 env steps" in shown()
        console.end({"status": "diverged"}, "the end")
    assert "[a] note" in shown()
    assert "diverged" in shown()[-600:]  # the last panel stays
    assert shown().endswith("the end\n")
    assert "eval" not in type(make("auto")[0].display).__module__
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_display("auto", Terminal(), 30.0)) is type(make_display("plain", Terminal(), 30.0))
    assert type(make_display("auto", io.StringIO(), 30.0)) is type(make_display("plain", Terminal(), 30.0))


def test_the_panel_of_a_run_that_did_not_start_disappears(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Console("auto", out, time.time()):
        assert "the environment" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")


def test_the_panel_follows_the_clock_by_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ticks, console = [], make("auto", Terminal(), tick_s=0.01)[0]
    console.display.tick = lambda status: ticks.append(status)
    with console:
        end = time.monotonic() + 20
        while len(ticks) < 3 and time.monotonic() < end:
            time.sleep(0.01)
    assert len(ticks) >= 3


def test_the_newest_status_is_in_the_runs_folder(clock, tmp_path):
    console, _ = make("quiet")
    console.folder = tmp_path
    for change in (
        lambda: console.awaits("Ray"),
        lambda: console.report(**RUNNING),
        lambda: console.evaluation(SCORE, 400, is_best=True),
        lambda: console.end({"status": "done"}, ""),
    ):
        clock.now += 1.0
        change()
        assert Status.read(tmp_path) == console.status
        assert (console.status.written, console.status.wall_s) == (clock.now, clock.now - 90.0)
    assert (console.status.state, console.status.awaits) == ("done", "")


def test_an_unwritable_folder_does_not_end_the_run(tmp_path):
    console, _ = make("quiet")
    console.folder = tmp_path / "nowhere"
    console.awaits("Ray")
    assert console.status.awaits == "Ray"


def test_the_number_of_steps_never_falls():
    console, _ = make("quiet")
    for told, shown in ((700, 700), (512, 700), (2048, 2048)):
        console.report(env_steps=told)
        assert console.status.env_steps == shown
    console.update(opt_steps=3)
    assert (console.status.env_steps, console.status.opt_steps) == (2048, 3)


def test_the_thread_shows_reports_so_that_a_slow_terminal_delays_no_training():
    console, _ = make("plain", tick_s=1000.0)
    begun, go_on, shown = threading.Event(), threading.Event(), []

    def report(status):
        begun.set()
        assert go_on.wait(20)
        shown.append(status.env_steps)

    console.display.report = report
    with console:
        for env_steps in (1, 2):
            console.report(env_steps=env_steps)
        assert begun.wait(20)
        assert shown == []
        go_on.set()
    assert shown == [1, 2]


def test_a_report_that_the_thread_has_not_shown_is_shown_at_the_end(monkeypatch):
    monkeypatch.setattr(module.threading, "Thread", lambda **options: SimpleNamespace(start=lambda: None))
    console, shown = make("plain")
    with console:
        console.report(**RUNNING)
        assert not any("train return" in line for line in shown())
    assert "train return" in shown()[-1]


def test_plain_repeats_a_long_wait_of_a_running_run(clock):
    console, shown = make("plain")
    console.report(**RUNNING)
    console.update(awaits="rollout", done=1, needed=9)
    for second in range(70):
        clock.now = 100.0 + second
        console.display.tick(console.status)
    assert [line.split()[0] for line in shown()[1:]] == ["0:00:10", "0:00:40", "0:01:10"]


def test_the_warm_up_never_falls_but_rollouts_begin_again():
    console, _ = make("quiet")
    for told, shown in ((98, "98"), (96, "98"), (100, "100")):
        console.report(awaits="warm-up", done=told, needed=100)
        assert console.status.awaited == f"warm-up {shown}/100"
    for told in (500, 20):
        console.report(awaits="rollout", done=told, needed=512)
        assert console.status.awaited == f"rollout {told}/512"

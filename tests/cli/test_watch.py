import io
import json
import re
import socket
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from processes import SMALL, Run

from drl_cli.cli import watch as module
from drl_cli.cli.watch import Options, how_it_ended, watch
from drl_cli.errors import LOST
from drl_cli.metrics import display
from drl_cli.metrics.status import Status
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.resume import claim_run
from drl_cli.utils.files import lock

STATUS = Status(
    title="Pendulum-v1 sac async seed 0", state="running", started=1.0, written=2.0, wall_s=61.0, env_steps=500,
    total_env_steps=1000, train_return=3.0, scores=((100, 1.0), (200, 2.0)), best=(200, 2.0),
)  # fmt: skip


class Script:
    """Steps of a run. Each sleep of drl-watch takes one. `now` is the time of both clocks [s]."""

    def __init__(self, *steps):
        self.steps, self.now = list(steps), 1000.0

    def sleep(self, seconds):
        self.now += seconds
        assert self.steps, "the script has ended, and drl-watch still waits"
        self.steps.pop(0)()

    def monotonic(self):
        return self.now

    time = monotonic


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "20260101-s0"
    folder.mkdir()

    def record(**fields):
        (folder / "run.json").write_text(json.dumps({"status": "running", "pid": 42, **fields}))

    def end(status, code):
        summary = {"status": status, "exit_code": code, "best_return": 2.0, "env_steps": 1000, "checkpoint_best": "x"}
        (folder / "summary.json").write_text(json.dumps(summary))
        record(host=socket.gethostname(), status=status)

    record(host=socket.gethostname())
    return SimpleNamespace(folder=folder, record=record, end=end, report=lambda s: s.write(folder))


def watched(run, monkeypatch, capsys, script, **options):
    monkeypatch.setattr(module, "time", script)
    monkeypatch.setattr(display, "time", script)
    code = watch(Options(**{"run": str(run.folder), "console": "plain", "period_s": 0.0, **options}))
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("failed", 4), ("interrupted", 75)])
def test_a_run_is_shown_until_its_end_and_its_exit_code_returned(run, monkeypatch, capsys, status, code):
    run.report(STATUS)
    newer = replace(STATUS, written=3.0, env_steps=700).evaluated(600, 5.0)
    with claim_run(run.folder):
        script = Script(lambda: run.report(newer), lambda: run.end(status, code))
        exit_code, lines = watched(run, monkeypatch, capsys, script)
    assert exit_code == code
    assert lines[0].startswith("Pendulum-v1 sac async seed 0  ->  ")
    assert "50.0%  step   500  train return       3.0" in lines[1]
    assert "70.0%  step   700  eval  return       5.0  best 5.0  at step 600  (new best)" in lines[2]
    assert "step   700" in lines[3]
    assert lines[4].startswith(f"{status}: best return 2.0")
    assert any(line.startswith("next: ") or "drl-eval" in line for line in lines[5:])
    assert sum("eval  return" in line for line in lines) == 1  # evaluations from before are not shown


def test_before_the_first_report_and_before_the_first_step(run, monkeypatch, capsys):
    starting = replace(Status(title="x", started=990.0), awaits="Ray", written=1000.0)
    with claim_run(run.folder):
        script = Script(lambda: run.report(starting), *[lambda: None] * 3, lambda: run.end("done", 0))
        _, lines = watched(run, monkeypatch, capsys, script)
    assert lines[1:4] == [  # repeated every 5 s
        "  0:00:00  waiting for its first report",
        "  0:00:12  waiting for Ray",
        "  0:00:18  waiting for Ray",
    ]


def test_a_killed_run_on_this_machine_is_noticed_at_once(run, monkeypatch, capsys):
    run.report(STATUS)
    with lock(run.folder / RUN_LOCK) as held:
        code, lines = watched(run, monkeypatch, capsys, Script(lambda: None, held.close))
    assert code == LOST
    assert lines[-2] == (
        f"nobody writes any more: its process is gone (process 42 on {socket.gethostname()}); "
        "its last report was of step 500, 0:01:01 after its start"
    )
    assert lines[-1].startswith("next: drl-train resume=")


def test_a_run_with_a_held_lock_may_be_silent_forever(run, monkeypatch, capsys):
    run.report(STATUS)
    with claim_run(run.folder):
        script = Script(*[lambda: None] * 200, lambda: run.end("done", 0))
        code, _ = watched(run, monkeypatch, capsys, script)
    assert code == 0


def test_a_run_on_another_machine_lives_while_it_reports(run, monkeypatch, capsys):
    run.record(host="elsewhere")
    run.report(STATUS)
    alive = [lambda i=i: run.report(replace(STATUS, written=3.0 + i)) for i in range(40)]
    script = Script(*alive, *[lambda: None] * 40)
    code, lines = watched(run, monkeypatch, capsys, script, stale_s=20.0)
    assert code == LOST
    assert not [step for step in script.steps if step in alive]
    assert len(script.steps) == 40 - 10  # one step every 2 s
    assert "nobody writes any more: there was no report for 0:00:20 (process 42 on elsewhere)" in lines[-2]


def test_a_run_that_ends_while_its_lock_is_read_was_not_killed(run):
    before = json.loads((run.folder / "run.json").read_text())
    run.end("done", 0)
    (run.folder / RUN_LOCK).touch()
    assert how_it_ended(run.folder, before, 0.0, 60.0)["status"] == "done"


def test_the_panel_shows_how_long_a_run_is_silent(run, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", out)
    run.report(STATUS)
    with lock(run.folder / RUN_LOCK) as held:
        monkeypatch.setattr(module, "time", Script(*[lambda: None] * 9, held.close))
        assert watch(Options(str(run.folder))) == LOST
    text = re.sub(r"\x1b\[[?\d;]*\w", "", out.getvalue())
    assert "no report for 0:00:12" in text
    assert "no report for 0:00:08" not in text
    assert "killed" in text[text.rindex("bottleneck" if "bottleneck" in text else "processors") :]


def test_without_a_readable_lock_the_reports_count(run, monkeypatch, capsys):
    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(module, "is_locked", refuse)
    run.report(STATUS)
    code, lines = watched(run, monkeypatch, capsys, Script(*[lambda: None] * 40))
    assert code == LOST
    assert "there was no report for 0:01:00" in lines[-2]


def test_a_run_that_is_done_is_shown_with_its_end(drl_here, small_run, monkeypatch):
    monkeypatch.chdir(small_run.cwd)
    done = drl_here("watch")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("done: best return ")
    status = Status.read(small_run.folder)
    assert (status.state, status.env_steps, status.total_env_steps) == ("done", 160, 160)
    assert status.run_id == small_run.folder.name


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_in_the_background_is_watched_from_start_to_end(start, tmp_path):
    run = start(*SMALL, "mode=async", "logger.report_s=0.5", "total_env_steps=8000")
    run.until(lambda: any(run.cwd.glob("outputs/*/*/*/run.json")))
    watching = Run(tmp_path, "latest", "period_s=1", command="watch")
    assert run.wait() == 0, run.err
    assert watching.wait(30) == 0, watching.err
    first = re.findall(r"waiting for (.*)", watching.out)[0]
    assert first in ("its first report", "Ray")
    assert re.search(r"\d\.\d%  step .*train return", watching.out)
    assert "  eval  return " in watching.out
    assert watching.out.splitlines()[-5].startswith("done: best return ")
    assert "nan" not in watching.out
    assert watching.err == ""

import json
import os
import pty
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest
from processes import SMALL

from drl_cli.cli.train import answer
from drl_cli.metrics.status import Status
from drl_cli.run_folder.checkpoint import open_checkpoint
from drl_cli.settings.conf import conf_dir

pytestmark = [pytest.mark.ray, pytest.mark.slow]

EXHAUSTIVE = pytest.mark.exhaustive
CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGHUP: 129}
SLOW_EVALUATION = ("env=drl_cli.envs.probes:Sleeper-v0", "+env.kwargs.length=20000", "+env.kwargs.step_s=0.0005")


def begun(run, name):
    """Whether the run has started a process of this name."""
    for process in psutil.Process(run.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # a short-lived child
            if process.name() == name:
                return True
    return False


def env_steps(run):
    """Environment steps in the last status. In mode=single, the next checkpoint waits for the evaluation."""
    status = Status.read(run.folder)
    return status.env_steps if status else 0


PHASES = {
    "starting": ((), lambda run: "->" in run.out),
    "starting Ray": ((), lambda run: begun(run, "gcs_server")),
    "starting roles": ((), lambda run: begun(run, "raylet")),
    "warming up": (
        ("orchestrator.min_inserts=1000000", "replay.capacity=1000000", "total_env_steps=2000000"),
        lambda run: run.saved >= 400,
    ),
    "training": ((), lambda run: run.saved >= 400),
    "evaluating": (
        (*SLOW_EVALUATION, "manage.eval_period=400"),  # mode=sync waits for the result at step 500
        lambda run: run.saved >= 0 and env_steps(run) >= 416 and "eval  return" not in run.out,
    ),
    "evaluating again": (  # one evaluation follows the other
        (*SLOW_EVALUATION, "manage.eval_period=100"),
        lambda run: run.saved >= 400 and "eval  return" in run.out,
    ),
    "saving": (
        ("checkpoint.period=1",),
        lambda run: run.saved >= 400 and any(run.cwd.glob("outputs/*/*/*/checkpoints/.step*")),
    ),
}
"""Overrides, and a function that tells whether the phase has begun."""


def check_end(run, number):
    """Check the exit code of the signal, an empty stderr, and that no process is left."""
    assert run.wait() == CODES[number], run.err
    assert (run.err, run.left()) == ("", [])


@pytest.mark.parametrize(
    ("phase", "mode", "number", "group"),
    [
        pytest.param("starting", "single", signal.SIGTERM, True, marks=EXHAUSTIVE),
        ("starting Ray", "async", signal.SIGINT, True),
        pytest.param("starting Ray", "sync", signal.SIGTERM, False, marks=EXHAUSTIVE),
        pytest.param("starting roles", "async", signal.SIGTERM, True, marks=EXHAUSTIVE),
        pytest.param("warming up", "async", signal.SIGTERM, True, marks=EXHAUSTIVE),
        pytest.param("warming up", "single", signal.SIGINT, False, marks=EXHAUSTIVE),
        pytest.param("training", "async", signal.SIGINT, True, marks=EXHAUSTIVE),
        pytest.param("training", "sync", signal.SIGTERM, True, marks=EXHAUSTIVE),
        pytest.param("training", "single", signal.SIGTERM, False, marks=EXHAUSTIVE),
        pytest.param("evaluating", "async", signal.SIGTERM, False, marks=EXHAUSTIVE),
        pytest.param("evaluating", "sync", signal.SIGINT, True, marks=EXHAUSTIVE),
        pytest.param("saving", "async", signal.SIGINT, False, marks=EXHAUSTIVE),
        pytest.param("saving", "sync", signal.SIGTERM, False, marks=EXHAUSTIVE),
        *(
            pytest.param(phase, mode, signal.SIGHUP, True, marks=EXHAUSTIVE)
            for phase, mode in [
                *(("starting", "single"), ("starting Ray", "async"), ("starting roles", "sync")),
                *(("warming up", "sync"), ("training", "single"), ("training", "async")),
                *(("evaluating again", "single"), ("evaluating again", "async"), ("saving", "sync")),
            ]
        ),
    ],
)
def test_a_signal_ends_a_run_in_any_phase(start, phase, mode, number, group):
    args, is_there = PHASES[phase]
    run = start(*SMALL, f"mode={mode}", *args)
    run.until(lambda: is_there(run))
    run.send(number, group)
    check_end(run, number)
    assert run.status == "interrupted"
    last = run.folder / "checkpoints" / "last"
    if phase.startswith("starting"):
        assert not last.exists()
        return
    checkpoint = open_checkpoint(last)
    assert checkpoint.has_replay
    assert not list(last.parent.glob(".step*"))
    assert f" {checkpoint.env_steps:,} env steps" in run.out
    assert (checkpoint.params_header.opt_steps == 0) == (phase == "warming up")
    assert f"next: drl-train resume={run.folder.relative_to(run.cwd)}" in run.out


def test_a_closed_terminal_ends_a_run_with_a_checkpoint(tmp_path):
    """The kernel sends SIGHUP, and everything that the run then prints fails."""
    program, terminal = pty.fork()
    if program == 0:
        os.chdir(tmp_path)
        os.environ |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        os.execv(sys.executable, [sys.executable, "-m", "drl_cli.cli.train", *SMALL, "mode=async"])
    reader = threading.Thread(target=drain, args=(terminal,), daemon=True)
    reader.start()
    deadline = time.monotonic() + 240  # as Run.until
    try:
        while all(steps_of(file) < 400 for file in tmp_path.glob("outputs/*/*/*/checkpoints/step_*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        left = psutil.Process(program).children(recursive=True)
    finally:
        os.close(terminal)  # also ends a run that is too slow
    _, status = os.waitpid(program, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    (folder,) = tmp_path.glob("outputs/*/*/*")
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert json.loads((folder / "summary.json").read_text())["exit_code"] == 129
    assert open_checkpoint(folder / "checkpoints" / "last").env_steps >= 400
    assert "resume=" in (folder / "train.log").read_text()
    assert psutil.wait_procs(left, 10)[1] == []


def drain(terminal):
    with suppress(OSError):  # closed
        while os.read(terminal, 65_536):
            pass


def steps_of(checkpoint):
    return int(checkpoint.name.split("_")[1].split("-")[0])


def weights(place):
    (file,) = place.glob("outputs/*/*/*/checkpoints/last/model.safetensors")
    return file.read_bytes()


@pytest.mark.parametrize(
    ("mode", "total"),
    [("single", 4000), pytest.param("sync", 6000, marks=EXHAUSTIVE), pytest.param("async", 6000, marks=EXHAUSTIVE)],
)
def test_a_run_that_sighup_ended_is_resumed_to_its_budget(start, tmp_path, monkeypatch, mode, total):
    args = (
        *SMALL,
        *(f"mode={mode}", "orchestrator.sample_insert_ratio=0.25", "manage.eval_period=2000"),
        f"total_env_steps={total}",
    )
    run = start(*args)
    run.until(lambda: run.saved >= 400)
    run.send(signal.SIGHUP, group=True)
    check_end(run, signal.SIGHUP)
    checkpoint = open_checkpoint(run.folder / "checkpoints" / "last")
    assert checkpoint.params_header.opt_steps > 0
    assert checkpoint.env_steps < total
    resume = run.out.split("next: drl-train ")[1].split()[0]
    again = start(resume)
    assert again.wait() == 0, again.err
    assert f"  from step {checkpoint.env_steps}" in again.out.replace(",", "")
    assert (run.status, again.left()) == ("done", [])
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["env_steps"] >= total
    assert summary["updates_per_env_step"] == pytest.approx(0.25, rel=0.02)
    if mode != "async":
        (tmp_path / "once").mkdir()
        monkeypatch.chdir(tmp_path / "once")
        assert answer([*args, "debug.in_process=true"]) == 0
        assert weights(tmp_path / "once") == weights(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["single", "async"])
def test_a_run_under_nohup_goes_on(start, mode):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the run inherits it, as from nohup
    try:
        run = start(*SMALL, f"mode={mode}", "total_env_steps=2000")
    finally:
        signal.signal(signal.SIGHUP, before)
    run.until(lambda: run.saved >= 400)
    run.send(signal.SIGHUP, group=True)
    assert run.wait() == 0, run.err
    assert run.status == "done"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=EXHAUSTIVE), signal.SIGTERM])
def test_a_signal_before_the_run_leaves_nothing(start, tmp_path, number):
    (tmp_path / "slow_envs.py").write_text("print('being imported', flush=True)\nimport time\ntime.sleep(600)\n")
    run = start(*SMALL, "env=slow_envs:Slow-v0")
    run.until_said("being imported")
    run.send(number, group=True)
    check_end(run, number)
    assert not (tmp_path / "outputs").exists()


SLOW_ALGORITHM = """
import time
from pathlib import Path

from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy.sac import ACTIONS, Config, Policy


class Algorithm(sac.Algorithm):
    def learn(self, batch, counts):
        Path("updating").touch()
        time.sleep(600)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["single", "sync", "async"])
def test_one_signal_ends_an_update_that_takes_minutes(start, tmp_path, mode):
    (tmp_path / "slow_algo.py").write_text(SLOW_ALGORITHM)
    shutil.copy(conf_dir() / "algo" / "sac.yaml", tmp_path / "slow_algo.yaml")
    run = start(*SMALL, f"mode={mode}", "algo=slow_algo")
    run.until((tmp_path / "updating").exists)
    run.send(signal.SIGINT)
    assert run.wait(60) == CODES[signal.SIGINT], run.err
    assert "an update takes more than" in run.err
    assert (run.left(), run.status) == ([], "interrupted")


@pytest.mark.exhaustive
def test_a_second_signal_ends_the_run_at_once(start):
    run = start(*SMALL, "mode=async")
    run.until(lambda: run.saved >= 400)
    saved = run.saved
    os.kill(run.pid("trainer"), signal.SIGSTOP)  # the first signal waits for the trainer
    while run.process.poll() is None:
        run.send(signal.SIGINT)
        run.rest(0.5)
    check_end(run, signal.SIGINT)
    assert run.status == "interrupted"
    assert open_checkpoint(run.folder / "checkpoints" / "last").env_steps >= saved


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_first_update_is_compiled_keeps_the_checkpoint_before_it(start, tmp_path, number):
    run = start(*SMALL, "mode=single", "trainer.compile=true", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    run.until(lambda: any("drl_cli.chains.compiling" in line for line in commands(run)))
    run.send(number, group=True)
    assert run.wait() == CODES[number], run.err
    assert run.err.startswith("warning: an update takes more than 10 s")
    assert (run.left(), run.status) == ([], "interrupted")
    checkpoint = open_checkpoint(run.folder / "checkpoints" / "last")
    assert (checkpoint.opt_steps, checkpoint.has_replay) == (0, True)
    assert f" {checkpoint.env_steps} env steps" in run.out


def commands(run):
    return [" ".join(process.cmdline()) for process in run.processes()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_manage_that_stops_answering_is_restarted(start, mode):
    run = start(*SMALL, f"mode={mode}", "orchestrator.stall_s=20")
    run.until(lambda: run.saved >= 400)
    stopped, saved = run.pid("manage"), run.saved
    os.kill(stopped, signal.SIGSTOP)
    run.until(lambda: run.saved > saved and run.pid("manage") != stopped)
    run.until(lambda: not psutil.pid_exists(stopped), 30.0)  # Ray ends it while the new one already works
    run.send(signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert "warning: manage does not answer for 20 s, restarted 1/3\n" in run.err
    assert (run.left(), run.status) == ([], "interrupted")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("role", "named"), [("trainer", "trainer"), ("replay-0", "replay")])
def test_a_role_that_stops_answering_ends_the_run(start, role, named):
    run = start(*SMALL, "mode=async", "orchestrator.stall_s=20")
    run.until(lambda: run.saved >= 400)
    os.kill(run.pid(role), signal.SIGSTOP)
    assert run.wait() == 6, run.err
    first, *others = run.err.splitlines()
    assert first.startswith("error: no answer for 20 s from: ")
    assert named in first
    assert (others, run.left(), run.status) == ([], [], "failed")
    assert open_checkpoint(run.folder / "checkpoints" / "last").env_steps >= 400


@EXHAUSTIVE
@pytest.mark.parametrize("mode", ["single", "async"])
def test_the_steps_of_the_first_collect_call_are_shown_and_count_after_a_signal(start, mode):
    slow = ("env=drl_cli.envs.probes:Sleeper-v0", "+env.kwargs.length=2000", "+env.kwargs.step_s=0.02")
    long = ("worker.num=1", "worker.block_rows=4096", "replay.capacity=100000", "total_env_steps=20000")
    run = start(*SMALL, f"mode={mode}", *slow, *long, "orchestrator.min_inserts=1000")
    run.until_said(" steps/s, about ")
    assert re.search(r"waiting for warm-up \d+/1,000, [\d.]+ steps/s, about \d+ s left", run.out)
    while run.process.poll() is None:
        run.send(signal.SIGINT)
        run.rest(0.5)
    check_end(run, signal.SIGINT)
    [end] = [line for line in run.out.splitlines() if line.startswith("interrupted: ")]
    assert 0 < int(re.search(r"([\d,]+) env steps", end)[1].replace(",", "")) < 4096
    assert "000,000 env/s" not in end

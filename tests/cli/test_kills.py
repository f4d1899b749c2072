import hashlib
import math
import random
import re
import signal

import pytest
from pages import blocks
from processes import SMALL
from records import check_checkpoints, check_curves, eval_steps, metrics_steps

from drl_cli.run_folder.checkpoint import damaged_files, open_checkpoint, read_manifest
from drl_cli.run_folder.pruning import best_model, checkpoints
from drl_cli.run_folder.resume import choose

pytestmark = [pytest.mark.ray, pytest.mark.slow]

EXHAUSTIVE = pytest.mark.exhaustive
PERIOD = 300
DIED = "died: its process ended unexpectedly"
RESTARTED = r"died \(its process ended unexpectedly\), restarted 1"
MANAGE = f"manage {RESTARTED}/3"
WORKER = rf"worker 0 {RESTARTED}/10 in \d+\.\d s"
RAYLET_DIED = "error: Ray's raylet died, and all roles with it"
NOT_SAVED = "warning: a checkpoint could not be saved: manage failed; the last good one is step_"
OFTEN = (
    *SMALL,
    *(f"checkpoint.period={PERIOD}", "manage.eval_period=600", "orchestrator.sample_insert_ratio=2"),
    "logger.report_s=0.2",
)
CNN = ("env=drl_cli.envs.probes:Frames-v0", "+env.kwargs.size=12", "algo=dqn")
LSTM = (
    *("env=drl_cli.envs.probes:Cue-v0", "algo=dqn", "network=lstm", "network.memory_size=8", "replay=sequences"),
    *("replay.seq_len=6", "replay.burn_in=3", "replay.overlap=2"),
)
R2D2 = (LSTM[0], "algo=r2d2", "network.memory_size=8", *LSTM[5:])
PINK = ("env=MountainCarContinuous-v0", "algo=sac", "tuned=none", "network.hidden=[16,16]")
REPEATS = ("env=MountainCar-v0", "algo=dqn", "tuned=none", "network.hidden=[16,16]")
OWN = ("env=Pendulum-v1", "algo=my_own")
IQN = ("env=drl_cli.envs.probes:Choose-v0", "algo=iqn", "algo.noisy=true", "network.hidden=[16,16]")


def killed(run, seconds):
    """Kill the run `seconds` after its start, and check its files. Return the last env step in them."""
    run.until_said("->")
    run.rest(seconds)
    run.send(signal.SIGKILL, group=True)
    run.wait()
    return max([*metrics_steps(run.folder), *eval_steps(run.folder), *check_checkpoints(run.folder), 0])


def resumed(start, **options):
    """Resume the last run. Return it and the env steps of its checkpoint."""
    run = start("resume=latest", **options)
    run.until_said("->")
    return run, int(re.search(r"from step ([\d,]+)", run.out)[1].replace(",", ""))


CRASHES = """
import os

from drl_cli.envs.probes.episodes import Counter


class Late(Counter):
    steps = 0

    def step(self, action):
        Late.steps += 1
        if Late.steps == 400:
            os.abort()
        return super().step(action)
"""


@pytest.mark.parametrize(("mode", "workers"), [("async", 2), ("sync", 1)])
@pytest.mark.exhaustive
def test_a_run_killed_at_any_time_resumes_from_its_last_checkpoint(start, mode, workers):
    random_moment = random.Random(mode)
    run = start(*OFTEN, f"mode={mode}", f"worker.num={workers}")
    run.until(lambda: run.saved >= PERIOD)
    for _ in range(3):
        seen = killed(run, random_moment.uniform(0, 6))
        run, step = resumed(start)
        assert step >= seen - PERIOD - 32 * workers
    run.until(lambda: run.saved > step + 2 * PERIOD)
    run.send(signal.SIGTERM)
    assert run.wait() == 75, run.err
    check_checkpoints(run.folder)
    check_curves(run.folder)


@pytest.mark.exhaustive
def test_a_run_killed_twenty_times_while_it_saves_or_resumes_loses_no_checkpoint_and_no_best_model(start):
    random_moment, best, num_unfinished = random.Random(0), -math.inf, 0
    run = start(*OFTEN, "mode=single", "debug.in_process=true", "checkpoint.period=40", "manage.eval_period=120")
    run.until(lambda: run.saved >= PERIOD)
    for i in range(20):
        root = run.folder / "checkpoints"
        if i % 3:  # a new name in the folder: a checkpoint or a best model is being saved
            known = {path.name for path in root.iterdir()}
            run.until(lambda root=root, known=known: {path.name for path in root.iterdir()} - known)
            run.rest(random_moment.uniform(0, 0.1))
        else:
            run.rest(random_moment.uniform(0, 8))
        run.kill_all()
        num_unfinished += any(root.glob(".step_*"))
        whole = [path for path in checkpoints(root) if not damaged_files(path, read_manifest(path))]
        assert choose(run.folder, None, needs_replay=True).folder.name == whole[-1].name
        model = best_model(root)
        mean = best if model is None else read_manifest(model)["mean"]
        assert mean >= best
        best, run = mean, start("resume=latest")
    run.until_said("->")
    saved = run.saved
    run.until(lambda: run.saved > saved)
    run.send(signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert num_unfinished > 2
    check_checkpoints(run.folder)
    check_curves(run.folder)


def weights(run):
    return hashlib.sha256((run.folder / "checkpoints/last/model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *[(CNN, "sync"), (LSTM, "sync"), (R2D2, "single"), (IQN, "single"), (PINK, "single"), (REPEATS, "sync")],
        *[(OWN, "sync"), (OWN, "single")],
    ],
    ids=["cnn-sync", "lstm-sync", "r2d2-single", "iqn-single", "pink-single", "repeats-sync", "own-sync", "own-single"],
)
@pytest.mark.exhaustive
def test_a_killed_and_resumed_run_ends_with_the_same_weights(start, tmp_path, kind, mode):
    total = 2400 if mode == "sync" else 7200  # mode=single is fast, and must still run when it is killed
    args = (*OFTEN, *kind, f"mode={mode}", "orchestrator.sample_insert_ratio=0.25", f"total_env_steps={total}")
    (tmp_path / "once").mkdir()
    (own,) = [block for block in blocks("more-algorithms.md") if "Soft actor-critic" in block]
    for folder in (tmp_path, tmp_path / "once"):
        (folder / "my_own.py").write_text(own)
    once = start(*args, "debug.in_process=true", cwd=tmp_path / "once")
    assert once.wait() == 0, once.err
    run = start(*args)
    run.until(lambda: run.saved >= PERIOD)
    assert killed(run, 0.1) < total
    run, step = resumed(start)
    assert PERIOD <= step < total
    assert run.wait() == 0, run.err
    assert weights(run) == weights(once)
    assert ("policy: numpy" in run.out) == (kind == OWN)
    check_checkpoints(run.folder)
    check_curves(run.folder)


ROLLOUTS = ("env=CartPole-v1", "manage.eval_episodes=2", "manage.eval_period=2048", "checkpoint.period=2048")


@pytest.mark.parametrize(
    ("role", "mode", "error"),
    [
        ("trainer", "async", f"error: trainer {DIED}"),
        pytest.param("replay-0", "async", f"error: replay( 0)? {DIED}", marks=EXHAUSTIVE),
        pytest.param("parameter-server", "async", f"error: parameter server {DIED}", marks=EXHAUSTIVE),
        *(pytest.param("raylet", mode, RAYLET_DIED, marks=EXHAUSTIVE) for mode in ("async", "sync", "single")),
    ],
)
def test_a_run_without_this_role_ends_soon_and_can_be_resumed(start, role, mode, error):
    run = start(*SMALL, f"mode={mode}")
    run.until(lambda: run.saved >= 400 and any(run.cwd.glob("outputs/*/*/*/workers/manage.log")))  # Ray is connected
    run.kill(role)
    assert run.wait(30) == 6, run.err
    assert re.fullmatch(error, run.err.rstrip("\n"))
    assert (run.left(), run.status) == ([], "failed")
    assert f"next: drl-train resume={run.folder.relative_to(run.cwd)}" in run.out
    again, step = resumed(start)
    assert step >= 400
    again.until(lambda: run.saved > step and eval_steps(run.folder))
    again.send(signal.SIGINT, group=True)
    assert again.wait() == 130, again.err
    assert (again.err, again.left(), again.status) == ("", [], "interrupted")
    assert open_checkpoint(again.folder / "checkpoints" / "last").has_replay
    check_curves(again.folder)


@pytest.mark.parametrize(
    ("role", "mode", "args", "warning"),
    [
        ("worker-0", "async", LSTM, WORKER),
        pytest.param("worker-0", "sync", (), WORKER, marks=EXHAUSTIVE),
        pytest.param("worker-0", "async", ("worker.proxies=1",), WORKER, marks=EXHAUSTIVE),
        pytest.param("proxy-0", "async", ("worker.proxies=1",), WORKER.replace("worker", "proxy"), marks=EXHAUSTIVE),
        *(pytest.param("manage", mode, (), MANAGE, marks=EXHAUSTIVE) for mode in ("async", "sync", "single")),
    ],
)
def test_this_role_is_restarted_and_the_run_finishes(start, role, mode, args, warning):
    run = start(*SMALL, f"mode={mode}", "total_env_steps=8000", *args)
    run.until_said("eval  return")
    run.kill(role)
    assert run.wait() == 0, run.err
    first, *others = run.err.splitlines()
    assert re.fullmatch(f"warning: {warning}", first)
    assert len(others) <= 1
    assert all(line.startswith(NOT_SAVED) for line in others)  # the role died while it saved
    assert (run.left(), run.status) == ([], "done")
    assert run.saved == max(eval_steps(run.folder)) >= 8000
    check_checkpoints(run.folder)
    check_curves(run.folder)


def crashed(start, tmp_path, *args):
    """Return a run whose environment aborts at step 400 of its process, after the trial."""
    (tmp_path / "crash_env.py").write_text(CRASHES)
    return start(*SMALL, "env=crash_env:Late", "total_env_steps=8000", *args)


@pytest.mark.exhaustive
def test_an_environment_that_crashes_in_a_worker_is_named_with_its_signal_and_line(start, tmp_path):
    run = crashed(start, tmp_path, "mode=async", "worker.max_restarts=1")
    assert run.wait() == 6, run.err
    cause = r"died \(crash_env:Late ended its process by SIGABRT \(Aborted\) \(crash_env\.py:13\)\)"
    restarted = rf"warning: worker 0 {cause}, restarted 1/1 in \d+\.\d s"
    error = rf"error: worker 0 {cause}; 1 restarts are used up \(worker\.max_restarts\); the first time it {cause}"
    assert re.fullmatch(f"{restarted}\n{error}\n", run.err)
    assert (run.left(), run.status) == ([], "failed")

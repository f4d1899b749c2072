import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from processes import SMALL, Run

from drl_cli.bench.pace import HEAD, Pace
from drl_cli.cli.bench import UNREAD, Options, is_own, measure, read
from drl_cli.errors import UsageError
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose


def read_by_bench(words):
    """Return the words without the keys that drl-bench refuses."""
    return [word for word in words if not word.startswith(UNREAD)]


def problems_of(*args):
    with pytest.raises(UsageError) as caught:
        read(args)
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_own_options_are_split_from_keys_of_drl_train():
    options, command, _ = read(["seed=3", "env=Pendulum-v1", "seconds=0.5", "tune=true"])
    assert options == Options(seconds=0.5, tune=True)
    assert command.overrides == ["seed=3", "env=Pendulum-v1"]
    assert str(read(["env=CartPole-v1", "algo=auto"])[2]).startswith("algo=auto chose ")
    assert read([])[0] == Options(seconds=5.0, tune=False, json=None)


@pytest.mark.parametrize(("key", "own"), [("seconds", True), ("secnds", True), ("seed", False), ("algo.lr", False)])
def test_a_misspelled_key_belongs_to_the_nearest_keys(key, own):
    assert is_own(key) == own


@pytest.mark.parametrize(
    ("arg", "says"),
    [
        ("secnds=2", "secnds: no such option. Did you mean seconds?"),
        ("seconds=0", "seconds: must be > 0, got 0"),
        ("env=LunarLaner", "no environment 'LunarLaner'. Did you mean LunarLander, LunarLanderContinuous?"),
        ("-m", "drl-bench measures one run"),
        ("--config-name=x", "--config-name: say by --config-path"),
        ("json=no/such/folder.json", "json=no/such/folder.json: there is no folder"),
        ("from_config=nope", "no run 'nope'"),
    ],
)
def test_wrong_options(arg, says):
    (problem,) = problems_of(arg)
    assert problem.startswith(says)


def test_a_key_that_drl_train_refuses_is_refused(drl_here):
    done = drl_here("bench", "env=CartPole-v1", "algo=ppo", "orchestrator.min_inserts=64", "dry_run=true")
    assert done.returncode == 2
    assert done.stderr.startswith("error: orchestrator.min_inserts=64 has no effect: PPO is on-policy")


def test_a_dry_run_says_that_nothing_was_measured(drl_here):
    done = drl_here("bench", "env=Pendulum-v1", "algo=sac", "dry_run=true")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Pendulum-v1: all checks passed; nothing was measured\n")


def test_the_proposed_command_has_the_flags_that_were_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "drl_cli.bench.pace.measure", lambda words, *_: Pace(1.0 + ("worker.num=2" in words), *[0.0] * 4)
    )
    monkeypatch.setattr("drl_cli.cli.bench.num_cores", lambda: 2)
    typed = read_command(["--config-dir", str(tmp_path), "env=Pendulum-v1", "worker.num=5"])
    measure(compose(["env=Pendulum-v1", "worker.num=1", "mode=single"]), Options(tune=True), typed, typed)
    last = capsys.readouterr().out.splitlines()[-1]
    keys = "env=Pendulum-v1 mode=async worker.num=2 worker.envs=8 trainer.threads=1"
    assert last == f"next: drl-train --config-dir {tmp_path} {keys}"


def test_all_problems_at_once():
    assert len(problems_of("secnds=2", "seconds=0", "algo.lrr=1", "worker.envs=0")) == 4


@pytest.mark.slow
def test_a_run_to_resume_is_refused(small_run):
    (problem,) = problems_of(f"resume={small_run.folder}")
    assert problem.startswith("resume: drl-bench trains nothing")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("env=CartPole-v1", "algo=sac"), 2, "SAC needs a continuous (Box) action space"),
        (("ray.address=auto",), 2, "ray.address: drl-bench measures this machine"),
        (("stop.return=100",), 2, "stop.return has no effect: drl-bench ends, evaluates and saves"),
        (("manage.eval_episodes=3",), 2, "manage.eval_episodes has no effect"),
        (("explain=true",), 2, "explain: drl-bench measures; drl-train explain=true says"),
        (("env=user_envs:Tiny-v0", "+env.kwargs.fail=init"), 4, "no room"),
        (("env=user_envs:Tiny-v0", "+env.kwargs.fail=step"), 4, "the arm fell off"),
    ],
)
def test_the_same_errors_and_exit_codes_as_drl_train(drl_here, user_folder, monkeypatch, args, code, says):
    monkeypatch.chdir(user_folder)
    done = drl_here("bench", *args)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert all(line.startswith(("error: ", "  ")) for line in done.stderr.splitlines())


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_complete_measurement_with_tuning(tmp_path, drl, tiny):
    (tmp_path / "tmp").mkdir()
    args = ["env=Pendulum-v1", *read_by_bench(tiny), "seconds=0.2", "tune=true", "json=bench.json"]
    done = drl("bench", *args, cwd=tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
    first, head, *_, last = done.stdout.splitlines()
    assert first.startswith("Pendulum-v1 sac async: ")
    assert head.endswith(HEAD)
    result = json.loads((tmp_path / "bench.json").read_text())
    figures = result["figures"]
    assert figures[0]["run"] == "yours, mode=async"
    assert all(figure["env_steps_per_s"] >= 0 and figure["rounds"] for figure in figures)
    assert result["command"][0] == "env=Pendulum-v1"
    assert last.startswith("next: drl-train env=Pendulum-v1 ")
    assert last.endswith(" ".join(result["tuned"]))
    assert last.count("worker.envs=") == last.count("worker.num=") == 1
    assert "orchestrator.sample_insert_ratio" not in last
    tried = {figure["run"]: figure["env_steps_per_s"] for figure in figures[1:]}
    assert max(tried.values()) <= 1.03 * tried[" ".join(result["tuned"])]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "tmp"]
    left = {path.name for path in (tmp_path / "tmp").iterdir()}
    assert left <= {f"drl-{os.getuid()}"}  # compiled code


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_config_of_a_run_is_measured(drl, small_run, tmp_path):
    args = (f"from_config={small_run.folder}", "seconds=0.2")
    done = drl("bench", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Pendulum-v1 sac async: ")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def short_tmp():
    """A folder with a short name for temporary files: the paths of Ray's sockets have a limit."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
@pytest.mark.exhaustive
def test_a_signal_leaves_no_process_and_no_folder(tmp_path, short_tmp, number, code):
    run = Run(tmp_path, *read_by_bench(SMALL), "seconds=100", command="bench", TMPDIR=str(short_tmp))
    try:
        run.until(lambda: list(short_tmp.glob("drl-bench-*/*/*/*/workers/trainer.log")))
        run.send(number, group=True)
        assert run.wait() == code, run.err
        assert (run.err, run.left(), list(short_tmp.glob("drl-bench-*"))) == ("", [], [])
    finally:
        run.kill_all()

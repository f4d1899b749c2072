import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from run_folders import make_run

import drl_cli

FRESH = """
import sys
import drl_cli
assert set(sys.modules).isdisjoint({"numpy", "gymnasium", "torch", "hydra"}), "importing drl_cli imports more"
policy = drl_cli.load()
import numpy as np
print(policy(np.array([1, 0, 0.5])).tolist(), policy(np.zeros((4, 3), np.float32)).shape)
assert set(sys.modules).isdisjoint({"torch", "ray", "hydra", "tensorboard"}), "an MLP needs only numpy"
"""


@pytest.mark.slow
def test_load_in_a_fresh_interpreter_without_torch(small_run):
    done = subprocess.run([sys.executable, "-c", FRESH], cwd=small_run.cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    policy = drl_cli.load(str(small_run.folder))
    assert done.stdout == f"{policy(np.array([1, 0, 0.5])).tolist()} (4, 1)\n"


def test_checkpoints_by_name_number_and_link(small_run):
    folder = small_run.folder
    last = drl_cli.load(str(folder), checkpoint="last")
    assert last.checkpoint == (folder / "checkpoints" / "last").resolve()
    assert last.run == folder.resolve()
    assert last.manifest["env_steps"] == 160
    for name in (160, "1.6e2", last.checkpoint.name):
        assert drl_cli.load(str(folder), name).checkpoint == last.checkpoint
    best = drl_cli.load(folder.name[:15], output_dir=str(small_run.cwd / "outputs"))
    assert best.checkpoint == (folder / "checkpoints" / "best").resolve()
    assert not np.array_equal(best(np.ones(3)), last(np.ones(3)))
    for wrong in ("16", "60", "first", "../checkpoints/last", "step_1"):
        with pytest.raises(drl_cli.UsageError, match=r"there is: best, last, step_0") as caught:
            drl_cli.load(str(folder), wrong)
        assert caught.value.exit_code == 8
    with pytest.raises(drl_cli.UsageError, match="no run 'nope'"):
        drl_cli.load("nope")


@pytest.fixture
def here(tmp_path, monkeypatch, user_folder):
    monkeypatch.syspath_prepend(str(user_folder))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_train_returns_the_summary_and_load_the_policy(here, tiny, capsys):
    started, handler = time.time(), signal.getsignal(signal.SIGINT)
    overrides = ["env=Pendulum-v1", "mode=single", *tiny]
    summary = drl_cli.train(overrides)
    policy = drl_cli.load(summary["run_id"])
    assert summary.pop("folder") == str(policy.run)
    assert json.loads((policy.run / "summary.json").read_text()) == summary
    assert (summary["status"], summary["env_steps"]) == ("done", 160)
    assert summary["wall_s"] <= time.time() - started
    assert json.loads((policy.run / "run.json").read_text())["command"] == ["drl-train", *overrides]
    assert signal.getsignal(signal.SIGINT) is handler
    again = drl_cli.train([f"resume={policy.run}", "total_env_steps=200"])
    assert (again["run_id"], again["env_steps"]) == (summary["run_id"], 208)


@pytest.mark.slow
def test_train_raises_instead_of_exiting(here, tiny, monkeypatch):
    with pytest.raises(drl_cli.UsageError, match=r"Did you mean algo\.lr") as caught:
        drl_cli.train(["algo.lrr=1", "worker.envs=-2"])
    assert len(caught.value.problems) == 2
    with pytest.raises(drl_cli.UsageError, match="SAC needs a continuous"):
        drl_cli.train(["env=CartPole-v1", "algo=sac"])
    for flag in ("-m", "--cfg=job"):
        with pytest.raises(drl_cli.UsageError, match="key=value alone"):
            drl_cli.train([flag, "seed=0,1"])
    with pytest.raises(drl_cli.UsageError, match="say it to drl-train"):
        drl_cli.train(["explain=true"])
    monkeypatch.setattr(
        "drl_cli.preflight.preflight.try_environment", lambda config, spec: None
    )  # the fault appears in training
    with pytest.raises(drl_cli.RunFailed, match="the arm fell off") as failed:
        drl_cli.train(["env=user_envs:Tiny-v0", "env.kwargs.fail=step", "worker.max_restarts=0", "mode=single", *tiny])
    assert failed.value.exit_code == failed.value.summary["exit_code"] == 4
    assert drl_cli.train(["env=Pendulum-v1", "dry_run=true"]) == {"exit_code": 0}


@pytest.mark.slow
def test_train_takes_words_one_string_a_dict_and_keys(monkeypatch):
    monkeypatch.setattr(
        "drl_cli.cli.from_python.train_composed", lambda plain, args, *_: {"exit_code": 0, "args": args, **plain}
    )
    words = [
        "env=CartPole-v1",
        "algo=dqn",
        "network.hidden=[8,8]",
        "stop.return=null",
        "notes=two words",
        "env.kwargs={}",
    ]
    nested = {
        **{"env": "CartPole-v1", "algo": "dqn", "network": {"hidden": [8, 8]}, "stop.return": None},
        **{"notes": "two words", "env.kwargs": {}},
    }
    first = drl_cli.train(words)
    assert (first["algo"]["name"], first["network"]["hidden"], first["notes"]) == ("dqn", [8, 8], "two words")
    string = "env=CartPole-v1 algo=dqn network.hidden=[8,8] stop.return=null 'notes=two words' env.kwargs={}"
    for summary in (
        drl_cli.train(string),
        drl_cli.train(nested),
        drl_cli.train(words[:2], **dict(list(nested.items())[2:])),
    ):
        assert summary == first
    assert drl_cli.train({"seed": 2}, seed=3, env="CartPole-v1")["seed"] == 3
    with pytest.raises(drl_cli.UsageError, match=r"lr: no such option at the top level\. Did you mean algo\.lr"):
        drl_cli.train(env="CartPole-v1", lr=1e-3)


@pytest.mark.slow
def test_each_evaluation_calls_the_users_function_and_its_errors_end_the_run(here, tiny):
    told = []
    drl_cli.train(
        env="Pendulum-v1", mode="single", **dict(word.split("=", 1) for word in tiny), on_evaluation=told.append
    )
    table = drl_cli.curves()
    assert [each["env_steps"] for each in told] == table["env_steps"]
    assert [each["mean"] for each in told] == pytest.approx(table["mean"])
    assert any(each["is_best"] for each in told)

    def refuse(values):
        raise LookupError(f"no place for {values['env_steps']}")

    with pytest.raises(drl_cli.RunFailed, match="on_evaluation raised LookupError: no place for ") as failed:
        drl_cli.train(["env=Pendulum-v1", "mode=single", *tiny], on_evaluation=refuse)
    assert failed.value.exit_code == 4


def test_curves_are_columns_of_equal_length(tmp_path):
    make_run(tmp_path, "one", [(100, 1.0, -5.0), (200, 2.0, 4.5)], seed=3)
    folder = make_run(tmp_path, "two", [(50, 1.0, 7.0)], algo__name="ppo")
    with (folder / "eval.csv").open("a") as file:
        file.write("60,1,")  # the process was killed in this line
    table = drl_cli.curves(["one", "two"], str(tmp_path))
    assert (table["run"], table["seed"][:2]) == (["one", "one", "two"], [3, 3])
    assert (table["env_steps"], table["mean"], table["algo"][2]) == ([100, 200, 50], [-5.0, 4.5, 7.0], "ppo")
    assert {len(column) for column in table.values()} == {3}
    assert drl_cli.curves("*/*/tw*", str(tmp_path))["mean"] == [7.0]
    with pytest.raises(drl_cli.UsageError, match="no run 'nine'"):
        drl_cli.curves("nine", str(tmp_path))
    make_run(tmp_path, "three", [])
    assert drl_cli.curves("three", str(tmp_path))["mean"] == []


def test_ctrl_c_is_a_keyboard_interrupt_also_after_the_run(here, tiny, monkeypatch):
    from drl_cli.runtime.orchestrator.orchestrator import Orchestrator

    run = Orchestrator.run

    def interrupted(self):
        signal.raise_signal(signal.SIGINT)
        run(self)

    monkeypatch.setattr(Orchestrator, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drl_cli.train(["env=Pendulum-v1", "mode=single", *tiny])
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_train_in_another_thread_is_refused():
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="main thread"):
        pool.submit(drl_cli.train, []).result()

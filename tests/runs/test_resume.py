"""`resume=` and `from_config=`: which run, which changes, what is said when it can't be."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
import yaml

from drl_cli.errors import CHECKPOINT, USAGE, UsageError
from drl_cli.replay.config import SAMPLERS
from drl_cli.runs.changes import COMMAND, FREE, IMPOSSIBLE, verdict
from drl_cli.runs.resume import claim_run, named_run
from drl_cli.runs.run import RUN_LOCK
from drl_cli.runtime.restore import clean_up, open_checkpoint
from drl_cli.settings.build import build
from drl_cli.settings.command_line import read_command
from drl_cli.settings.description import keys_of
from drl_cli.utils.locks import is_locked


@pytest.fixture
def run(small_run, tmp_path):
    """A copy of the small run that may be changed."""
    shutil.copytree(small_run.folder, tmp_path / "outputs/Pendulum-v1/sac-sync" / small_run.folder.name, symlinks=True)
    (folder,) = tmp_path.glob("outputs/*/*/*")
    return folder


def test_every_key_has_a_verdict_and_every_verdict_a_key(composed):
    config = build(composed())
    keys = keys_of(type(config.algo))
    for key in (*FREE, *IMPOSSIBLE, *COMMAND):
        assert key in keys, key
    assert verdict("total_env_steps") == verdict("stop.return") == verdict("mode") == "free"
    assert verdict("algo.lr") == verdict("replay.capacity") == verdict("orchestrator.sample_insert_ratio") == "careful"
    assert verdict("optimizer.weight_decay") == "careful"
    for key in ("env.kwargs.gravity", "network.hidden", "seed", "optimizer.name", "optimizer.kwargs.momentum"):
        assert verdict(key) == "impossible", key
    assert {verdict(f"replay.{name}") for name in ("seq_len", "sampler")} == {"impossible"}
    assert len(SAMPLERS) == 4


@pytest.mark.slow
def test_it_goes_on_in_the_same_folder(run, drl, tmp_path):
    before = (run / "eval.csv").read_text().splitlines()
    done = drl("train", "resume=latest", "total_env_steps=320", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "from step 160" in done.stdout
    assert list(tmp_path.glob("outputs/*/*/*")) == [run]
    after = (run / "eval.csv").read_text().splitlines()
    assert after[: len(before)] == before
    assert int(after[-1].split(",")[0]) >= 320
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "done"
    assert [again["changes"] for again in record["resumed"]] == [["total_env_steps=320 (was 160)"]]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["env_steps"] >= 320
    again = drl("train", "resume=latest", cwd=tmp_path)
    assert again.returncode == USAGE
    assert f"is done at {summary['env_steps']} env steps; total_env_steps={2 * summary['env_steps']}" in again.stderr


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["algo.lr=1e-4"], CHECKPOINT, "algo.lr=0.0001 (was "),
        (["algo.lr=1e-4"], CHECKPOINT, ": changes what is learned from here on; say confirm"),
        (["seed=4"], CHECKPOINT, "seed=4 (was 3): what was saved depends on it; from_config=RUN starts a new run"),
        (["network.hidden=[8]", "confirm=true"], CHECKPOINT, "network.hidden=[8]"),
        (["optimizer.name=sgd", "confirm=true"], CHECKPOINT, "optimizer.name=sgd (was adam): what was saved depends"),
        (["algo=dqn"], USAGE, "algo=dqn chooses another group of options"),
        (["algo.lrr=1"], USAGE, "Did you mean algo.lr?"),
        (["-m"], USAGE, "resume: no sweep 'latest'"),
        (["from_config=latest"], USAGE, "say one of them"),
    ],
)
def test_what_can_not_be_is_said(run, drl, tmp_path, args, code, text):
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = drl("train", "resume=latest", "total_env_steps=320", *args, cwd=tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"} == {
        path: content for path, content in files.items() if path.name != ".lock"
    }


@pytest.mark.slow
def test_a_careful_change_is_taken_when_confirmed(run, drl, tmp_path):
    done = drl("train", "resume=latest", "total_env_steps=320", "algo.lr=1e-4", "confirm=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["algo"]["lr"] == 1e-4
    assert (config["resume"], config["confirm"]) == (None, False)


@pytest.mark.slow
def test_it_goes_on_from_an_older_checkpoint_when_that_is_named(run, drl, tmp_path):
    older = min(path for path in run.glob("checkpoints/step_*") if (path / "state.orchestrator.json").exists())
    assert older.name != (run / "checkpoints" / "last").resolve().name
    done = drl("train", f"resume={older}", "total_env_steps=320", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"from step {int(older.name[5:])}" in done.stdout


def test_a_run_that_goes_on_from_an_older_checkpoint_has_that_as_its_last(run):
    older = min(path for path in run.glob("checkpoints/step_*") if (path / "state.orchestrator.json").exists())
    clean_up(run, open_checkpoint(older))
    assert (run / "checkpoints" / "last").resolve() == older.resolve()


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts_over(run, drl, tmp_path):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    (run / "summary.json").unlink()
    done = drl("train", "resume=latest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "from step 0" in done.stdout
    steps = [int(line.split(",")[0]) for line in (run / "eval.csv").read_text().splitlines()[1:]]
    assert steps == sorted(set(steps))


def test_a_damaged_checkpoint_is_refused_with_the_older_ones(run, drl, tmp_path):
    model = run / "checkpoints" / "last" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    done = drl("train", "resume=latest", "total_env_steps=320", cwd=tmp_path)
    assert done.returncode == CHECKPOINT
    assert "model.safetensors is missing or damaged" in done.stderr
    assert "to go on from an older one: resume=" in done.stderr


@pytest.mark.slow
def test_nothing_in_a_runs_files_is_executed(run, drl, tmp_path):
    witness = tmp_path / "executed"
    bomb = f"cos\nsystem\n(S'touch {witness}'\ntR.".encode()
    state = run / "checkpoints" / "last" / "state.trainer.safetensors"
    state.write_bytes(bomb)
    done = drl("train", "resume=latest", "total_env_steps=320", cwd=tmp_path)
    assert done.returncode == CHECKPOINT
    assert "state.trainer.safetensors is missing or damaged" in done.stderr
    for key in ("defaults: [{hydra/launcher: x}]", "hydra: {callbacks: {a: {_target_: os.system, command: exit}}}"):
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(f"{key}\n{text}")
        for command in ("resume", "from_config"):
            done = drl("train", f"{command}=latest", "total_env_steps=320", cwd=tmp_path)
            assert done.returncode == USAGE
            assert f"{key.split(':')[0]}: no such option" in done.stderr
        (run / "config.yaml").write_text(text)
    assert not witness.exists()


@pytest.mark.slow
def test_from_config_starts_a_new_run_with_the_old_ones_config(run, drl, tmp_path):
    done = drl("train", "from_config=latest", "seed=9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (new,) = set(tmp_path.glob("outputs/*/*/*")) - {run}
    old_config, new_config = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (run, new))
    assert new_config == old_config | {"seed": 9}


def test_one_process_at_a_time(run):
    with claim_run(run), pytest.raises(UsageError, match="is being trained right now"), claim_run(run):
        pass
    with claim_run(run):
        assert is_locked(run / RUN_LOCK)
    assert not is_locked(run / RUN_LOCK)


def test_the_manage_process_of_a_killed_run_is_waited_for(run, tmp_path):
    code = """if True:
        import pathlib, sys
        from drl_cli.runtime.roles.manage import MANAGE_LOCK
        from drl_cli.utils.locks import lock
        held = lock(pathlib.Path(sys.argv[1]) / MANAGE_LOCK, shared=True)
        print("held", flush=True)
        sys.stdin.readline()
    """
    args = [sys.executable, "-c", code, str(run)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as manage:
        assert manage.stdout.readline() == "held\n"
        end = threading.Timer(0.3, manage.kill)
        end.start()
        with claim_run(run):
            assert manage.wait(10) == -9


def test_a_run_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no run '2026'"):
        named_run(read_command(["resume=2026"]))
    assert named_run(read_command(["resume=null"])) is None


@pytest.mark.slow
def test_threads_that_were_chosen_stay(drl, tiny, tmp_path):
    args = ("mode=single", "worker.envs=16", "network.hidden=[1024,1024]", "trainer.batch_size=128")
    few = ("orchestrator.sample_insert_ratio=0.05", "total_env_steps=160")
    done = drl("train", "env=Pendulum-v1", *tiny, *args, *few, "trainer.threads=auto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/*/*/*")
    chosen = min(2, len(os.sched_getaffinity(0)))
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["threads"] == chosen
    done = drl("train", "resume=latest", "total_env_steps=192", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["threads"] == chosen
    (again,) = json.loads((folder / "run.json").read_text())["resumed"]
    assert again["changes"] == ["total_env_steps=192 (was 160)"]

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import fields, replace

import pytest
import yaml

from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.envs.make import read_spec
from drl_cli.errors import CHECKPOINT, USAGE, UsageError
from drl_cli.optim.schedules import RunClock
from drl_cli.preflight import device
from drl_cli.runs.changes import COMMAND, FREE, IMPOSSIBLE, verdict
from drl_cli.runs.resume import claim_run, named_run, resume, with_config_of
from drl_cli.runs.run import RUN_LOCK
from drl_cli.runtime.restore import clean_up, open_checkpoint
from drl_cli.settings import fill
from drl_cli.settings.build import build
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.description import keys_of
from drl_cli.utils import gpu
from drl_cli.utils.files import is_locked


@pytest.fixture
def train(drl_here):
    """Run drl-train in this process, and check its exit code; return its output."""

    def train_it(*args, code=0):
        done = drl_here("train", *args)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    return train_it


def older_checkpoint(copied):
    return min(path for path in copied.glob("checkpoints/step_*") if (path / "state.orchestrator.json").exists())


def eval_steps(copied):
    return [int(line.split(",")[0]) for line in (copied / "eval.csv").read_text().splitlines()[1:]]


def test_every_key_has_a_verdict_and_every_listed_key_exists(composed):
    keys = {*keys_of(type(build(composed()).algo))}
    keys |= {f"algo.{field.name}" for name in algorithms() for field in fields(load_algorithm(name).Config)}
    for key in (*FREE, *IMPOSSIBLE, *COMMAND):
        assert key in keys, key
    for expected, names in {
        "free": ("total_env_steps", "stop.return", "mode"),
        "careful": ("algo.lr", "replay.capacity", "orchestrator.sample_insert_ratio", "optimizer.weight_decay"),
        "impossible": ("env.kwargs.gravity", "network.hidden", "seed", "optimizer.name", "optimizer.kwargs.momentum"),
    }.items():
        assert {verdict(name) for name in names} == {expected}
    assert {verdict(f"replay.{name}") for name in ("seq_len", "sampler")} == {"impossible"}


def test_latest_passes_over_a_newer_run_without_a_checkpoint(copied, drl_here):
    newer = copied.with_name("20990101-000000-000000-s8")
    shutil.copytree(copied, newer, ignore=shutil.ignore_patterns("checkpoints"))
    done = drl_here("train", "resume=latest", "total_env_steps=200")
    assert (done.returncode, "from step 160" in done.stdout) == (0, True)
    assert done.stderr.count("newer runs without a checkpoint: 20990101-000000-000000-s8 (done)") == 1


def test_a_run_of_an_older_version_goes_on(copied, drl_here):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    del config["algo"]["preset"], config["sweep"]["max_jobs"], config["explain"]
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    done = drl_here("train", "resume=latest", "total_env_steps=200")
    assert (done.returncode, done.stderr, "from step 160" in done.stdout) == (0, "", True)


def test_a_run_is_resumed_in_its_folder(copied, train, tmp_path):
    before = (copied / "eval.csv").read_text().splitlines()
    assert "from step 160" in train("resume=latest", "total_env_steps=320", "algo.lr=1e-4", "confirm=true")
    assert list(tmp_path.glob("outputs/*/*/*")) == [copied]
    assert (copied / "eval.csv").read_text().splitlines()[: len(before)] == before
    assert eval_steps(copied)[-1] > 160
    config = yaml.safe_load((copied / "config.yaml").read_text())
    assert (config["algo"]["lr"], config["resume"], config["confirm"]) == (1e-4, None, False)
    record = json.loads((copied / "run.json").read_text())
    assert record["status"] == "done"
    (resumed,) = record["resumed"]
    assert "total_env_steps=320 (was 160)" in resumed["changes"]
    steps = json.loads((copied / "summary.json").read_text())["env_steps"]
    assert steps >= 320
    error = train("resume=latest", code=USAGE)
    assert f"is done at {steps} env steps; total_env_steps={2 * steps}" in error


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["algo.lr=1e-4"], CHECKPOINT, "algo.lr=0.0001 (was "),
        (["algo.lr=1e-4"], CHECKPOINT, ": changes what is learned from here on; say confirm"),
        (["seed=4"], CHECKPOINT, "seed=4 (was 3): what was saved depends on it; from_config=RUN starts a new run"),
        (["network.hidden=[8]", "confirm=true"], CHECKPOINT, "network.hidden=[8] (was [16,16])"),
        (["optimizer.name=sgd", "confirm=true"], CHECKPOINT, "optimizer.name=sgd (was adam): what was saved depends"),
        (
            ["algo.initial_alpha=0.5", "confirm=true"],
            CHECKPOINT,
            "algo.initial_alpha=0.5 (was 1): what was saved depends",
        ),
        (["replay.her_k=8", "confirm=true"], USAGE, "replay.her_k=8 has no effect: only hindsight replay"),
        (["-m"], USAGE, "resume: no sweep 'latest'"),
    ],
)
def test_an_impossible_resume_changes_no_file(copied, train, args, code, text):
    def files():
        return {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != ".lock"}

    before = files()
    assert text in train("resume=latest", "total_env_steps=320", *args, code=code)
    assert files() == before


def test_a_resumed_run_can_not_end_before_its_checkpoint(copied, train):
    (copied / "summary.json").unlink()  # as after a kill
    error = train("resume=latest", "total_env_steps=40", code=USAGE)
    assert "already has 160 env steps, more than total_env_steps=40; say for example total_env_steps=320" in error


def test_a_run_is_resumed_from_an_older_checkpoint(copied, train):
    older = older_checkpoint(copied)
    assert older.name != (copied / "checkpoints" / "last").resolve().name
    assert f"from step {int(older.name[5:])}" in train(f"resume={older}", "total_env_steps=200")


def test_the_resumed_checkpoint_becomes_the_last(copied):
    older = older_checkpoint(copied)
    clean_up(copied, open_checkpoint(older), RunClock())
    assert (copied / "checkpoints" / "last").resolve() == older.resolve()


def test_evaluations_of_later_versions_than_the_checkpoints_are_removed(copied):
    """In mode=async, the version after the checkpoint's may be of the same step as the checkpoint."""
    checkpoint = open_checkpoint(older_checkpoint(copied))
    steps, header = checkpoint.env_steps, (copied / "eval.csv").read_text().splitlines()[0]
    rest = "," * header.count(",")
    (copied / "eval.csv").write_text("\n".join([header, f"{steps - 9}{rest}", f"{steps}{rest}", ""]))
    clean_up(
        copied, replace(checkpoint, params_header=replace(checkpoint.params_header, env_steps=steps - 9)), RunClock()
    )
    assert eval_steps(copied) == [steps - 9]


def test_a_resumed_run_takes_another_name_without_confirm(copied, train):
    out = train("resume=latest", "total_env_steps=200", "name=other", "tags=[b]", "notes=null")
    assert "name: other   tags: [b]\n" in out
    record = json.loads((copied / "run.json").read_text())
    assert [record[key] for key in ("name", "tags", "notes")] == ["other", ["b"], None]


def test_a_run_without_a_checkpoint_starts_over(copied, train):
    shutil.rmtree(copied / "checkpoints")
    (copied / "checkpoints").mkdir()
    (copied / "summary.json").unlink()
    assert "from step 0" in train("resume=latest")
    assert eval_steps(copied) == sorted(set(eval_steps(copied)))


def test_a_damaged_checkpoint_is_refused_with_an_older_one(copied, train):
    model = copied / "checkpoints" / "last" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    error = train("resume=latest", "total_env_steps=320", code=CHECKPOINT)
    assert "model.safetensors is missing or damaged" in error
    assert "to go on from an older one: resume=" in error


def test_nothing_in_a_runs_files_is_executed(copied, train, tmp_path):
    witness = tmp_path / "executed"
    bomb = f"cos\nsystem\n(S'touch {witness}'\ntR.".encode()
    (copied / "checkpoints" / "last" / "state.trainer.safetensors").write_bytes(bomb)
    error = train("resume=latest", "total_env_steps=320", code=CHECKPOINT)
    assert "state.trainer.safetensors is missing or damaged" in error
    text = (copied / "config.yaml").read_text()
    for line in ("defaults: [{hydra/launcher: x}]", "hydra: {callbacks: {a: {_target_: os.system, command: exit}}}"):
        (copied / "config.yaml").write_text(f"{line}\n{text}")
        for command in ("resume", "from_config"):
            error = train(f"{command}=latest", "total_env_steps=320", code=USAGE)
            assert f"{line.split(':')[0]}: no such option" in error
    assert not witness.exists()


def test_from_config_starts_a_new_run_with_the_config_of_the_old(copied, train, tmp_path):
    train("from_config=latest", "seed=9", "name=second")
    (new,) = set(tmp_path.glob("outputs/*/*/*")) - {copied}
    old_config, new_config = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (copied, new))
    assert new_config == old_config | {"seed": 9, "name": "second"}


def test_one_process_at_a_time(copied):
    with claim_run(copied):
        assert is_locked(copied / RUN_LOCK)
        with pytest.raises(UsageError, match="is being trained right now"), claim_run(copied):
            pass
    assert not is_locked(copied / RUN_LOCK)


def test_the_end_of_a_killed_runs_manage_process_is_awaited(copied):
    code = """if True:
        import pathlib, sys
        from drl_cli.runtime.roles.manage import MANAGE_LOCK
        from drl_cli.utils.files import lock
        held = lock(pathlib.Path(sys.argv[1]) / MANAGE_LOCK, shared=True)
        print("held", flush=True)
        sys.stdin.readline()
    """
    args = [sys.executable, "-c", code, str(copied)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as manage:
        assert manage.stdout.readline() == "held\n"
        end = threading.Timer(0.3, manage.kill)
        end.start()
        with claim_run(copied):
            assert manage.wait(10) == -9


def test_resume_null_names_no_run():
    assert named_run(read_command(["resume=null"])) is None


def test_the_device_is_chosen_once(train_here, monkeypatch):
    """A resumed run keeps its device, on whatever machine, because GPUs draw other random numbers."""
    _, folder = train_here("env=Pendulum-v1", "mode=single")
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    monkeypatch.setattr(gpu, "gpus", lambda: pytest.fail("asked"))
    monkeypatch.setattr(device, "WIDE", 1)  # so that a new run takes the GPU
    command = with_config_of(folder, read_command([f"resume={folder}", "total_env_steps=192"]))
    resumed = resume(compose(command.overrides, command.config_file), [])
    assert device.with_device(resumed.config, read_spec(resumed.config.env)) == (resumed.config, [])
    assert [change.text for change in resumed.changes] == ["total_env_steps=192 (was 160)"]


def test_the_number_of_threads_is_chosen_once(train_here, monkeypatch):
    """A resumed run keeps the number, on whatever machine, because sums in float32 depend on it."""
    monkeypatch.setattr(fill, "THREAD_PRODUCT", 1)
    monkeypatch.setattr(fill, "num_cores", lambda: 2)
    _, folder = train_here("env=Pendulum-v1", "mode=single", "trainer.threads=auto")
    monkeypatch.setattr(fill, "num_cores", lambda: 1)
    command = with_config_of(folder, read_command([f"resume={folder}", "total_env_steps=192"]))
    resumed = resume(compose(command.overrides, command.config_file), [])
    assert fill.fill(resumed.config).trainer.threads == 2
    assert [change.text for change in resumed.changes] == ["total_env_steps=192 (was 160)"]

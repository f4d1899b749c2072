import json
import os
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
from drl_cli.run_folder import RUN_LOCK, checkpoint
from drl_cli.run_folder.checkpoint import open_checkpoint, read_manifest
from drl_cli.run_folder.resume import COMMAND, FREE, IMPOSSIBLE, claim_run, resume, verdict
from drl_cli.run_folder.truncation import cut_back
from drl_cli.runs.named import with_config_of_run
from drl_cli.settings import fill
from drl_cli.settings.build import build, keys_of
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose
from drl_cli.utils import gpu
from drl_cli.utils.files import is_locked
from drl_cli.utils.run_clock import RunClock


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
    before = files(copied)
    assert text in train("resume=latest", "total_env_steps=320", *args, code=code)
    assert files(copied) == before


def test_a_resumed_run_can_not_end_before_its_checkpoint(copied, train):
    (copied / "summary.json").unlink()  # as after a kill
    error = train("resume=latest", "total_env_steps=40", code=USAGE)
    assert "already has 160 env steps, more than total_env_steps=40; say for example total_env_steps=320" in error


def test_a_run_is_resumed_from_an_older_checkpoint(copied, train):
    older = older_checkpoint(copied)
    assert older.name != (copied / "checkpoints" / "last").resolve().name
    assert f"from step {int(older.name[5:])}" in train(f"resume={older}", "total_env_steps=200")


def test_evaluations_of_later_versions_than_the_checkpoints_are_removed(copied):
    """In mode=async, the version after the checkpoint's may be of the same step as the checkpoint."""
    checkpoint = open_checkpoint(older_checkpoint(copied))
    steps, header = checkpoint.env_steps, (copied / "eval.csv").read_text().splitlines()[0]
    rest = "," * header.count(",")
    (copied / "eval.csv").write_text("\n".join([header, f"{steps - 9}{rest}", f"{steps}{rest}", ""]))
    cut_back(
        copied, replace(checkpoint, params_header=replace(checkpoint.params_header, env_steps=steps - 9)), RunClock()
    )
    assert eval_steps(copied) == [steps - 9]


def second_newest(copied):
    return sorted(copied.glob("checkpoints/step_*[0-9]"))[-2]


def files(folder):
    """Return the content of all files, except of locks."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def damage(checkpoint, name):
    """Cut a file of a checkpoint. The file may be shared with other checkpoints by a hard link, and they stay whole."""
    content = (checkpoint / name).read_bytes()
    (checkpoint / name).unlink()
    (checkpoint / name).write_bytes(content[:-1])


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(copied, train):
    shutil.rmtree(copied / "checkpoints")
    (copied / "checkpoints").mkdir()
    (copied / "checkpoints" / ".step_000000000.17").mkdir()
    for name in ("summary.json", "metrics.jsonl"):
        (copied / name).unlink()
    (copied / "eval.csv").write_text((copied / "eval.csv").read_text().splitlines()[0] + "\n")
    assert "from step 0" in train("resume=latest")
    assert eval_steps(copied) == sorted(set(eval_steps(copied)))


def no_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def only_the_best(run):
    for path in (run / "checkpoints").glob("step_*"):
        if not path.name.endswith("-best"):
            shutil.rmtree(path)


def all_damaged(run):
    for path in (run / "checkpoints").glob("step_*"):
        damage(path, "model.safetensors")


@pytest.mark.parametrize("lose", [no_checkpoints, only_the_best, all_damaged])
def test_a_run_without_a_complete_checkpoint_is_refused_and_not_changed(copied, train, lose):
    lose(copied)
    before = files(copied)
    error = train("resume=latest", "total_env_steps=320", code=CHECKPOINT)
    assert "no checkpoint is complete, and starting again would replace what the run has recorded" in error
    assert files(copied) == before


def without_links(run):
    for name in ("last", "best"):
        (run / "checkpoints" / name).unlink()


def with_folders(run):
    for name in ("last", "best"):
        target = (run / "checkpoints" / name).resolve()
        (run / "checkpoints" / name).unlink()
        shutil.copytree(target, run / "checkpoints" / name)


def with_texts(run):
    for name in ("last", "best"):
        target = os.readlink(run / "checkpoints" / name)
        (run / "checkpoints" / name).unlink()
        (run / "checkpoints" / name).write_text(target)


def dangling(run):
    for name in ("last", "best"):
        checkpoint.point(run / "checkpoints", name, run / "checkpoints" / "step_000000999")


@pytest.mark.parametrize("change", [without_links, with_folders, with_texts, dangling])
def test_a_copy_without_links_resumes_from_its_newest_checkpoint_and_keeps_its_best_model(copied, drl_here, change):
    before, best = eval_steps(copied), (copied / "checkpoints" / "best" / "model.safetensors").read_bytes()
    record = (copied / "eval.csv").read_text().splitlines()
    (copied / "summary.json").unlink()
    change(copied)
    assert drl_here("eval", "run=latest", "episodes=1", "checkpoint=best").returncode == 0
    done = drl_here("train", "resume=latest", "total_env_steps=192", "manage.eval_period=1000", "stop.wall_s=0.001")
    assert (done.returncode, "from step 160" in done.stdout) == (0, True), done.stderr
    assert "last is not a link to a checkpoint; going on from step_000000160" in done.stderr
    assert eval_steps(copied)[: len(before)] == before
    assert (copied / "eval.csv").read_text().splitlines()[: len(record)] == record
    assert best in [path.read_bytes() for path in copied.glob("checkpoints/*/model.safetensors")]
    assert read_manifest(copied / "checkpoints" / "best")["mean"] >= max(
        float(line.split(",")[4]) for line in record[1:]
    )
    assert (copied / "checkpoints" / "last").is_symlink()


def test_a_damaged_checkpoint_gives_way_to_the_next_older_one_and_both_are_named(copied, drl_here):
    damage(copied / "checkpoints" / "last", "model.safetensors")
    older = second_newest(copied)
    done = drl_here("train", "resume=latest", "total_env_steps=200")
    assert (done.returncode, f"from step {int(older.name[5:])}" in done.stdout) == (0, True)
    assert "step_000000160/model.safetensors is missing or damaged" in done.stderr
    assert f"; going on from {older.name}\n" in done.stderr
    assert not (copied / "checkpoints" / "step_000000160").exists()  # a new checkpoint has replaced it


def test_a_damaged_checkpoint_that_was_named_is_refused_with_another_one(copied, train):
    damage(copied / "checkpoints" / "last", "state.trainer.safetensors")
    before = files(copied)
    error = train(f"resume={copied}/checkpoints/last", "total_env_steps=320", code=CHECKPOINT)
    assert "state.trainer.safetensors is missing or damaged; to go on from another one: resume=" in error
    assert error.rstrip().endswith(second_newest(copied).name)
    assert files(copied) == before


def test_a_damaged_replay_is_refused_with_both_ways_to_go_on(copied, drl_here, train):
    piece = max(path.name for path in (copied / "checkpoints" / "last").glob("state.replay-0.*.safetensors"))
    damage(copied / "checkpoints" / "last", piece)
    before, older = files(copied), second_newest(copied).name
    error = train("resume=latest", "total_env_steps=200", code=CHECKPOINT)
    assert f"step_000000160/{piece} is missing or damaged; to go on without its replay" in error
    assert "checkpoint.replay=off" in error
    assert f"to go on from the older {older}: resume=" in error
    assert files(copied) == before
    done = drl_here("train", "resume=latest", "total_env_steps=200", "checkpoint.replay=off")
    assert (done.returncode, "from step 160" in done.stdout) == (0, True), done.stderr
    assert f"{piece} is missing or damaged, and the replay is filled again" in done.stderr
    assert "step_000000160 holds no replay: it is refilled before the next update" in done.stderr


def test_damaged_lines_are_skipped_and_named(copied, drl_here):
    rows, steps = (copied / "eval.csv").read_bytes(), eval_steps(copied)
    for name in ("metrics.jsonl", "eval.csv"):
        content = (copied / name).read_bytes()
        middle = content.index(b"\n") + 1
        (copied / name).write_bytes(content[:middle] + b"\xff\x00{,\r\n" + content[middle:] + b'{"env_steps": 1')
    with (copied / "eval.csv").open("ab") as file:
        file.write(b"160,3\n")
    assert drl_here("list", "runs").returncode == drl_here("compare", f"runs=[{copied}]").returncode == 0
    done = drl_here("train", "resume=latest", "total_env_steps=200")
    assert done.returncode == 0, done.stderr
    assert "warning: metrics.jsonl: 2 damaged records skipped\n" in done.stderr
    assert "warning: eval.csv: 2 damaged records skipped\n" in done.stderr
    assert (copied / "eval.csv").read_bytes().startswith(rows)
    assert eval_steps(copied)[: len(steps)] == steps


def test_nothing_in_a_runs_files_is_executed(copied, train, tmp_path):
    witness = tmp_path / "executed"
    bomb = f"cos\nsystem\n(S'touch {witness}'\ntR.".encode()
    (copied / "checkpoints" / "last" / "state.trainer.safetensors").write_bytes(bomb)
    error = train(f"resume={copied}/checkpoints/last", "total_env_steps=320", code=CHECKPOINT)
    assert "state.trainer.safetensors is missing or damaged" in error
    text = (copied / "config.yaml").read_text()
    for line in ("defaults: [{hydra/launcher: x}]", "hydra: {callbacks: {a: {_target_: os.system, command: exit}}}"):
        (copied / "config.yaml").write_text(f"{line}\n{text}")
        for command in ("resume", "from_config"):
            error = train(f"{command}=latest", "total_env_steps=320", code=CHECKPOINT)
            assert f"{line.split(':')[0]}: a run's config has values only" in error
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


@pytest.mark.slow
def test_the_end_of_a_killed_runs_manage_process_is_awaited(copied):
    code = """if True:
        import pathlib, sys
        from drl_cli.run_folder import MANAGE_LOCK
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


def test_the_device_is_chosen_once(train_here, monkeypatch):
    """A resumed run keeps its device, on whatever machine, because GPUs draw other random numbers."""
    _, folder = train_here("env=Pendulum-v1", "mode=single")
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    monkeypatch.setattr(gpu, "gpus", lambda: pytest.fail("asked"))
    monkeypatch.setattr(fill, "WIDE", 1)  # so that a new run takes the GPU
    command = with_config_of_run(read_command([f"resume={folder}", "total_env_steps=192"]))
    resumed = resume(compose(command.overrides, command.config_file), [])
    assert fill.with_device(resumed.config, read_spec(resumed.config.env)) == (resumed.config, [])
    assert [change.text for change in resumed.changes] == ["total_env_steps=192 (was 160)"]


@pytest.mark.slow
def test_the_number_of_threads_is_chosen_once(train_here, monkeypatch):
    """A resumed run keeps the number, on whatever machine, because sums in float32 depend on it."""
    monkeypatch.setattr(fill, "THREAD_PRODUCT", 1)
    monkeypatch.setattr(fill, "num_cores", lambda: 2)
    _, folder = train_here("env=Pendulum-v1", "mode=single", "trainer.threads=auto")
    monkeypatch.setattr(fill, "num_cores", lambda: 1)
    command = with_config_of_run(read_command([f"resume={folder}", "total_env_steps=192"]))
    resumed = resume(compose(command.overrides, command.config_file), [])
    assert fill.fill(resumed.config).trainer.threads == 2
    assert [change.text for change in resumed.changes] == ["total_env_steps=192 (was 160)"]

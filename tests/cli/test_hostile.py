"""Commands on folders of somebody else: nothing in them is executed, and nothing outside of them is written."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box

from drl_cli.envs.trees import space_to_json

COMMANDS = {
    "eval": ("eval", "run={}", "episodes=1"),
    "play": ("play", "run={}"),
    "export": ("export", "run={}", "episodes=1"),
    "record": ("record", "run={}", "episodes=1"),
    "resume": ("train", "resume={}", "total_env_steps=320", "dry_run=true"),
    "from_config": ("train", "from_config={}", "dry_run=true"),
    "sweep": ("train", "-m", "from_config={}", "seed=0,1", "dry_run=true"),
    "main config": ("train", "--config-path", "{}", "--config-name", "config", "dry_run=true"),
    "bench": ("bench", "from_config={}"),
}
HOSTILE = {
    "os": {"env.id": "os:system", "env.kwargs": {"command": "touch {mark}"}},
    "module": {"env.id": "evil_mod:Env"},
    "function of a library": {"env.id": "gymnasium.utils.save_video:save_video"},
    "wrapper": {"env.wrappers": ["evil_mod:Wrapper"]},
    "algorithm": {"algo.name": "evil_mod"},
    "more": {"network.torso": "evil_mod:Net", "logger.recorders": ["evil_mod:Recorder"]},
    "cluster": {"ray.address": "192.0.2.1:6379"},
    "interpolation": {"notes": "${oc.env:HOME}"},
    "hydra": {"hydra": {"job": {"env_set": {"EVIL_SET": "1"}}, "searchpath": ["file://{folder}"]}},
    "game": {"env.id": "MinAtar/Breakout-v1", "env.kwargs": {"game": "../../../../{folder}/evil_mod"}},
}


def change(folder, values, mark=""):
    """Set keys in the config of a run."""
    node = yaml.safe_load((folder / "config.yaml").read_text())
    text = json.dumps(values).replace("{mark}", mark).replace("{folder}", str(folder))
    for key, value in json.loads(text).items():
        *groups, name = key.split(".")
        inner = node
        for group in groups:
            inner = inner[group]
        inner[name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(node, sort_keys=False))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_config_names(copied, tmp_path, drl_here, command):
    """The module lies beside the config and in the current folder."""
    mark, plain = tmp_path / "executed", (copied / "config.yaml").read_text()
    for folder in (tmp_path, copied):
        (folder / "evil_mod.py").write_text(f"open({str(mark)!r}, 'w')\n")
    name, *words = COMMANDS[command]
    for case, values in HOSTILE.items():
        if (case, command) == ("game", "main config"):
            continue
        (copied / "config.yaml").write_text(plain)
        change(copied, values, str(mark))
        done = drl_here(name, *(word.format(copied) for word in words))
        assert done.returncode in (2, 3, 4, 8), (case, done)
        assert done.stderr.startswith("error: "), (case, done)
        assert not mark.exists(), case
        assert "EVIL_SET" not in os.environ


def test_load_weights_imports_no_algorithm_of_the_run(copied, tmp_path, drl_here, tiny):
    (tmp_path / "evil_mod.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    change(copied, {"algo.name": "evil_mod"})
    done = drl_here("train", f"load_weights={copied}", "env=Pendulum-v1", "dry_run=true", *tiny)
    assert (done.returncode, "is of algo=evil_mod" in done.stderr) == (8, True)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("command", ["eval", "play", "export", "record", "resume"])
@pytest.mark.parametrize("link", [".lock", "train.log", "videos", "checkpoints/best", "workers/manage.log"])
def test_no_command_writes_through_a_link(copied, tmp_path, drl_here, command, link):
    victim, path = tmp_path / "victim", copied / link
    if path.is_dir() or link == "videos":
        victim.mkdir()
        (victim / "keep").write_text("precious")
    else:
        victim.write_text("precious")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    name, *words = COMMANDS[command]
    done = drl_here(name, *(word.format(copied) for word in words))
    assert done.returncode in (2, 8)
    assert "leads out of" in done.stderr
    kept = victim / "keep" if victim.is_dir() else victim
    assert kept.read_text() == "precious"
    assert not victim.is_dir() or len([*victim.iterdir()]) == 1


@pytest.mark.timeout(120)
def test_no_command_waits_for_a_pipe(copied, drl_here):
    for name in (".lock", "metrics.jsonl", "eval.csv", "status.json", "summary.json"):
        (copied / name).unlink(missing_ok=True)
        os.mkfifo(copied / name)
    for name, *words in (*COMMANDS.values(), ("list", "runs"), ("compare", "runs=[{}]")):
        done = drl_here(name, *(word.format(copied) for word in words))
        assert done.returncode in (0, 2, 8), (name, done)


@pytest.mark.slow
def test_a_name_with_escapes_is_shown_escaped(copied, drl_here):
    evil = "\x1b[31mred[bold]\x1b]0;title\x07"
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(record | {"name": evil, "tags": [evil]}))
    (copied / "status.json").write_text(json.dumps({"title": evil, "state": "done"}))
    change(copied, {"name": evil, "tags": [evil]})
    folder = copied.with_name("x\x1b[2J")
    shutil.copytree(copied, folder, symlinks=True)
    seen = ""
    for words in (
        ("list", "runs"),
        ("compare", f"runs=[{copied.parent}/*]"),
        ("watch", f"run={copied}"),
        ("watch", f"run={folder}"),
        ("eval", f"run={folder}", "episodes=1"),
        ("eval", "run=nothing"),
        ("train", f"resume={folder}", "total_env_steps=320", "dry_run=true", "algo.lr=3"),
    ):
        done = drl_here(*words)
        seen += done.stdout + done.stderr
    assert "\x1b" not in seen
    assert "\x07" not in seen
    assert r"\x1b[31mred[bold]" in seen
    assert r"x\x1b[2J" in seen


@pytest.mark.parametrize(("env", "says"), [("os:system", "a module of Python"), ("evil_mod:E", "trust=true")])
def test_the_environment_that_a_dataset_names_is_not_imported(tmp_path, monkeypatch, drl_here, env, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_mod.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    save_dataset(tmp_path / "data.npz", env)
    done = drl_here("train", "mode=offline", "data=data.npz", "algo=bc", "dry_run=true")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "executed").exists()
    done = drl_here("list", "data", "data.npz")
    assert done.returncode == 0
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_a_dataset_with_an_impossible_name_has_no_environment(tmp_path, monkeypatch, drl_here):
    monkeypatch.chdir(tmp_path)
    save_dataset(tmp_path / "data.npz", "${oc.env:HOME},Pendulum-v1\x1b[2J")
    done = drl_here("train", "mode=offline", "data=data.npz", "algo=bc", "trainer.batch_size=8", "dry_run=true")
    assert (done.returncode, "\x1b" in done.stdout + done.stderr) == (0, False)


def save_dataset(path, env, steps=40):
    spaces = {"observation_space": Box(-8, 8, (3,)), "action_space": Box(-2, 2, (1,))}
    metadata = {name: space_to_json(space) for name, space in spaces.items()}
    metadata |= {"env": env, "has_mask": False, "drl_cli": {}, "reference": None}
    np.savez(
        path,
        observations=np.zeros((steps, 3), np.float32),
        actions=np.zeros((steps, 1), np.float32),
        rewards=np.zeros(steps, np.float32),
        terminations=np.zeros(steps, bool),
        truncations=np.arange(steps) % 20 == 19,
        metadata=np.array(json.dumps(metadata)),
    )


@pytest.mark.slow
def test_a_run_made_here_goes_on_from_another_folder(tmp_path, drl, drl_here, user_folder, tiny, monkeypatch):
    """The user typed the module once; later commands find it where it was, and a copy asks."""
    done = drl("train", "env=user_envs:Tiny-v0", *tiny, cwd=user_folder)
    assert done.returncode == 0, done.stderr
    (run,) = user_folder.glob("outputs/user_envs_Tiny-v0/*/*")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user_envs.py").write_text("raise SystemError('the wrong one')\n")
    assert drl_here("eval", f"run={run}", "episodes=1").returncode == 0
    assert drl_here("train", f"resume={run}", "total_env_steps=320", "dry_run=true").returncode == 0
    shutil.copytree(run, tmp_path / "copy", symlinks=True)
    (tmp_path / "user_envs.py").unlink()
    done = drl_here("eval", "run=copy", "episodes=1")
    assert (done.returncode, "say trust=true" in done.stderr) == (2, True)
    assert drl_here("eval", "run=copy", "episodes=1", "trust=true").returncode == 0
    assert drl_here("eval", "run=copy", "episodes=1").returncode == 0
    shutil.rmtree(user_folder / "outputs")


def shadow(folder):
    for name in ("gymnasium", "torch", "numpy", "yaml", "json", "hydra", "ray", "rich", "psutil", "drl_cli", "triton"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'executed')!r}, 'a').write({name!r})\n")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "words"), [("list", ["envs"]), ("eval", ["run={}", "episodes=1"])])
def test_no_library_comes_from_the_current_folder(tmp_path, small_run, command, words):
    """The command starts as the script that pip installs starts it."""
    shadow(tmp_path)
    script = f"import sys; from drl_cli.cli.{command} import main; sys.argv[1:] = {words!r}; main()"
    script = script.replace("{}", str(small_run.folder))
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_no_process_of_a_run_takes_a_library_from_the_current_folder(tmp_path, user_folder, tiny):
    """The user's module is in this folder, and the workers are processes of Ray."""
    shadow(tmp_path)
    shutil.copy(user_folder / "user_envs.py", tmp_path)
    words = ["env=user_envs:Tiny-v0", "mode=async", *(word for word in tiny if word != "debug.in_process=true")]
    script = f"import sys; from drl_cli.cli.train import main; sys.argv[1:] = {words!r}; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()

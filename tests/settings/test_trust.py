"""What the files of a run, a sweep or a dataset may import: only what the user agreed to."""

import json
import os
import shutil

import pytest
import yaml

from drl_cli.errors import UsageError
from drl_cli.settings import trust
from drl_cli.settings.command_line import read_command
from drl_cli.settings.trust import asks, consent, read_run, remember, typed_asks
from drl_cli.utils import outside

FOREIGN = {
    "env.id": "evil:E",
    "env.wrappers": ["gymnasium.wrappers:FlattenObservation", "evil:W"],
    "algo.name": "evil",
    "network.torso": "evil:T",
    "optimizer.name": "evil:O",
    "reward.name": "evil:R",
    "replay.sampler": "evil:S",
    "manage.evaluator": "evil:V",
    "logger.recorders": ["evil:L"],
    "ray.address": "10.0.0.1:6379",
    "logger.mlflow": "http://10.0.0.1",
}


def node(**values):
    found = {}
    for key, value in values.items():
        group, _, name = key.replace("__", ".").partition(".")
        found.setdefault(group, {})[name] = value
    return found


def of(key, value):
    return node(**{key.replace(".", "__"): value})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's folder, in an empty memory of consents and an empty list of folders."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(trust, "_here", {})
    monkeypatch.setattr(outside, "folders", [])
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    return folder / "config.yaml"


@pytest.mark.parametrize("key", FOREIGN)
def test_each_key_that_names_a_module_or_a_server_asks(key, run):
    content = of(key, FOREIGN[key])
    with pytest.raises(UsageError, match=rf"names {key}=.*trust=true") as caught:
        consent(run, content)
    assert caught.value.exit_code == 2
    assert len(caught.value.problems) == 1
    consent(run, content, trust=True)
    consent(run, content)


def test_arguments_of_a_known_wrapper_ask_and_other_arguments_ask_again(run):
    """RecordVideo writes into any folder that a config names."""
    wrapper = {"_name_": "gymnasium.wrappers:RecordVideo", "video_folder": "there"}
    with pytest.raises(UsageError, match=r"names env\.wrappers=gymnasium\.wrappers:RecordVideo;.*trust=true"):
        consent(run, of("env.wrappers", [wrapper]))
    remember(run, of("env.wrappers", [wrapper]))
    consent(run, of("env.wrappers", [wrapper]))
    with pytest.raises(UsageError, match="which has changed since you agreed"):
        consent(run, of("env.wrappers", [wrapper | {"video_folder": "elsewhere"}]))


def test_what_drl_cli_ships_does_not_ask():
    content = node(
        env__id="gymnasium.envs.classic_control:PendulumEnv",
        env__wrappers=["drl_cli.envs.wrap:ActionRepeat"],
        algo__name="sac",
        network__torso="mlp",
        optimizer__name="adam",
        reward__name="none",
        replay__sampler="uniform",
        manage__evaluator=None,
        logger__recorders=[],
        logger__mlflow="none",
        ray__address=None,
    )
    assert asks(content) == []
    assert asks(of("env.id", "minigrid:MiniGrid-Empty-5x5-v0")) == []
    assert asks({"env": {"id": "drl_clix:E"}, "reward": "evil:R"}) == ["env.id=drl_clix:E"]  # reward is a group
    assert asks(of("network.torso", "drl_cli.utils.files:lock")) == ["network.torso=drl_cli.utils.files:lock"]
    assert asks({"env": None, "algo": {"name": "sac"}, "ray": []}) == []


def test_a_module_of_python_is_refused_even_with_trust(run):
    with pytest.raises(UsageError, match="os:system: is a module of Python"):
        consent(run, of("env.id", "os:system"), trust=True, typed=["env=os:system"])
    with pytest.raises(outside.NotFound, match="a module of Python"):
        outside.import_module("subprocess")


def test_typed_modules_are_agreed_to(run):
    content = {**of("env.id", "evil:E"), **of("network.torso", "evil.nets:T")}
    for words in ((), ["env=evil:E"], ["env=other:E", "network=evil.nets:T"], ["notes=evil:E", "tags=[evil.nets:T]"]):
        with pytest.raises(UsageError, match="names env"):
            consent(run, content, typed=words)
    consent(run, content, typed=["env=evil:E", "++network.torso='evil.nets:Other'"])
    consent(run, content)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["env=Pendulum-v1", "algo=sac", "seed=3", "data=run:latest", "notes=a:b"], []),
        (["env=evil:E"], ["env.id=evil:E"]),
        (["env.wrappers=[a:B, c.d:E]"], ["env.wrappers=a:B", "env.wrappers=c.d:E"]),
        (["algo=my_algo", "+ray.address=x:1"], ["algo.name=my_algo", "ray.address=x:1"]),
        (["env=gymnasium.envs.classic_control:PendulumEnv"], []),
    ],
)
def test_the_modules_that_words_name(words, found):
    assert typed_asks(words) == found


@pytest.mark.parametrize(
    "changed",
    [of("env.id", "evil:Other"), of("env.id", "evil2:E"), {"env": {"id": "evil:E", "kwargs": {"command": "rm"}}}],
)
def test_a_changed_file_asks_again(run, changed):
    remember(run, of("env.id", "evil:E"))
    consent(run, {**of("env.id", "evil:E"), "algo": {"lr": 3}})  # other values do not matter
    with pytest.raises(UsageError, match="which has changed since you agreed"):
        consent(run, changed)


def test_a_copy_at_another_place_asks(run, tmp_path):
    remember(run, of("env.id", "evil:E"))
    shutil.copytree(run.parent, tmp_path / "copy")
    with pytest.raises(UsageError, match="names env"):
        consent(tmp_path / "copy" / "config.yaml", of("env.id", "evil:E"))


def test_the_memory_is_the_users_and_survives_the_process(run, tmp_path, monkeypatch):
    remember(run, of("env.id", "evil:E"))
    monkeypatch.setattr(trust, "_here", {})
    consent(run, of("env.id", "evil:E"))
    (file,) = (tmp_path / "state" / "drl-cli" / "trusted").iterdir()
    assert file.parent.stat().st_mode & 0o77 == 0
    assert [path.name for path in run.parent.iterdir()] == ["run.json"]
    for damage in ("", "[]", '{"file": 1}'):
        monkeypatch.setattr(trust, "_here", {})
        file.write_text(damage)
        with pytest.raises(UsageError, match="names env"):
            consent(run, of("env.id", "evil:E"))


def test_a_memory_that_cannot_be_written_counts_in_this_process(run, tmp_path, caplog):
    (tmp_path / "state").write_text("in the way")
    remember(run, of("env.id", "evil:E"))
    consent(run, of("env.id", "evil:E"))
    assert "later commands will ask" in caplog.text


def test_a_remembered_module_comes_from_its_folder_and_not_from_the_current_one(run, tmp_path, monkeypatch):
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        folder.mkdir()
        (folder / "trusted_mod.py").write_text(f"PLACE = {folder.name!r}\n")
    monkeypatch.chdir(home)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    outside.look_in(str(home))
    remember(run, of("env.id", "trusted_mod:E"))
    outside.folders.clear()
    monkeypatch.chdir(other)
    consent(run, of("env.id", "trusted_mod:E"))
    assert outside.folders == [str(home)]
    assert outside.import_module("trusted_mod").PLACE == "home"


def test_a_link_out_of_the_run_asks_and_a_pipe_is_refused(run, tmp_path):
    (tmp_path / "victim").mkdir()
    (run.parent / "inside").symlink_to("run.json")
    (run.parent / "loop").symlink_to("loop")
    consent(run, {})
    (run.parent / "deep").mkdir()
    (run.parent / "deep" / "videos").symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match=r"a link that leads out of it: deep/videos -> .*victim"):
        consent(run, {}, typed=["env=evil:E"])
    consent(run, {}, trust=True)
    consent(run, {})
    os.mkfifo(run.parent / "deep" / "pipe")
    with pytest.raises(UsageError, match="deep/pipe: is a pipe") as caught:
        consent(run, {}, trust=True)
    assert caught.value.exit_code == 8


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"notes": "${oc.env:HOME}"}, "no interpolation"),
        ({"env": {"kwargs": {"${x}": [1]}}}, "no interpolation"),
        ({"tags": [["a", "b${x}"]]}, "no interpolation"),
        ({"hydra": {"searchpath": ["file:///tmp"]}}, "hydra: a run's config has values only"),
        ({"defaults": ["train"]}, "defaults: a run's config"),
        ([1], "holds no options"),
    ],
)
def test_a_runs_config_has_values_only(run, content, says):
    run.write_text(yaml.safe_dump(content))
    with pytest.raises(UsageError, match=says) as caught:
        read_run(run)
    assert caught.value.exit_code == 8


def test_a_config_with_python_objects_is_refused(run, tmp_path):
    run.write_text(f"notes: !!python/object/apply:os.system ['touch {tmp_path}/done']\n")
    with pytest.raises(UsageError, match="not readable"):
        read_run(run)
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("named", [True, False])
def test_the_config_of_a_run_as_main_config_is_data(run, named):
    if not named:
        (run.parent / "run.json").unlink()
    run.write_text(yaml.safe_dump(of("env.id", "evil:E")))
    flags = ["--config-path", str(run.parent), "--config-name", "config"]
    with pytest.raises(UsageError, match="names env"):
        read_command(flags)
    assert outside.folders == []
    run.write_text("notes: ${oc.env:HOME}\n")
    with pytest.raises(UsageError, match="no interpolation"):
        read_command(flags)


@pytest.mark.parametrize(
    ("words", "looks"),
    [
        (["env=my:E"], True),
        (["env=Pendulum-v1"], True),  # a yaml in a folder of the user may name a module
        (["resume=latest"], False),
        (["from_config=latest", "seed=1"], False),
        (["from_config=latest", "env.wrappers=[my:W]"], True),
    ],
)
def test_the_current_folder_has_modules_only_for_words_of_the_user(run, words, looks):
    read_command(words)
    assert outside.folders == ([os.getcwd()] if looks else [])


def test_the_words_of_a_sweep_ask(run):
    file = run.parent / "sweep.json"
    plain = {"flags": [], "jobs": [{"overrides": ["env=Pendulum-v1", "seed=1"], "run": "/a/b"}], "fixed": ["algo=sac"]}
    consent(file, {"words": plain})
    for hostile in (
        {"flags": ["--config-dir", "/tmp/evil"]},
        {"jobs": [{"overrides": ["env=evil:E"]}]},
        {"jobs": [{"overrides": ["+hydra.job.env_set.LD_PRELOAD=x"]}]},
        {"fixed": ["notes=${oc.env:HOME}"]},
        {"fixed": ["ray.address=x:1"]},
    ):
        with pytest.raises(UsageError, match="trust=true"):
            consent(file, {"words": {**plain, **hostile}})
    made = {"jobs": [{"overrides": ["env=mine:E", "seed=1"]}]}
    remember(file, {"words": made})
    made["jobs"].append({"overrides": ["env=mine:E", "seed=2"]})
    consent(file, {"words": json.loads(json.dumps(made))})

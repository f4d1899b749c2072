"""The commands import what is slow only when an answer needs it."""

import re
import subprocess
import sys

import pytest
import yaml
from omegaconf._utils import get_yaml_loader

from drl_cli.settings.conf import conf_dir
from drl_cli.settings.hydra_plugins import FileConfigSource, quick_loader

SLOW = {"torch", "ray", "gymnasium", "hydra", "omegaconf", "rich", "tensorboard", "matplotlib", "optuna"}


def imports_of(folder, name, *words):
    """Run a command. Return which slow packages it imported, its exit code and the rest of its stderr."""
    command = [sys.executable, "-X", "importtime", "-m", f"drl_cli.cli.{name}", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    lines = done.stderr.splitlines()
    times = [line for line in lines if line.startswith("import time:")]
    assert len(times) > 100
    packages = {re.split(r"\|\s*", line)[2].split(".")[0] for line in times}
    return packages & SLOW, done.returncode, "\n".join(line for line in lines if line not in times)


@pytest.mark.parametrize("word", ["algo=sacc", "alog=dqn", "algo.lrr=1", "replay=uniformm", "worker.num=many"])
def test_a_wrong_name_needs_no_slow_package(tmp_path, word):
    slow, code, text = imports_of(tmp_path, "train", word)
    assert (slow, code) == (set(), 2), text


def test_a_wrong_environment_needs_only_the_registry_of_gymnasium(tmp_path):
    slow, code, text = imports_of(tmp_path, "train", "env=CartPol")
    assert (slow, code) == ({"gymnasium"}, 2), text
    assert text == "error: no environment 'CartPol'. Did you mean CartPole-v1, CartPole-v0?"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("algo=td3 env=CartPole-v1", "error: TD3 needs a continuous (Box) action space; CartPole-v1 has Discrete(2)."),
        ("env=CartPole-v1 algo=ppo replay=hindsight", "error: PPO can't learn from replay=hindsight; say"),
        ("env=CartPole-v1 algo=dqn network.memory=lstm", "error: "),
    ],
)
def test_an_impossible_combination_needs_neither_torch_nor_ray(tmp_path, words, line):
    slow, code, text = imports_of(tmp_path, "train", *words.split())
    assert code == 2
    assert text.startswith(line)
    assert not {"torch", "ray", "tensorboard", "rich", "matplotlib", "optuna"} & slow


def test_a_list_of_runs_needs_no_slow_package(tmp_path):
    slow, code, text = imports_of(tmp_path, "list", "runs")
    assert (slow, code) == (set(), 0), text


def test_the_quick_loader_reads_our_yaml_files_as_hydra_does():
    texts = [file.read_text() for file in sorted(conf_dir().rglob("*.yaml"))]
    texts += ["a: 1e-3\nb: 2020-01-01\nc: 1_000\nd: yes\ne: .5\nf: 1:30\ng: ~\n", ""]
    for text in texts:
        ours, theirs = (yaml.load(text, loader) for loader in (quick_loader(), get_yaml_loader()))
        assert repr(ours) == repr(theirs)


def test_hydra_reads_files_with_the_quick_loader(tmp_path):
    script = """
from drl_cli.settings import hydra_plugins
from drl_cli.settings.compose import mapping
read = []
source = hydra_plugins.FileConfigSource
load = source.load_config
source.load_config = lambda self, config_path: read.append(config_path) or load(self, config_path)
hydra_plugins.file_config_source.FileConfigSource.load_config = None  # Hydra's way of reading
mapping(["algo=dqn", "env=CartPole-v1"])
assert {"train.yaml", "algo/dqn.yaml"} <= {path.removesuffix('.yaml') + '.yaml' for path in read}, read
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: [1\n", "a:\n\t- 1\n"])
def test_the_errors_in_a_file_are_those_of_hydra(tmp_path, text):
    (tmp_path / "wrong.yaml").write_text(text)
    theirs = FileConfigSource.__bases__[0]
    problems = []
    for source in (FileConfigSource, theirs):
        with pytest.raises(yaml.YAMLError) as caught:
            source("main", f"file://{tmp_path}").load_config("wrong")
        problems.append(str(caught.value))
    assert problems[0] == problems[1]


def test_a_file_has_the_header_and_content_that_hydra_finds(tmp_path):
    (tmp_path / "own.yaml").write_text("# @package _global_\nalgo:\n  lr: 1e-3\n")
    (tmp_path / "empty.yaml").write_text("")
    for name in ("own", "empty"):
        ours, theirs = (
            source("main", f"file://{tmp_path}").load_config(name)
            for source in (FileConfigSource, FileConfigSource.__bases__[0])
        )
        assert ours == theirs

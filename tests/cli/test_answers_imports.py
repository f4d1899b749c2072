"""The commands import what is slow only when an answer needs it."""

import json
import subprocess
import sys

import pytest
import yaml
from omegaconf._utils import get_yaml_loader

from drl_cli.settings.conf import conf_dir
from drl_cli.settings.hydra_plugins import FileConfigSource, quick_loader

SLOW = ("torch", "ray", "gymnasium", "hydra", "omegaconf", "rich", "tensorboard", "matplotlib", "optuna")
COMPOSING = ["gymnasium", "hydra", "omegaconf"]
ANSWERS = (
    ("train --help", 0, [], ""),
    ("train algo.lrr=1", 2, [], "error: algo.lrr: "),
    ("train worker=big", 2, [], "error: no worker option 'big'"),
    ("train =3", 2, [], "error: "),
    ("train algo=sacc", 2, [], "error: unknown algorithm 'sacc'"),
    ("train alog=dqn", 2, [], "error: alog: "),
    ("train replay=uniformm", 2, [], "error: "),
    ("train worker.num=many", 2, [], "error: worker.num: "),
    ("list runs", 0, [], ""),
    (
        "train env=CartPol",
        2,
        COMPOSING[:1],
        "error: no environment 'CartPol'. Did you mean CartPole-v1, CartPole-v0?\n",
    ),
    (
        "train algo=td3 env=CartPole-v1",
        2,
        COMPOSING,
        "error: TD3 needs a continuous (Box) action space; CartPole-v1 has",
    ),
    (
        "train env=CartPole-v1 algo=ppo replay=hindsight",
        2,
        COMPOSING,
        "error: PPO can't learn from replay=hindsight; say",
    ),
    ("train env=CartPole-v1 algo=dqn network.memory=lstm", 2, COMPOSING, "error: "),
)
"""For each command: its exit code, the slow packages that it and those above import, and how its errors begin."""

SCRIPT = """
import contextlib, importlib, io, json, sys
answers, text = json.loads(sys.argv[1]), open(sys.argv[2], "w+")
for line, *_ in answers:
    name, *words = line.split()
    sys.argv, code = [f"drl-{name}", *words], 0
    text.seek(text.truncate(0))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(text):
        try:
            importlib.import_module(f"drl_cli.cli.{name}").main()
        except SystemExit as end:
            code = end.code
    text.seek(0)
    print(json.dumps([code, [*sys.modules], text.read()]))
"""


@pytest.mark.slow
def test_answers_import_what_they_need(tmp_path):
    """Imports take most of the time: 300 modules take a quarter of a second, and Hydra alone takes as much."""
    (cwd := tmp_path / "cwd").mkdir()
    command = [sys.executable, "-c", SCRIPT, json.dumps(ANSWERS), str(tmp_path / "errors")]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(ANSWERS), done.stderr
    for (line, code, slow, begin), (given, modules, text) in zip(ANSWERS, answers, strict=True):
        assert (given, [name for name in SLOW if name in modules]) == (code, slow), (line, text)
        assert text.startswith(begin), line
    assert len(answers[3][1]) < 490
    assert list(cwd.iterdir()) == []


def test_the_quick_loader_reads_our_yaml_files_as_hydra_does():
    texts = [file.read_text() for file in sorted(conf_dir().rglob("*.yaml"))]
    texts += ["a: 1e-3\nb: 2020-01-01\nc: 1_000\nd: yes\ne: .5\nf: 1:30\ng: ~\n", ""]
    for text in texts:
        ours, theirs = (yaml.load(text, loader) for loader in (quick_loader(), get_yaml_loader()))
        assert repr(ours) == repr(theirs)


@pytest.mark.slow
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
    theirs, problems = FileConfigSource.__bases__[0], []
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

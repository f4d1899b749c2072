"""The commands import what is slow only when an answer needs it."""

import json
import subprocess
import sys

import pytest

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

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from graphs import quick_compose

from drl_cli.settings.conf import options

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts/bench"))

golden, golden_cases, learn = map(importlib.import_module, ("golden", "golden_cases", "learn"))
KNOWN = golden.read()
COMMANDS = golden_cases.commands()


@pytest.fixture(autouse=True)
def quick_configs(request, monkeypatch):
    if "-v5" not in request.node.name:  # MuJoCo tasks get their tuned values only from `compose`
        monkeypatch.setattr(golden_cases, "compose", quick_compose)


def check(case, *words):
    """Fail with the case, and with the metrics, golden values and present values that differ."""
    found = golden.differences(KNOWN[case]["values"], golden.make(case, words)["values"], case)
    if found:
        lines = "\n".join(f"{case}: {line}" for line in [*found, golden.first_batch(found)])
        pytest.fail(f"{lines}\nIf this is wanted: python scripts/bench/golden.py --write", pytrace=False)


@pytest.mark.parametrize("case", golden_cases.algorithms())
def test_the_first_updates_of_an_algorithm(case):
    check(case)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", COMMANDS)
def test_the_first_updates_of_a_command(case):
    if "-v5" in case:
        pytest.importorskip("mujoco")
    check(case)


def test_every_case_has_golden_values_with_their_identity():
    assert list(KNOWN) == [*golden_cases.algorithms(), *COMMANDS], "run scripts/bench/golden.py --write"
    assert not [case for case, record in KNOWN.items() if record["identity"] != golden.identity(record["values"])]
    assert golden.text(KNOWN) == golden.FILE.read_text()


def test_every_algorithm_and_tuned_set_has_a_case():
    algorithms = {case.partition(" ")[0] for case in golden_cases.algorithms()}
    assert algorithms == {path.stem for path in (ROOT / "conf/algo").glob("*.yaml")}
    used = {golden_cases.tuned_set(case) for case in COMMANDS} - {None}
    assert used == {*options("tuned")} - {"none"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "word", "metric"),
    [
        ("dqn", "optimizer.kwargs={eps:1e-5}", "moved"),
        ("ppo discrete", "algo.clip=0.19", "clip_fraction"),
        ("td3", "algo.tau=0.05", "actor_loss"),
    ],
)
def test_a_changed_option_is_noticed(case, word, metric):
    with pytest.raises(
        pytest.fail.Exception, match=rf"{case}: {metric} after batch \d+: golden [-\d.e]+, now [-\d.e]+"
    ):
        check(case, word)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ('"eps", 1e-8', '"eps",  # a comment\n 1e-8', []),
        ('"eps", 1e-8', '"eps", 1e-5', ["dqn: moved after batch", "dqn: the metrics of the first batch agree"]),
    ],
)
@pytest.mark.exhaustive
def test_a_comment_changes_nothing_and_an_epsilon_does(tmp_path, old, new, lines):
    """In a copy of the code, as somebody would change it."""
    for folder in ("drl_cli", "conf", "scripts/bench"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "drl_cli/optim/rules.py"
    code = file.read_text()
    assert old in code
    file.write_text(code.replace(old, new, 1))
    words = [sys.executable, tmp_path / "scripts/bench/golden.py", "--fast", "dqn"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == bool(lines), done.stdout + done.stderr
    assert all(line in done.stdout for line in lines)
    assert bool(done.stdout) == bool(lines)


LOSS = {"loss": [1.0, None, 0.5], "kl": [0.0, 1e-3, 2e-3]}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"loss": [1.0005, None, 0.5], "kl": [1e-7, 1e-3, 2e-3], "new": [1.0]}, []),
        ({"loss": [1.002, None, 0.5], "kl": [0.0, 1e-3, 3e-3]}, [(1, "loss", 1.0, 1.002), (5, "kl", 2e-3, 3e-3)]),
        ({"loss": [1.0, 0.7, 0.5], "kl": [0.0, 1e-3, 2e-3]}, [(2, "loss", None, 0.7)]),
        ({"loss": [1.0, None], "kl": [0.0, 1e-3, 2e-3]}, [(5, "loss", 0.5, None)]),
        ({"kl": [0.0, 1e-3, float("nan")]}, [(1, "loss", 1.0, None), (5, "kl", 2e-3, pytest.approx(0, nan_ok=True))]),
    ],
)
def test_differences_beyond_the_tolerance(now, expected):
    found = golden.differences(LOSS, now)
    assert [one[:3] for one in found] == [one[:3] for one in expected]
    assert golden.differences(LOSS, LOSS) == []


def test_a_wrong_name_is_refused():
    with pytest.raises(SystemExit, match="no case dqm; say an algorithm, or one of: a2c box"):
        golden.chosen(["dqm"])
    assert golden.chosen(["ppo discrete"]) == ["ppo discrete"]
    assert {"ppo box", "env=CartPole-v1 algo=ppo"} <= {*golden.chosen(["ppo"])}
    assert not {"appo box", "dqn"} & {*golden.chosen(["ppo"])}

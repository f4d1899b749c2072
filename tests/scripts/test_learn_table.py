"""scripts/bench/learn.py: what is due, whose code a fingerprint is of, and the page."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("learn", ROOT / "scripts/bench/learn.py")
learn = importlib.util.module_from_spec(spec)
sys.modules["learn"] = learn
spec.loader.exec_module(learn)

ROW = {"algo": "dqn", "env": "CartPole-v1", "threshold": 475, "budget": 50_000, "seeds": [0, 1, 2], "overrides": []}
RECORDS = {
    "dqn": {
        "0": {"return": 500.0, "env_steps": 20_000, "seconds": 30, "fingerprint": "a.b.c"},
        "1": {"return": 300.0, "env_steps": None, "seconds": None, "fingerprint": "x.b.c"},
        "2": {"return": 480.0, "env_steps": 30_000, "seconds": 40, "fingerprint": "a.b.c"},
    }
}


def test_only_missing_runs_are_due_and_old_ones_when_they_are_to_be_made_again():
    rows, prints = {"dqn": ROW, "new": ROW | {"seeds": [5]}}, {"dqn": "a.b.c", "new": "n"}
    assert learn.due(rows, RECORDS, prints, again=False) == [("new", 5)]
    assert learn.due(rows, RECORDS, prints, again=True) == [("dqn", 1), ("new", 5)]


def test_a_row_says_who_passed_and_which_record_is_old():
    line = learn.page({"dqn": ROW, "never run": ROW}, RECORDS, {"dqn": "a.b.c", "never run": "n"}).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        *("dqn", "CartPole-v1", "475", "2 of 3", "480.0 (390.0 to 490.0): 500.0, 300.0, 480.0"),
        *("30,000: 20,000, -, 30,000", "30, -, 40", "a.b.c, x.b.c old"),
    ]


def test_a_fingerprint_is_of_the_algorithm_and_what_it_imports_and_of_no_other():
    files = {path.relative_to(ROOT).as_posix() for path in learn.imported(["drl_cli.algos.c51"])}
    assert {"drl_cli/algos/c51.py", "drl_cli/algos/dqn.py", "drl_cli/networks/q_network.py"} <= files
    assert not files & {"drl_cli/algos/sac.py", "drl_cli/algos/ppo.py", "drl_cli/cli/train.py"}


def test_a_fingerprint_follows_the_config():
    prints = [learn.fingerprint(ROW | {"overrides": extra}, ["mode=single"]) for extra in ([], ["algo.lr=0.5"], [])]
    assert prints[0] == prints[2]
    assert [a == b for a, b in zip(prints[0].split("."), prints[1].split("."), strict=True)] == [True, False, True]


def test_overrides_may_be_lists_of_lists_and_win_over_the_common_ones():
    row = ROW | {"overrides": [["algo.lr=1", ["algo.tau=1"]], "mode=async"]}
    wanted = ["env=CartPole-v1", "algo=dqn", "seed=1", "total_env_steps=50000", "algo.lr=1", "algo.tau=1", "mode=async"]
    assert learn.overrides(row, ["mode=single", "seed=1"]) == wanted

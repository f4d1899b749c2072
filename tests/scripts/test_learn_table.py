import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from graphs import make_config

from drl_cli.algos.lookup import algorithms, load_algorithm, module_path
from drl_cli.cli import record
from drl_cli.errors import MISSING, UsageError
from drl_cli.run_folder.saved_run import Run
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import for_hydra, read_command
from drl_cli.settings.conf import options
from drl_cli.settings.options import parse

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts/bench"))
learn, learn_page, take = map(importlib.import_module, ("learn", "learn_page", "take"))

ROW = {"algo": "dqn", "env": "CartPole-v1", "threshold": 475, "budget": 50_000, "seeds": [0, 1, 2], "overrides": []}
RECORDS = {
    "dqn": {
        "0": {"return": 500.0, "env_steps": 20_000, "seconds": 30, "golden": "a1b2"},
        "1": {"return": 300.0, "env_steps": None, "seconds": None, "golden": "0000"},
        "2": {"return": 480.0, "env_steps": 30_000, "seconds": 40, "golden": "a1b2"},
    }
}


def test_missing_runs_are_due_and_old_runs_with_again():
    rows, current = {"dqn": ROW, "new": ROW | {"seeds": [5]}}, {"dqn": "a1b2", "new": "n"}
    assert learn.due(rows, RECORDS, current, again=False) == [("new", 5)]
    assert learn.due(rows, RECORDS, current, again=True) == [("dqn", 1), ("new", 5)]


@pytest.mark.slow
def test_each_row_is_a_valid_command_with_a_tuned_set_that_exists():
    table = yaml.safe_load(learn.TABLE.read_text())
    for row in table["rows"].values():
        given = learn.overrides(row, table["common"])
        try:
            check_command(read_command(given))
        except UsageError as error:  # the row's package need not be installed here
            if error.exit_code != MISSING:
                raise
        named = {one.partition("=")[2] for one in given if one.startswith("tuned=")}
        assert named <= set(options("tuned"))


def test_no_row_is_in_the_table_twice():
    """A yaml file may have a key twice; only the last one counts."""
    _, _, lines = learn.TABLE.read_text().partition("\nrows:\n")
    names = re.findall(r"^  ([^ #][^:]*):", lines, re.MULTILINE)
    assert sorted(names) == sorted(yaml.safe_load(learn.TABLE.read_text())["rows"])


def test_each_value_algorithm_has_rows_in_single_and_async():
    table = yaml.safe_load(learn.TABLE.read_text())
    have: set[tuple[object, ...]] = set()
    for row in table["rows"].values():
        given = learn.overrides(row, table["common"])
        mode = next(one for one in given if one.startswith("mode="))
        have.add((row["algo"], row["env"], row["threshold"], mode, tuple(row["seeds"])))
    goals = [("CartPole-v1", 475), ("Acrobot-v1", -100)]
    runs = [("mode=single", (0, 1, 2)), ("mode=async", (0,))]
    rooms = {name: module_path(name).split(".")[2] for name in algorithms()}
    apart = {name for name, room in rooms.items() if room in ("offline", "model_based")} | {"rlpd", "wsrl"}
    continuous = {name for name in algorithms() if "box" in load_algorithm(name).ACTIONS} | {"dr_q", "droq"}
    on_policy = {"a2c", "appo", "impala", "pqn", "reinforce"}
    family = (set(options("algo")) - continuous - apart - {"r2d2"}) | on_policy
    assert not {(algo, *goal, *run) for algo in family for goal in goals for run in runs} - have
    off_policy = continuous - apart - on_policy - {"ppo", "reppo", "sac", "vmpo"}
    assert not {(algo, "Pendulum-v1", -200, *run) for algo in off_policy for run in runs} - have


SAC = {"algo": "sac", "env": "Pendulum-v1", "threshold": -200, "budget": 1, "seeds": [0], "overrides": []}
VALUES = {"env=CartPole-v1 algo=dqn": {"identity": "a1b2"}, "env=Pendulum-v1 algo=sac": {"identity": "c3d4"}}


def test_the_identity_of_a_row_is_that_of_the_golden_values_of_its_command():
    rows = {"dqn": ROW, "async": ROW | {"overrides": [["mode=async", "worker.num=2"]]}, "sac": SAC}
    rows |= {"dueling": ROW | {"overrides": ["algo.dueling=true"]}}
    wanted = {"dqn": "a1b2", "async": "a1b2", "sac": "c3d4", "dueling": None}
    assert learn.identities(rows, VALUES) == wanted


def test_rows_with_current_results_become_old_if_their_golden_values_change(tmp_path, monkeypatch):
    rows = {"dqn": ROW, "again": ROW, "sac": SAC, "never run": ROW}
    other = {"again": {"0": RECORDS["dqn"]["1"]}, "sac": {"0": RECORDS["dqn"]["0"] | {"golden": "c3d4"}}}
    (tmp_path / "learn.yaml").write_text(yaml.safe_dump({"rows": rows}))
    (tmp_path / "results.json").write_text(json.dumps(RECORDS | other))
    monkeypatch.setattr(learn, "TABLE", tmp_path / "learn.yaml")
    monkeypatch.setattr(learn, "RECORDS", tmp_path / "results.json")
    assert learn.made_old(VALUES, VALUES | {"env=CartPole-v1 algo=dqn": {"identity": "ffff"}}) == ["dqn"]
    assert learn.made_old(VALUES, VALUES) == []


def test_a_row_needs_golden_values_that_fit_the_code(monkeypatch):
    case = learn.command(ROW)
    monkeypatch.setattr(learn.golden, "make", lambda case: {"identity": "", "values": {"loss": [2.0]}})
    monkeypatch.setattr(learn.golden, "read", lambda: {case: {"identity": "", "values": {"loss": [2.0]}}})
    learn.check_golden(ROW)
    monkeypatch.setattr(learn.golden, "read", lambda: {case: {"identity": "", "values": {"loss": [1.0]}}})
    with pytest.raises(SystemExit, match=r"loss after batch 1: golden 1.0, now 2.0\n.*golden.py --write"):
        learn.check_golden(ROW)
    with pytest.raises(SystemExit, match="no golden values yet"):
        learn.check_golden(ROW | {"overrides": ["algo.dueling=true"]})


def test_results_have_marks_that_say_something():
    """Most results are current, and the page is made from the records and the golden values."""
    rows, records = yaml.safe_load(learn.TABLE.read_text())["rows"], json.loads(learn.RECORDS.read_text())
    current = learn.identities(rows, learn.golden.read())
    assert not [name for name, identity in current.items() if identity is None and "peer" not in rows[name]]
    is_current = [record["golden"] == current[name] for name, made in records.items() for record in made.values()]
    table = yaml.safe_load(learn.TABLE.read_text())
    assert learn.PAGE.read_text() == learn.page(rows, records, current, table), "run scripts/bench/learn.py"
    assert is_current.count(True) > is_current.count(False)


OFFLINE = ROW | {"overrides": [["mode=offline"], "algo.lr=1"], "data": ["a", "b"], "threshold": None}


def test_a_row_with_data_names_its_datasets_and_counts_updates():
    wanted = ["env=CartPole-v1", "algo=dqn", "total_updates=50000", "data=[outputs/data/a.npz,outputs/data/b.npz]"]
    assert learn.overrides(OFFLINE, ["mode=single"]) == [*wanted, "mode=offline", "algo.lr=1"]
    mixed = ROW | {"data": ["a"]}
    wanted = ["env=CartPole-v1", "algo=dqn", "mode=sync", "total_env_steps=50000", "data=outputs/data/a.npz"]
    assert learn.overrides(mixed, ["mode=sync"]) == wanted
    raw = "env.normalize_obs=false env.normalize_reward=false"
    assert learn.command(OFFLINE) == f"env=CartPole-v1 algo=dqn algo.lr=1 {raw}"  # golden values come from random rows
    text = learn.page({"dqn": OFFLINE}, RECORDS, {"dqn": "a1b2"}, {"datasets": {"a": ["x 1", "y"], "b": ["z"]}})
    assert "| `env=CartPole-v1 algo=dqn data=[outputs/data/a.npz,outputs/data/b.npz] mode=offline algo.lr=1` |" in text
    assert "\n- outputs/data/a.npz: `x 1; y`\n- outputs/data/b.npz: `z`\n" in text
    assert json.loads(learn.auto({"dqn": OFFLINE | {"overrides": ["mode=offline"]}}, RECORDS)) == []


def test_the_commands_of_datasets_are_valid():
    table = yaml.safe_load(learn.TABLE.read_text())
    used = {name for row in table["rows"].values() for name in row.get("data", ())}
    assert used == table["datasets"].keys()
    for name, commands in table["datasets"].items():
        for tool, *words in map(str.split, commands):
            if tool == "drl-train":
                check_command(read_command(words))
            else:
                record.check(parse(words, record.Options))
        assert commands[-1].endswith(f" output={learn.dataset_path(name)}")


def test_an_offline_run_is_over_after_its_updates(tmp_path, monkeypatch):
    fake_run(monkeypatch, tmp_path, SUMMARY | {"opt_steps": 20_000}, DONE | {"env_steps": 0, "opt_steps": 50_000})
    given = (OFFLINE, ["mode=single"], 7, tmp_path, 1.0)
    assert learn.play(*given) is None
    assert learn.play(*given) == {"return": 3.1, "env_steps": 50_000, "seconds": 151}


def fake_run(monkeypatch, folder, *summaries):
    """Return the list of commands that `learn.run` gets. Each command writes the next summary and fixed evaluations."""
    commands, left = [], list(summaries)

    def run(command):
        commands.append(command[3:])
        place = folder / "CartPole-v1/dqn-single/1"
        place.mkdir(parents=True, exist_ok=True)
        (place / "run.json").touch()
        (place / "summary.json").write_text(json.dumps(left.pop(0)))
        rows = [(10000, 100.0), (40000, 4.0), (45064, 8.0), (50000, 3.14)]
        lines = [f"{step},{step},{mean}" for step, mean in rows]
        (place / "eval.csv").write_text("\n".join(["env_steps,opt_steps,mean", *lines]))

    monkeypatch.setattr(learn, "run", run)
    return commands


SUMMARY = {"env_steps": 20_000, "time_to_return_env_steps": None, "time_to_return_s": None, "wall_s": 61.2}
DONE = SUMMARY | {"env_steps": 50_000, "wall_s": 150.6, "best_return": 9.0}


def test_a_run_continues_in_pieces_to_its_budget(tmp_path, monkeypatch):
    commands = fake_run(monkeypatch, tmp_path, SUMMARY, DONE)
    given = (ROW | {"threshold": None}, ["mode=single"], 7, tmp_path, 1.0)
    assert learn.play(*given) is None
    assert learn.play(*given) == {"return": 3.1, "env_steps": 50_000, "seconds": 151}
    begun = tmp_path / "CartPole-v1/dqn-single/1"
    values = ["env=CartPole-v1", "algo=dqn", "mode=single", "total_env_steps=50000", "seed=7", f"output_dir={tmp_path}"]
    assert commands == [[*values, "stop.wall_s=60.0"], [f"resume={begun}", "stop.wall_s=60.0"]]


def state_of_peer(env_steps, seconds, *means):
    """Return the text of sb3.py's state.json with an evaluation every 10,000 steps."""
    evaluations = [{"env_steps": 10_000 * (i + 1), "mean": mean} for i, mean in enumerate(means)]
    return json.dumps({"env_steps": env_steps, "seconds": seconds, "evaluations": evaluations})


@pytest.mark.slow
def test_a_peer_counts_from_scored_from_and_continues_to_its_budget(tmp_path, monkeypatch):
    place = tmp_path / "CartPole-v1/sb3-dqn/run"
    states = [state_of_peer(20_000, 9.0, 1, 2), state_of_peer(50_000, 99.6, 1, 2, 3, 4, 6)]
    left = []
    monkeypatch.setattr(learn, "peer_python", lambda venv: venv / "bin/python")
    monkeypatch.setattr(learn, "run", lambda command: (place / "state.json").write_text(left.pop(0)))
    for extra, mean in (({"scored_from": 40_000}, 5.0), ({"scored_from": None}, 6.0)):
        left += states
        row = ROW | {"threshold": None, "peer": "sb3"} | extra
        made = [learn.play_peer(row, ["mode=single"], 7, tmp_path, 1.0, tmp_path) for _ in range(2)]
        assert made == [None, {"return": mean, "env_steps": 50_000, "seconds": 100}]
        assert (Run(place).status, Run(place).config["name"]) == ("done", "dqn of stable-baselines3")


def test_a_run_that_reached_its_threshold_is_over(tmp_path, monkeypatch):
    reached = SUMMARY | {"time_to_return_env_steps": 20_000, "time_to_return_s": 30.4, "best_return": 480.04}
    commands = fake_run(monkeypatch, tmp_path, reached, DONE)
    given = (ROW, [], 0, tmp_path, float("inf"))
    assert learn.play(*given) == {"return": 480.0, "env_steps": 20_000, "seconds": 30}
    assert commands[0][-1] == "stop.return=475"
    assert learn.play(*given) == {"return": 9.0, "env_steps": None, "seconds": None}


def test_each_picture_belongs_to_an_environment_and_exists_and_is_on_the_page():
    table = yaml.safe_load(learn.TABLE.read_text())
    pictures, page = table["pictures"], learn.PAGE.read_text()
    assert pictures.keys() <= {row["env"] for row in table["rows"].values()}
    assert not [file for file in pictures.values() if not (learn.PAGE.parent / file).is_file()]
    assert not [file for file in pictures.values() if f"]({file})" not in page]


def commands_of_the_page():
    """Return the words of `command` by row, and the budget of each row, as docs/results.md shows them."""
    found = {}
    for text in (ROOT / "docs/results.md").read_text().splitlines():
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if len(cells) == 12 and cells[1].startswith("`env="):
            found[cells[0]] = cells[1].strip("`").split(), int(cells[3].replace(",", ""))
    return found


def test_the_results_for_algo_auto_are_current():
    table, records = yaml.safe_load(learn.TABLE.read_text()), json.loads(learn.RECORDS.read_text())
    assert learn.AUTO.read_text() == learn.auto(table["rows"], records), "run scripts/bench/learn.py"


def test_algo_auto_compares_rows_in_which_all_recorded_seeds_passed():
    records = {"dqn": {str(seed): RECORDS["dqn"]["0"] | {"env_steps": 10 * seed} for seed in range(3)}}
    line = {
        "env": "CartPole-v1",
        "algo": "dqn",
        "threshold": 475,
        "seeds": 3,
        "steps": 10,
        "return": 500,
        "seconds": 30,
    }
    assert json.loads(learn.auto({"dqn": ROW}, records)) == [line]
    assert json.loads(learn.auto({"dqn": ROW | {"threshold": None}}, records)) == [line | {"threshold": None}]
    long = {"dqn": ROW, "dqn long": ROW | {"threshold": None}}
    assert json.loads(learn.auto(long, records | {"dqn long": records["dqn"]})) == [line]
    assert json.loads(learn.auto({"dqn": ROW}, RECORDS)) == []  # one seed failed
    for other in ({"overrides": ["algo.lr=1"]}, {"peer": "sb3"}):
        assert json.loads(learn.auto({"dqn": ROW | other}, records)) == []
    few = line | {"seeds": 2, "steps": 5}
    assert json.loads(learn.auto({"dqn": ROW | {"seeds": [0, 1]}}, records)) == [few]
    assert json.loads(learn.auto({"dqn": ROW | {"seeds": [0, 1, 2, 3]}}, records)) == [line]  # the fourth is not run
    in_async = {"dqn async": ROW | {"overrides": ["mode=async"], "seeds": [0, 1]}}
    records["dqn async"] = records["dqn"]
    assert json.loads(learn.auto(in_async, records)) == [few]
    assert json.loads(learn.auto({"dqn": ROW} | in_async, records)) == [line]
    assert json.loads(learn.auto(in_async | {"dqn": ROW}, records)) == [line]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # of which half is for the rows that Hydra composes
def test_the_command_of_each_row_has_the_config_of_the_row(composed):
    table, shown = yaml.safe_load(learn.TABLE.read_text()), commands_of_the_page()
    for name, (words, budget) in shown.items():
        mode = [] if any(word.startswith("mode=") for word in words) else ["mode=single"]
        total = "total_updates" if "mode=offline" in words else "total_env_steps"
        typed = [*words, *mode, f"{total}={budget}"], learn.overrides(table["rows"][name], table["common"])
        needs_hydra = "-v5" in words[0] or "data=" in " ".join(words)  # which make_config does not take
        compose = composed if needs_hydra else make_config
        config, expected = (compose(*for_hydra(read_command(each).overrides)) for each in typed)
        assert config == expected, name


def test_each_task_needs_no_words_but_env_and_algo():
    """The rows of a threshold name one algorithm and one task; others are studies, and name what they change."""
    table, shown = yaml.safe_load(learn.TABLE.read_text()), commands_of_the_page()
    plain = {tuple(words) for words, _ in shown.values() if len(words) == 2}
    records = json.loads(learn.RECORDS.read_text())
    rows = [row for name, row in table["rows"].items() if row["threshold"] and name in records and "data" not in row]
    tasks = {(f"env={row['env']}", f"algo={row['algo']}") for row in rows}
    probes = {task for task in tasks if ":" in task[0]}
    in_async_only = {("env=LunarLander", "algo=apex"), ("env=BipedalWalker-v3", "algo=sac")}
    assert tasks - probes - plain == in_async_only

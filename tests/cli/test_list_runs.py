import json
import os
import re
import shutil

import pytest
import yaml
from run_folders import make_run

from drl_cli.cli.list_runs import run_lines
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.find import find_runs
from drl_cli.settings.build import build, to_yaml_keys
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.files import lock


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Five runs in ./outputs: two seeds of dqn, another learning rate, a killed ppo, another environment."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "outputs"
    done = [(10, 1.0, 5.0), (20, 2.0, 4.0)]
    make_run(root, "20260101-s0", done, summary={"env_steps": 1200, "wall_s": 30.0})
    make_run(root, "20260102-s1", [(10, 1.0, 7.0)], seed=1, summary={"env_steps": 900, "wall_s": 60.0})
    make_run(root, "20260103-s0", [(10, 1.0, -3.0)], command=["algo.lr=0.5"], algo__lr=0.5, summary={"env_steps": 10})
    make_run(root, "20260104-s0", [(10, 1.0, 9.5)], status="running", algo__name="ppo")
    make_run(root, "20260105-s0", status="failed", command=["env.kwargs.g=5"], env__name="Lander", env__kwargs={"g": 5})
    return root


def days(lines):
    """The runs in a table, by their days in January."""
    return [int(line[6:8]) for line in lines[1:] if line.startswith("2026")]


def test_newest_first_with_all_columns(outputs, listed):
    head, *lines = listed("runs")
    assert re.split(r"\s{2,}", head) == [
        *("run", "env", "algo", "mode", "status", "env steps", "seconds", "best", "final", "differs in")
    ]
    assert days([head, *lines]) == [5, 4, 3, 2, 1]
    values = [line.split() for line in lines]
    assert values[4][1:] == ["Pole", "dqn", "single", "done", "1,200", "30", "5.0", "4.0", "algo.lr=0.001"]
    assert values[3][5:9] == ["900", "60", "7.0", "7.0"]
    assert values[1][1:5] == ["Pole", "ppo", "single", "killed"]
    assert values[0][4:] == ["failed", "0", "0", "-", "-", "env.kwargs.g=5"]


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("lr=3", "lr: no run has this key. Did you mean algo.lr?"),
        ("last=3", "last: no run has this key. Did you mean limit?"),
        ("limitt=3", "limitt: no run has this key. Did you mean limit?"),
        ("stats=done", "stats: no run has this key. Did you mean status?"),
        ("gibberish=1", "gibberish: no run has this key."),
    ],
)
def test_a_condition_on_no_key_names_the_key_that_is_meant(outputs, drl_here, condition, says):
    done = drl_here("list", "runs", condition)
    assert (done.returncode, done.stderr) == (2, f"error: {says}\n")


def test_name_tags_and_notes_are_columns_and_conditions_but_no_difference(outputs, listed):
    assert days(listed("runs", "name=null")) == [5, 4, 3, 2, 1]
    assert "name" not in listed("runs")[0].split()
    for day, tags in ((6, ["paper", "wide net"]), (7, [])):
        make_run(outputs, f"2026010{day}-s0", name=f"my_exp {day}", tags=tags, notes="a, b" if tags else None)
    head, last, row, *_ = listed("runs")
    columns = ["name", "tags", "notes", "differs in"]
    assert re.split(r"\s{2,}", head)[-4:] == columns
    assert re.split(r"\s{2,}", row)[-4:] == ["my_exp 6", "[paper,wide net]", "a, b", "algo.lr=0.001"]
    assert re.split(r"\s{2,}", last)[-4:] == ["my_exp 7", "-", "-", "algo.lr=0.001"]
    conditions = {"name=my_exp": [7, 6], "name=*7": [7], "tags=paper": [6], "tags=[x,wide]": [6], "notes=*b": [6]}
    for condition, found in conditions.items():
        assert days(listed("runs", condition)) == found, condition
    assert listed("runs", "name=other")[0].startswith("none of 7 runs has name=other; name is None (5), my_exp 7 (1)")
    labels = [line for line in listed("runs", "seeds=mean") if "my_exp" in line]
    assert [line.split()[:4] for line in labels] == [["Pole", "my_exp", "7", "1"], ["Pole", "my_exp", "6", "1"]]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ander"], [5]),  # a part of the environment
        (["PPO"], [4]),
        (["20260102"], [2]),
        (["pole", "dqn"], [3, 2, 1]),
        (["best>5"], [4, 2]),
        (["best>=5"], [4, 2, 1]),
        (["best<5"], [3]),
        (["steps>900"], [1]),
        (["steps>=900", "final<7"], [1]),
        (["seconds<=30", "seconds>1"], [1]),
        (["algo.lr>0.1"], [3]),
        (["env.kwargs.g<6"], [5]),
        (["nothing at all"], []),
    ],
)
def test_a_text_and_comparisons_are_conditions(outputs, listed, words, found):
    assert days(["", *listed("runs", *words)] if not found else listed("runs", *words)) == found


def save(folder):
    (folder / "checkpoints" / "step_000000010").mkdir(parents=True)
    (folder / "checkpoints" / "step_000000010" / "manifest.json").write_text("{}")


def test_empty_and_failed_runs_are_removed_but_none_that_trains(outputs, listed, drl_here):
    folders = {path.name[6:8]: path for path in outputs.glob("*/*/*")}
    for day in ("01", "03", "05"):
        save(folders[day])  # 05 failed, 02 and 04 have no checkpoint
    done = drl_here("list", "runs", "remove=empty")
    assert done.returncode == 2
    assert all(str(folders[day].name) in done.stdout for day in ("02", "04", "05"))
    assert done.stderr == "error: remove: 3 runs would be removed; say yes=true to remove them without a question\n"
    with lock(folders["04"] / RUN_LOCK):
        lines = listed("runs", "remove=empty", "yes=true")
    assert lines[-1] == "2 of 3 runs removed"
    assert [line.split()[0].rstrip(",") for line in lines[:-1]] == ["removed", "kept", "removed"]
    assert days(listed("runs")) == [4, 3, 1]
    assert not (outputs / "Lander").exists()  # the folders above the last run of an environment go, too


def test_named_runs_are_removed_if_they_fulfil_the_conditions(outputs, listed, tmp_path):
    other = make_run(tmp_path / "elsewhere", "20260107-s0")
    assert listed("runs", f"remove={other}") == ["no run to remove"]  # it is not below output_dir
    assert listed("runs", "algo=ppo", "remove=20260101,20260104", "yes=true")[-1] == "1 of 1 runs removed"
    assert days(listed("runs")) == [5, 3, 2, 1]
    assert other.is_dir()


@pytest.mark.parametrize(("answer", "left"), [("y", [5, 4, 2, 1]), ("", [5, 4, 3, 2, 1]), ("no", [5, 4, 3, 2, 1])])
def test_a_person_is_asked_before_runs_are_removed(outputs, listed, monkeypatch, capsys, answer, left):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    lines = run_lines(["remove=20260103"])
    assert asked == ["remove 1 run with their checkpoints? [y/N] "]
    assert "20260103-s0  done, 10 env steps, best -3.0" in capsys.readouterr().out
    assert (lines == ["nothing was removed"]) == (len(left) == 5)
    assert days(listed("runs")) == left


def test_runs_are_named_tagged_and_annotated_afterwards(outputs, listed, drl_here):
    before = {path: path.read_text() for path in outputs.glob("*/*/*/config.yaml")}
    lines = listed("runs", "dqn", "set_name=wide", "set_tags=[paper,x y]", "set_notes=a: remark")
    assert lines[0] == "20260105-s0: name=wide, tags=['paper', 'x y'], notes=a: remark"
    assert days(listed("runs", "name=wide", "tag=x y", "notes=a:*")) == [5, 3, 2, 1]
    assert [run.parent.parent.name for run in find_runs(["wide"], str(outputs))].count("Pole") == 3
    for path, text in before.items():
        keys = yaml.safe_load(path.read_text())
        assert {key: keys[key] for key in yaml.safe_load(text)} == yaml.safe_load(text)  # all other values stay
    listed("runs", "20260103", "set_name=null")
    assert days(listed("runs", "name=null")) == [4, 3]
    for words, says in [
        (["set_name=x"], "error: set_name: say which runs, by the start of an id or key=value"),
        (["dqn", "set_name=a/*b"], "error: name: must be 1 to 60 letters"),
    ]:
        done = drl_here("list", "runs", *words)
        assert (done.returncode, done.stderr[: len(says)]) == (2, says)
    with lock(next(outputs.glob("*/*/20260101-s0")) / RUN_LOCK):
        done = drl_here("list", "runs", "20260101", "set_name=x")
    assert (done.returncode, done.stderr) == (
        2,
        "error: 20260101-s0 trains; change its name, tags and notes when it has ended\n",
    )


@pytest.fixture
def composed_run(composed):
    """Make the folder of a run with the config that these words compose."""

    def make(root, id, *words):
        config = to_yaml_keys(build(composed(*words, f"algo.preset={words[0][5:]}")))
        folder = make_run(root, id, env__name=id, command=words)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))

    return make


def test_values_that_follow_from_the_algorithm_are_no_difference(tmp_path, listed, composed_run):
    words = (
        ["algo=rainbow", "env=CartPole-v1"],
        ["algo=dqn", "env=Acrobot-v1", "worker.num=3", "stop.return=475"],
        ["algo=ppo", "env=CartPole-v1", "replay.capacity=4096"],
        ["algo=ppo", "env=CartPole-v1"],
    )
    for day, each in enumerate(words, 1):
        composed_run(tmp_path / "outputs", f"2026010{day}-s0", *each)
    _, *rows = [re.split(r"\s{2,}", line) for line in listed("runs", f"output_dir={tmp_path / 'outputs'}")]
    assert [(row[2], row[-1]) for row in reversed(rows)] == [
        *[("rainbow", "-"), ("dqn", "stop.return=475 worker.num=3"), ("ppo", "replay.capacity=4096")],
        ("ppo", "replay.capacity=65536"),
    ]


def test_values_that_nobody_typed_are_no_difference(tmp_path, listed, composed_run):
    words = (
        ["algo=sac", "env=X-v0", "total_env_steps=900", "orchestrator.min_inserts=128", "replay.capacity=1000"],
        ["algo=sac", "env=X-v0", "total_env_steps=900", "orchestrator.min_inserts=128", "replay.capacity=2000"],
        ["algo=sac", "env=X-v0", "total_env_steps=900", "orchestrator.min_inserts=255", "replay.capacity=1000"],
    )
    for day, each in enumerate(words, 1):
        composed_run(tmp_path, f"2026010{day}-s0", *each)
        record = next(tmp_path.glob(f"*/*/2026010{day}-s0/run.json"))
        record.write_text(json.dumps({"command": ["drl-train", *(each[:-1] if day == 1 else each[:-2])]}))
    _, *rows = [re.split(r"\s{2,}", line) for line in listed("runs", f"output_dir={tmp_path}")]
    assert [row[-1] for row in rows] == [f"orchestrator.min_inserts={num}" for num in (255, 128, 128)]


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        *[(["env=Pole"], [4, 3, 2, 1]), (["env=Po"], [4, 3, 2, 1]), (["env=*der"], [5])],
        *[(["env=Lander,Pole", "algo=ppo"], [4]), (["status=done"], [3, 2, 1])],
        *[(["status=done,killed", "seed=0"], [4, 3, 1]), (["algo.lr=0.5"], [3]), (["algo.lr=5e-1"], [3])],
        *[(["seed=1"], [2]), (["stop.return=null", "seed=1"], [2]), (["env.kwargs.g=5"], [5]), (["seed=word"], [])],
    ],
)
def test_filters(outputs, listed, conditions, found):
    assert days(listed("runs", *conditions)) == found


@pytest.mark.parametrize(
    ("sort", "found"), [("best", [4, 2, 1, 3]), ("final", [4, 2, 1, 3]), ("steps", [1, 2, 3]), ("seconds", [2, 1])]
)
def test_sorted_with_the_largest_first(outputs, listed, sort, found):
    assert days(listed("runs", "env=Pole", f"sort={sort}"))[: len(found)] == found
    if sort in ("best", "final"):
        assert days(listed("runs", f"sort={sort}"))[-1] == 5  # without evaluation


def test_limit_counts_the_runs_that_are_left_out(outputs, listed):
    lines = listed("runs", "limit=2")
    assert (days(lines), lines[-1]) == ([5, 4], "3 more: limit=5")
    assert "more" not in "".join(listed("runs", "limit=5"))


def test_means_over_seeds(outputs, listed):
    head, *lines = listed("runs", "seeds=mean")
    rows = [line.split() for line in lines]
    assert head.split()[:4] == ["env", "runs", "of", "seeds"]
    assert [(row[0], *row[1:-6]) for row in rows] == [
        *[("Lander", "algo=dqn"), ("Pole", "algo=ppo"), ("Pole", "algo=dqn", "algo.lr=0.5")],
        ("Pole", "algo=dqn", "algo.lr=0.001"),
    ]
    assert rows[-1][3:] == ["2", "2", "1,050", "45", "6.0", "5.5"]
    assert rows[0][-2:] == ["-", "-"]  # no evaluation
    make_run(outputs, "20260106-s2", seed=2, status="interrupted", summary={"env_steps": 0, "wall_s": 0})
    (line,) = [line for line in listed("runs", "seeds=mean", "env=Pole") if "dqn algo.lr=0.001" in line]
    assert line.split()[3:] == ["3", "2", "700", "30", "6.0", "5.5"]  # a run without evaluation is in no mean return
    make_run(outputs, "20260107-s2", seed=2, summary={"env_steps": 0, "wall_s": 0, "best_return": 9.0})
    (line,) = [line for line in listed("runs", "seeds=mean", "env=Pole") if "dqn algo.lr=0.001" in line]
    assert line.split()[3:6] == ["3", "3", "700"]  # of two runs with seed 2, the newest counts


def test_without_runs_there_is_no_error_and_another_folder_may_have_some(outputs, listed, tmp_path):
    os.rename(outputs, tmp_path / "elsewhere")
    for words in (["runs"], ["runs", "seeds=mean"]):
        assert listed(*words) == [f"no runs in {tmp_path / 'outputs'}"]
    assert listed("sweeps") == [f"no sweeps in {tmp_path / 'outputs' / 'multirun'}"]
    (line,) = listed("runs", "output_dir=elsewhere", "status=finished")
    assert line.startswith("none of 5 runs has status=finished; status is done (")
    assert len(days(listed("runs", "output_dir=elsewhere"))) == 5


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["sort=worst"], "sort: 'worst' is not one of newest, best, final, steps, seconds"),
        (["limit=0"], "limit: must be"),
    ],
)
def test_wrong_conditions_and_options(outputs, drl_here, args, said):
    done = drl_here("list", "runs", *args)
    assert (done.returncode, done.stderr.startswith(f"error: {said}")) == (2, True)


@pytest.fixture
def swept(outputs):
    """Two sweeps. The first job of the newer sweep failed, and its last job never began."""
    newer, older = (Sweep(outputs / "multirun" / name, []) for name in ("20260201", "20260131"))
    newer.add([["env=Pole", f"algo.lr={lr}", f"seed={seed}"] for lr in (0.1, 0.2) for seed in (0, 1)])
    for job, exit_code in zip(newer.jobs[:3], (1, 0, 0), strict=True):
        evals = [(10, 1.0, 2.5 * job.number)] if exit_code == 0 else ()
        job.exit_code, job.run = exit_code, make_run(outputs, f"20260201-s{job.number}", evals, seed=job.number)
    older.add([["env=Pole"]])
    for sweep in (newer, older):
        sweep.folder.mkdir(parents=True)
        sweep.save()
    return outputs


def test_sweeps_newest_first(swept, listed):
    head, *lines = [re.split(r"\s{2,}", line) for line in listed("sweeps")]
    assert head == ["sweep", "env", "algo", "jobs", "done", "best", "best run", "over"]
    assert lines == [
        ["20260201", "Pole", "dqn", "4", "2", "7.5", "20260201-s3", "algo.lr, seed"],
        ["20260131", "-", "-", "1", "0", "-", "-"],
    ]
    assert listed("sweeps", "limit=1")[1:] == [listed("sweeps")[1], "1 more"]


def test_the_runs_of_a_sweep(swept):
    shutil.rmtree(next(swept.glob("*/*/20260201-s2")))
    names = [path.name for path in find_runs(["multirun/20260201"], "outputs")]
    assert names == ["20260201-s1", "20260201-s3"]

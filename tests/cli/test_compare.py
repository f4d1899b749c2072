import csv
import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from run_folders import make_run

from drl_cli.cli.compare import answer
from drl_cli.cli.eval import play
from drl_cli.errors import UsageError
from drl_cli.run_folder.find import read_config
from drl_cli.runs.comparison import paired
from drl_cli.utils.seeding import integers


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Three seeds of two learning rates. One seed of the second rate never reaches 100."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "outputs"
    for seed in range(3):
        fast = [(100, 1.0, 10.0 * seed), (200, 2.0, 100.0 + seed), (300, 3.0, 90.0)]
        make_run(root, f"20260101-a{seed}", fast, algo__lr=0.1, seed=seed)
        slow = [(150, 4.0, 1.0 * seed), (300, 8.0, 99.0 + seed)]
        make_run(root, f"20260101-b{seed}", slow, algo__lr=0.2, seed=seed)
    return root


@pytest.fixture
def compare(drl_here):
    def run(*args):
        done = drl_here("compare", *args)
        return done.stdout.splitlines(), done.stderr, done.returncode

    return run


def rows_of(lines):
    """The cells of each line of the table, by the names of the columns."""
    head, *rows = [re.split(r"\s{2,}", line) for line in lines if not re.match(r"\d seeds? in|curves:|figure:", line)]
    return [dict(zip(head, row, strict=True)) for row in rows]


def points(path="compare.csv"):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_table(outputs, compare):
    lines, err, code = compare("runs=[outputs]", "threshold=100", "png=null", "csv=null")
    assert (err, code) == ("", 0)
    fast, slow = rows_of(lines)
    assert (fast["runs of"], fast["seeds"], fast["env steps"], fast["seconds"]) == ("algo.lr=0.1", "3", "300", "3")
    assert fast["final IQM [95%]"] == "90.0 [90.0, 90.0]"
    assert [fast[name] for name in ("goal", "reached", "steps to", "seconds to")] == ["100", "3/3", "200", "2"]
    assert slow["final IQM [95%]"] == "100.0 [99.0, 101.0]"
    assert [slow[name] for name in ("reached", "steps to", "seconds to")] == ["2/3", "300", "8"]
    assert "3 seeds in the smallest group: intervals of few seeds are too narrow" in lines
    assert [path.name for path in Path().iterdir()] == ["outputs"]
    _, slow = rows_of(compare("outputs", "threshold=101", "png=null", "csv=null")[0])
    assert [slow[name] for name in ("reached", "steps to", "seconds to")] == ["1/3", "-", "-"]  # too few for a median


def test_without_a_threshold_the_runs_own_goal_counts(outputs, compare):
    lines = compare("outputs", "png=null", "csv=null")[0]
    assert "reached" not in lines[0]
    make_run(outputs, "20260102-s0", [(50, 1.0, 3.0), (60, 2.0, 7.0)], env__name="Goal", stop__return=5.0)
    _, *rows = compare("outputs", "png=null", "csv=null")[0]
    (goal,) = [row for row in rows if row.startswith("Goal")]
    assert goal.split()[-4:] == ["5", "1/1", "60", "2"]
    assert [row.split()[-4:] for row in rows if row.startswith("Pole")] == [["-"] * 4] * 2


def test_csv_has_both_axes_of_every_group(outputs, compare):
    lines, _, _ = compare("outputs", "png=null")
    assert "curves: compare.csv" in lines
    rows = points()
    assert {(row["group"], row["axis"]) for row in rows} == {
        (f"algo.lr={lr}", axis) for lr in (0.1, 0.2) for axis in ("env_steps", "wall_s")
    }
    fast = [row for row in rows if row["group"] == "algo.lr=0.1" and row["axis"] == "env_steps"]
    assert [float(row["x"]) for row in fast] == [100, 200, 300]
    assert [float(row["iqm"]) for row in fast] == [10, 101, 90]
    assert [float(row["low"]) for row in fast] == [0, 100, 90]
    assert [float(row["high"]) for row in fast] == [20, 102, 90]
    assert {(row["env"], row["seeds"], row["held"]) for row in rows} == {("Pole", "3", "false")}
    seconds = [row for row in rows if row["group"] == "algo.lr=0.2" and row["axis"] == "wall_s"]
    assert [float(row["x"]) for row in seconds] == [4, 8]


def test_a_run_without_an_evaluation_is_left_out_and_named(outputs, compare):
    make_run(outputs, "20260103-s3", algo__lr=0.1, seed=3, status="running")
    lines, err, code = compare("outputs", "png=null", "csv=null")
    assert (err, code) == ("warning: 20260103-s3 (killed) has no evaluation yet and is left out\n", 0)
    assert rows_of(lines)[0]["seeds"] == "3"
    _, err, code = compare("latest")
    assert (err.splitlines()[-1], code) == ("error: none of these runs has an evaluation yet", 2)


def test_over_all_environments(outputs, compare):
    assert "over all" not in "".join(compare("outputs", "png=null", "csv=null")[0])
    for seed, lr in ((0, 0.1), (1, 0.2), (2, 0.2)):
        evals = [(100, 1.0, -10.0), (200, 1.0, -9.0 + seed)]
        make_run(outputs, f"20260103-s{seed}", evals, env__name="Goal", algo__lr=lr, seed=seed)
    lines, _, _ = compare("outputs", "png=null", "csv=null")
    at = next(i for i, line in enumerate(lines) if line.startswith("over all environments"))
    first, second = [re.split(r"\s{2,}", line) for line in lines[at + 1 : at + 3]]
    assert first == ["algo.lr=0.1", "4", "0.88"]  # 1/3 on Goal, 90/102 thrice on Pole; no interval with one seed
    assert second == ["algo.lr=0.2", "5", "0.98 [0.87, 0.99]"]


def test_notes_name_equal_seeds_and_keys_that_no_label_shows(outputs, compare):
    for seed, lr in itertools.product((3, 4), (0.1, 0.2)):
        make_run(outputs, f"20260102-{lr}-s{seed}", [(100, 1.0, 5.0)], algo__lr=lr, seed=seed)
    lines, _, _ = compare("outputs", "png=null", "csv=null")
    assert [row["seeds"] for row in rows_of(lines)] == ["5", "5"]
    assert not any(word in "".join(lines) for word in ("smallest group", "several runs have seed"))
    make_run(outputs, "20260103-s2", [(100, 1.0, 5.0)], algo__lr=0.1, seed=2)
    make_run(outputs, "20260103-s0", [(100, 1.0, 5.0)], algo__name="ppo", replay__sampler="fifo-once")
    lines, _, _ = compare("outputs", "png=null", "csv=null")
    (line,) = [line for line in lines if "seed 2" in line]
    assert line.endswith("algo.lr=0.1: several runs have seed 2: only the newest of them counts")
    assert "the algorithms' runs differ in these, too: replay.sampler" in lines


def test_a_group_that_mixes_other_keys_is_refused_and_the_advice_works(outputs, compare):
    lines, err, code = compare("outputs", "by=[mode]", "png=null", "csv=null")
    reason = (
        "by=[mode]: runs of one line differ in more than their seed: algo.lr; say by=[mode,algo.lr], or leave by out"
    )
    assert (lines, err, code) == ([], f"error: {reason}\n", 2)
    lines, err, code = compare("outputs", "by=[mode,algo.lr]", "png=null", "csv=null")
    assert ((err, code), [row["seeds"] for row in rows_of(lines)]) == (("", 0), ["3", "3"])


@pytest.mark.slow
def test_figure(outputs, compare):
    make_run(outputs, "20260103-s0", [(100, 1.0, 5.0)], env__name="Other")
    for name in ("compare.png", "curves.svg", "new folder/ü.png"):
        lines, err, code = compare("outputs", "threshold=50", "csv=null", f"png={name}")
        assert (err, code) == ("", 0)
        assert f"figure: {name}" in lines
    assert Path("compare.png").read_bytes().startswith(b"\x89PNG")
    drawn = Path("curves.svg").read_text()
    for text in (
        *("algo.lr=0.1 (3 seeds)", "algo.lr=0.2 (3 seeds)", "algo=dqn mode=single (1 seed)", "environment steps"),
        "wall-clock time [s]",
    ):
        assert f"<!-- {text}" in drawn


@pytest.mark.parametrize("asked", [[], ["png=x.png"]])
def test_without_matplotlib_there_are_table_and_csv(outputs, compare, monkeypatch, asked):
    monkeypatch.delitem(sys.modules, "drl_cli.runs.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lines, err, code = compare("outputs", *asked)
    assert lines[1].startswith("algo.lr=0.1")
    assert points()
    if asked:
        assert (err, code) == (
            "error: png=x.png needs matplotlib, which is not installed:  pip install 'drl-cli[plot]'\n",
            3,
        )
    else:
        assert (err, code) == ("", 0)
        assert lines[-1].startswith("figure: compare.png was not drawn, it needs matplotlib")


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        (["runs=[nope,neither*]"], "no run 'nope' in ", 2),
        (["outputs", "by=[algo.lrr]"], "by: no run has a key 'algo.lrr'. Did you mean algo.lr?", 2),
        (["outputs", "threshold=high"], "threshold: must be a number", 2),
        (["runs="], "runs: names no run", 2),
        (["threshold=1"], "runs: names no run; say drl-compare outputs\n", 2),
        (["output_dir=my runs"], "runs: names no run; say drl-compare 'my runs'\n", 2),
        (["outputs", "csv=/proc/no/where.csv", "png=null"], "can't be written: ", 7),
        (["outputs", "lines=[SAC:inf]"], "lines: must be [NAME:RETURN,...], as in lines=[SAC:6200], got 'inf'", 2),
        (["outputs", "lines=[SAC]"], "lines: must be [NAME:RETURN,...], as in lines=[SAC:6200], got 'SAC'", 2),
        (["outputs", "png=x.xyz"], "png: must end in .png, .pdf, .svg, got x.xyz", 2),
        (["outputs", "png=/proc/no/where.png", "csv=null"], "can't be written: ", 7),
    ],
)
def test_wrong_options_and_files(outputs, compare, args, said, code):
    _, err, ended = compare(*args)
    assert (err.startswith(f"error: {said}"), ended) == (True, code), err
    assert len(err.splitlines()) == (2 if "neither" in args[0] else 1)


def test_two_policies_in_the_same_episodes(copied, capsys):
    best, last = (str(copied / "checkpoints" / name) for name in ("best", "last"))
    assert answer([f"runs=[{last},{best}]", "paired=true", "episodes=5"]) == 0
    one, other, difference, share = capsys.readouterr().out.splitlines()
    seeds = integers(0, "confirm", 5)
    config = read_config(copied)
    first, second = (
        play(config, (copied / "checkpoints" / name).resolve(), seeds, False)[0].returns for name in ("last", "best")
    )
    assert one.endswith(f"mean {first.mean():.1f}")
    assert other.endswith(f"mean {second.mean():.1f}")
    assert re.match(rf"A - B: {(first - second).mean():.1f} \[.*\] over 5 episodes with the same seeds", difference)
    assert share.startswith(f"A is better in a share of {(first > second).mean():.2f} [")


def test_paired_scores():
    first, second = np.array([3.0, 1.0, 2.0, 5.0]), np.array([1.0, 1.0, 3.0, 1.0])
    (difference, low, high), (better, worst, best) = paired(first, second)
    assert (difference, better) == (1.25, 0.625)
    assert -1 <= low < 1.25 < high <= 4
    assert 0 <= worst < 0.625 < best <= 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["outputs", "paired=true"], "paired=true compares two runs, runs=[A,B], got 1"),
        (["outputs", "episodes=5"], "episodes: only paired=true plays episodes"),
    ],
)
def test_wrong_words_for_paired_episodes(outputs, words, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        answer(words)


def test_updates_are_not_taken_for_environment_steps(tmp_path, compare, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "outputs"
    make_run(root, "20260101-s0", [(1000, 1.0, 1.0), (2000, 2.0, 8.0)])
    make_run(root, "20260102-s0", [(10, 1.0, 3.0), (20, 2.0, 7.0)], mode="offline")
    lines, _, _ = compare(f"runs=[{root}]", "threshold=5", "png=null")
    rows = rows_of(lines)
    assert [(row["env steps"], row["steps to"]) for row in rows] == [("20 updates",) * 2, ("2,000",) * 2]
    assert {(point["group"], point["axis"]) for point in points()} == {
        *(("mode=offline", axis) for axis in ("opt_steps", "wall_s")),
        *(("mode=single", axis) for axis in ("env_steps", "wall_s")),
    }
    lines, _, _ = compare(f"runs=[{root}/Pole/dqn-offline]", "threshold=9", "png=null", "csv=null")
    assert [(row["updates"], row["steps to"]) for row in rows_of(lines)] == [("20", "-")]

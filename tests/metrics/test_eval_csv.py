"""eval.csv: the fixed columns first, and a column for whatever else an evaluation brings, also in one that goes on."""

import csv
import os

import pytest

from drl_cli.metrics.recorders import Csv
from drl_cli.metrics.truncate import truncate_records

FIXED = ("env_steps", "mean")


@pytest.fixture
def scores(tmp_path):
    return Csv(tmp_path / "eval.csv", FIXED)


def read(scores):
    with scores.path.open(newline="") as file:
        return list(csv.reader(file))


def row(step):
    return {"env_steps": step, "mean": step / 2}


def test_more_names_are_columns_at_the_end_in_the_order_in_which_they_came(scores):
    scores.write(row(1))
    scores.write(row(2), {"success": 1.0})
    scores.write(row(3), {"lap, time": 2.5, "success": 0.0})
    scores.write(row(4), {"lap, time": 3.5})
    assert read(scores) == [
        ["env_steps", "mean", "success", "lap, time"],
        ["1", "0.5", "", ""],
        ["2", "1.0", "1.0", ""],
        ["3", "1.5", "0.0", "2.5"],
        ["4", "2.0", "", "3.5"],
    ]


def test_a_file_that_goes_on_keeps_its_columns(scores):
    scores.write(row(1), {"b": 1.0, "a": 2.0})
    scores.close()
    again = Csv(scores.path, FIXED)
    again.write(row(2), {"a": 3.0, "c": 4.0})
    again.close()
    assert read(scores) == [
        ["env_steps", "mean", "b", "a", "c"],
        ["1", "0.5", "1.0", "2.0", ""],
        ["2", "1.0", "", "3.0", "4.0"],
    ]


def test_a_name_that_is_one_of_ours_does_not_change_it(scores):
    scores.write(row(8), {"mean": 100.0})
    with pytest.raises(KeyError):
        scores.write({"mean": 1.0})
    assert read(scores) == [list(FIXED), ["8", "4.0"]]


def test_what_was_recorded_after_a_checkpoint_is_taken_back_and_its_columns_stay(scores):
    scores.write(row(10), {"a": 1.0})
    scores.write(row(20), {"b": 2.0})
    scores.close()
    truncate_records(scores.path.parent, 10)
    again = Csv(scores.path, FIXED)
    again.write(row(20), {"b": 3.0})
    assert read(again) == [["env_steps", "mean", "a", "b"], ["10", "5.0", "1.0", ""], ["20", "10.0", "", "3.0"]]


def test_where_a_column_can_not_be_added_the_file_goes_on_as_it_was(scores, monkeypatch):
    scores.write(row(1))

    def full(*paths):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            scores.write(row(2), {"a": 1.0})
    scores.write(row(3))
    assert read(scores) == [list(FIXED), ["1", "0.5"], ["3", "1.5"]]
    scores.write(row(4), {"a": 2.0})
    assert read(scores)[-1] == ["4", "2.0", "2.0"]
    assert [path.name for path in scores.path.parent.iterdir()] == ["eval.csv"]

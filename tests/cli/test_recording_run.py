"""Recorders of a user in a run on Ray: they are imported in their process, and a failing recorder is a warning."""

import csv

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECORDERS = """
from pathlib import Path


class Own:
    def __init__(self, run):
        self.path = run.folder / "own.txt"
        print("own recorder made")

    def record(self, scalars, env_steps):
        with self.path.open("a") as file:
            file.write(f"{env_steps} {sorted(scalars)}\\n")

    def close(self, status):
        with self.path.open("a") as file:
            file.write(f"{status}\\n")


class Failing(Own):
    def record(self, scalars, env_steps):
        raise RuntimeError("the server is gone")
"""


def test_a_run_records_and_warns_once(drl, tiny, tmp_path, user_folder):
    (tmp_path / "own_recorders.py").write_text(RECORDERS)
    tell = (user_folder / "user_envs.py").read_text().replace("False, {}\n", 'False, {"success": self.count > 3}\n')
    (tmp_path / "user_envs.py").write_text(tell)
    done = drl(
        *("train", "env=user_envs:Tiny-v0", "mode=async", "logger.recorders=[own_recorders:Own,own_recorders:Failing]"),
        *(*tiny, "debug.in_process=false", "env.max_episode_steps=null", "logger.report_s=0.2"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "own_recorders" in line]
    assert line.startswith("warning: own_recorders:Failing record raised RuntimeError: the server is gone")
    (folder,) = tmp_path.glob("outputs/*/*/*")
    told = [
        line for line in (folder / "train.log").read_text().splitlines() if line.endswith("manage: own recorder made")
    ]
    assert len(told) == done.stdout.splitlines().count("manage: own recorder made") == 2  # Failing is made, too
    own = (folder / "own.txt").read_text()
    assert "eval/success" in own
    assert "rollout/success" in own
    assert own.endswith("done\n")
    rows = list(csv.DictReader((folder / "eval.csv").open()))
    assert {row["success"] for row in rows} == {"1.0"}

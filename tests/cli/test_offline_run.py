import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from datasets import record
from numpy.lib import format as npy

from drl_cli.cli.compare import answer as compare
from drl_cli.cli.list_runs import run_lines
from drl_cli.cli.train import answer
from drl_cli.run_folder.saved_run import Run

pytestmark = pytest.mark.slow

WORDS = (
    *("mode=offline", "data=cartpole.npz", "env=CartPole-v1", "algo=dqn", "replay=prioritized"),
    *("network.hidden=[16,16]", "trainer.batch_size=32", "manage.eval_episodes=2"),
    *("debug.in_process=true", "logger.tensorboard=false"),
)


def test_a_killed_run_resumes_to_the_weights_of_the_unbroken_run(start, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record("CartPole-v1", tmp_path / "cartpole.npz", 400)
    words = (*WORDS, "total_updates=4000", "checkpoint.period=500", "manage.eval_period=1500")
    run = start(*words)
    run.until(lambda: run.saved >= 1000)
    run.send(signal.SIGKILL, group=True)
    run.wait()
    killed, saved = run.folder, run.saved
    assert json.loads((killed / "run.json").read_text())["status"] == "running"
    assert answer([f"resume={killed}"]) == 0
    assert f"from update {saved:,}" in capsys.readouterr().out
    shutil.move(killed, tmp_path / "resumed")
    assert answer([*words]) == 0
    folders = (run.folder, tmp_path / "resumed")
    first, second = ((folder / "checkpoints/last/model.safetensors").read_bytes() for folder in folders)
    assert first == second
    lines = [(folder / "eval.csv").read_text().splitlines() for folder in folders]
    assert [line.split(",")[:2] for line in lines[0]] == [line.split(",")[:2] for line in lines[1]]
    assert len(lines[0]) == 4  # the header, and evaluations at 1500, 3000 and 4000


def test_its_weights_start_a_run_in_an_environment_and_both_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record("CartPole-v1", tmp_path / "cartpole.npz", 400)
    assert answer([*WORDS, "total_updates=40", "manage.eval_period=20", "data.reference=[0,500]"]) == 0
    out = capsys.readouterr().out
    (offline,) = tmp_path.glob("outputs/CartPole-v1/dqn-offline/*")
    final = Run(offline).final
    assert re.search(rf"eval  return +{final:.1f} .*  score {final / 5:.1f}  best", out)
    (*_, last) = csv.DictReader((offline / "eval.csv").open())
    assert float(last["normalized_score"]) == pytest.approx(float(last["mean"]) / 5)
    assert run_lines([])[0].splitlines()[1].split()[-1] == f"{final / 5:.1f}"
    assert "data: cartpole.npz: 4" in out
    assert "40 updates" in out
    assert "env steps" not in out
    online = [f"load_weights={offline}", "mode=single", "total_env_steps=200", *WORDS[2:]]
    assert answer([*online, "orchestrator.min_inserts=64", "worker.envs=2", "worker.block_rows=32"]) == 0
    capsys.readouterr()
    (later,) = tmp_path.glob("outputs/CartPole-v1/dqn-single/*")
    assert (Run(offline).position, Run(later).position) == (40, 224)
    assert compare([f"runs=[{offline},{later}]", "png=null", "csv=null"]) == 0
    out = capsys.readouterr().out
    assert {"env steps", "40 updates"} <= {*re.split(" {2,}", out.replace("\n", "  "))}
    assert compare([f"{offline}", "png=null", "csv=curve.csv"]) == 0
    out = capsys.readouterr().out
    assert "  updates  " in out
    assert re.search(rf"score\n.*  {final / 5:.1f}$", out, re.MULTILINE)
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert [line.split(",")[3] for line in lines if ",opt_steps," in line] == ["20.0", "40.0"]


def write_zeros(path, steps, size):
    """Write a dataset of zeros, with observations of `size` numbers, without holding it in memory."""
    shapes = {"observations": (steps, size), "actions": (steps, 1), "rewards": (steps,)}
    shapes |= {"terminations": (steps,), "truncations": (steps,)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, shape in shapes.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
                part = np.zeros((1000, *shape[1:]), np.float32)
                part[-1] = name == "truncations"
                for _ in range(0, steps, 1000):
                    file.write(part.tobytes())


@pytest.mark.exhaustive
def test_a_dataset_larger_than_the_memory_limit_trains(tmp_path):
    write_zeros(tmp_path / "big.npz", 400_000, 400)
    limit = 400 << 20
    assert (tmp_path / "big.npz").stat().st_size > 1.5 * limit
    words = ["mode=offline", "data=big.npz", "env=none", "algo=td3", "total_updates=20", "network.hidden=[16]"]
    words += ["trainer.batch_size=32", "trainer.threads=1", "debug.in_process=true", "logger.tensorboard=false"]

    def train(capacity):
        command = [sys.executable, "-m", "drl_cli.cli.train", *words, f"replay.capacity={capacity}"]
        limited = ["bash", "-c", f'ulimit -d {limit >> 10}; exec "$@"', "-", *command]
        return subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = train(10_000)
    assert done.returncode == 0, done.stderr
    assert "20 updates" in done.stdout
    assert train(400_000).returncode != 0  # a table with the whole dataset is above the limit

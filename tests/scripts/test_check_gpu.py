"""scripts/check gpu: its rows, their limits and its table, with small programs or a CPU in place of a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drl_cli.preflight.preflight import preflight
from drl_cli.settings.compose import compose

SCRIPTS = Path(__file__).parents[2] / "scripts"
spec = importlib.util.spec_from_file_location("check_gpu", SCRIPTS / "check_gpu.py")
check_gpu = importlib.util.module_from_spec(spec)
sys.modules["check_gpu"] = check_gpu  # dataclasses look their module up
spec.loader.exec_module(check_gpu)


def row(name, code, **options):
    return check_gpu.Row(name, [sys.executable, "-c", code], **options)


def run(*rows, seconds=60.0):
    """Return what became of rows, by name: the result and the reason."""
    results = check_gpu.run_in_order(rows, time.monotonic() + seconds)
    return {one.name: (one.result, one.reason) for one in results}


def is_alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
def test_without_a_gpu_one_line_says_so_and_the_exit_status_is_3():
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([SCRIPTS / "check", "gpu"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "scripts/check gpu: torch finds no device cuda here, so nothing was run\n"


def test_an_error_ends_only_its_row_and_the_rows_that_need_it():
    error = "import sys; print('warning', file=sys.stderr); raise MemoryError('CUDA out of memory')"
    assert run(row("a", error), row("b", "", needs="a"), row("c", "", needs="b"), row("d", "")) == {
        "a": ("failed", "exit status 1: MemoryError: CUDA out of memory"),
        "b": ("not run", "needs 'a'"),
        "c": ("not run", "needs 'b'"),
        "d": ("ok", ""),
    }


def test_the_limit_of_a_row_ends_the_row_with_all_of_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(check_gpu, "LIMIT_S", 1.0)
    child = [sys.executable, "-c", "import time; time.sleep(100)"]
    slow = f"import subprocess; p = subprocess.Popen({child}); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))"
    assert run(row("slow", f"{slow}; p.wait()"), row("next", "")) == {
        "slow": ("failed", "ended after 1 s"),
        "next": ("ok", ""),
    }
    pid, deadline = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_a_row_has_its_own_environment_and_is_checked():
    code = "import json, os; print(json.dumps({'graphs': int(os.environ['GRAPHS'])}))"
    rows = [row(n, code, env={"GRAPHS": n}, check=check_gpu.has_graphs) for n in ("0", "1")]
    assert run(*rows) == {"0": ("failed", "no CUDA graph was launched"), "1": ("ok", "")}
    assert "GRAPHS" not in os.environ


def test_a_run_moves_to_the_gpu_and_back_and_is_exported(tmp_path):
    rows = {one.name: one for one in check_gpu.run_rows("sac", "cuda", tmp_path)}
    words = {name: " ".join(map(str, one.command)) for name, one in rows.items()}
    first, there, back, export, other = rows
    assert [rows[name].needs for name in rows] == ["", first, there, back, ""]
    assert "device=cpu total_env_steps=1024" in words[first]
    assert "resume=latest device=cuda total_env_steps=2048" in words[there]
    assert "resume=latest device=cpu total_env_steps=3072" in words[back]
    assert "drl-export run=latest" in words[export]
    for word in ("mode=async", "device=cuda", "precision=bf16", "trainer.compile=true"):
        assert word in words[other].split()


@pytest.mark.slow
@pytest.mark.parametrize("case", check_gpu.CASES)
def test_drl_train_accepts_the_words_of_every_run(case, tmp_path):
    for device in ("cuda", "cpu"):  # with a CPU in place of the GPU, the runs are small
        for one in check_gpu.run_rows(case, device, tmp_path):
            words = [word.replace("=cuda", "=cpu") for word in one.command[1:]]
            if "resume=latest" not in words and "run=latest" not in words:
                preflight(compose(words), words)


def test_every_case_is_measured_in_both_precisions_and_all_ways():
    rows = check_gpu.speed_rows([*check_gpu.CASES], "cuda")
    names = {one.name for one in rows}
    assert len(rows) == len(names) == 4 * 2 * 3
    assert {"sac: float32 eager", "image: bf16 compiled", "ppo: bf16 graphs"} <= names
    for one in rows:
        has_graphs = one.name.endswith("graphs")
        assert (one.env.get("TORCHINDUCTOR_CUDAGRAPHS") == "1") == has_graphs
        assert bool(one.check({"graphs": 0})) == has_graphs


def test_the_table_and_the_json_have_every_row_and_a_failure_is_the_exit_status(tmp_path, monkeypatch, capsys):
    rates = {"eager": "4.0", "compiled": "6.0"}
    rows = [row(f"sac: bf16 {how}", f"print('{{\"updates/s\": {rate}}}')") for how, rate in rates.items()]
    monkeypatch.setattr(check_gpu, "run_rows", lambda case, device, folder: [row(f"{case}: export", "")])
    monkeypatch.setattr(check_gpu, "speed_rows", lambda cases, device: rows)
    arguments = ["--device", "cpu", "--only", "sac", "--json", str(tmp_path / "new/gpu.json")]
    assert check_gpu.main(arguments) == 0
    rows.append(row("sac: bf16 graphs", "import sys; sys.exit('a | b')"))
    assert check_gpu.main(arguments) == 1
    out = capsys.readouterr().out
    assert "no figure is a measurement" in out
    cells = {line.split(" | ")[0]: line.split(" | ") for line in out.splitlines() if line.startswith("| sac")}
    assert (cells["| sac: export"][1], cells["| sac: bf16 compiled"][3:5]) == ("ok", ["6", "1.5"])
    assert cells["| sac: bf16 graphs"][-1] == "exit status 1: a / b |"
    saved = json.loads((tmp_path / "new/gpu.json").read_text())
    assert [one["result"] for one in saved["rows"]] == ["ok", "ok", "ok", "failed"]
    assert saved["rows"][2]["figures"]["of eager"] == 1.5


@pytest.mark.slow
def test_a_trainer_is_measured(capsys):
    check_gpu.measure("dqn", "float32", "eager", "cpu", seconds=0.05)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    figures = {name: value for line in lines for name, value in line.items()}
    assert figures.keys() == {"first s", "updates/s", "MB", "kernels", "graphs", "waits"}
    assert figures["updates/s"] > 0
    assert figures["MB"] > 1


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", check_gpu.CASES)
def test_every_row_runs_with_a_cpu_in_place_of_a_gpu(case, tmp_path, monkeypatch):
    monkeypatch.setattr(check_gpu, "LIMIT_S", 400.0)  # a CPU that is busy takes long to compile
    arguments = ["--device", "cpu", "--minutes", "14", "--only", case, "--json", str(tmp_path / "gpu.json")]
    check_gpu.main(arguments)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert {one["name"]: one["reason"] for one in rows if one["result"] != "ok"} == {}

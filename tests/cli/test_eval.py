"""drl-eval on a small run."""

import json
import re
import shutil
import statistics
import sys

import numpy as np
import pytest
import yaml

from drl_cli.cli.eval import main
from drl_cli.runs.statistics import interval
from drl_cli.utils.seeding import integers


@pytest.fixture
def copied(small_run, tmp_path):
    """A copy of the small run, to be damaged."""
    folder = tmp_path / "outputs" / "Pendulum-v1" / "sac-async" / small_run.folder.name
    shutil.copytree(small_run.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("eval*.json"))
    return folder


@pytest.fixture(scope="module")
def evaluated(small_run, drl):
    """`drl-eval episodes=3` where the run was made; the process and eval.json."""
    done = drl("eval", "episodes=3", cwd=small_run.cwd)
    return done, json.loads((small_run.folder / "eval.json").read_text())


@pytest.fixture
def ask(copied, monkeypatch, capsys):
    """drl-eval in this process, in the folder with the copied run: lines, errors, exit code, eval.json."""
    monkeypatch.chdir(copied.parents[3])

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["drl-eval", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        captured, result = capsys.readouterr(), copied / "eval.json"
        found = json.loads(result.read_text()) if result.exists() else None
        return captured.out.splitlines(), captured.err.splitlines(), code, found

    return run


@pytest.fixture
def twin(copied):
    """A second run beside the copied one, of another seed."""
    folder = copied.with_name("20990101-000000-000000-s8")
    shutil.copytree(copied, folder, symlinks=True)
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"seed": 8}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def one_error(done, code):
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_table_and_eval_json_agree(evaluated, small_run):
    done, result = evaluated
    assert (done.returncode, done.stderr) == (0, "")
    assert small_run.folder.name in done.stdout
    assert result["checkpoint"] == (small_run.folder / "checkpoints" / "best").readlink().name
    assert result["checkpoint"] in done.stdout
    returns = result["returns"]
    assert len(returns) == result["episodes"] == 3
    assert result["mean"] == pytest.approx(statistics.mean(returns))
    assert result["std"] == pytest.approx(statistics.pstdev(returns))
    assert (result["min"], result["max"]) == (min(returns), max(returns))
    assert result["median"] == statistics.median(returns)
    assert result["length_mean"] == 200  # the environment's own limit, not that of training episodes
    assert re.search(rf"mean {result['mean']:.1f}\b", done.stdout)


def test_its_seeds_are_none_of_trainings(evaluated, small_run):
    _, result = evaluated
    assert len(set(result["seeds"])) == 3
    evaluations = integers(3, "evaluate", 1000)
    workers = [seed for index in range(8) for seed in integers(3, "worker", 64, index, 0)]
    assert not set(result["seeds"]) & {*evaluations, *workers}


def test_the_same_command_gives_the_same_and_another_seed_other_episodes(evaluated, copied, drl):
    _, first = evaluated
    assert drl("eval", f"run={copied}", "episodes=3", cwd=copied).returncode == 0
    assert json.loads((copied / "eval.json").read_text())["returns"] == first["returns"]
    assert drl("eval", f"run={copied}", "episodes=3", "seed=1", cwd=copied).returncode == 0
    other = json.loads((copied / "eval.json").read_text())
    assert not set(other["seeds"]) & set(first["seeds"])
    assert other["returns"] != first["returns"]


def test_min_return_decides_the_exit_code(copied, drl, evaluated):
    mean = evaluated[1]["mean"]
    low = drl("eval", f"run={copied}", "episodes=3", f"min_return={mean + 1}", cwd=copied)
    assert "below min_return" in one_error(low, 9)
    assert f"mean {mean:.1f}" in low.stdout
    enough = drl("eval", f"run={copied}", "episodes=3", f"min_return={mean - 1}", cwd=copied)
    assert (enough.returncode, enough.stderr) == (0, "")


def test_another_checkpoint_by_name(copied, drl):
    first = min(path.name for path in (copied / "checkpoints").glob("step_*"))
    done = drl("eval", f"run={copied}", f"checkpoint={first}", "episodes=1", cwd=copied)
    assert done.returncode == 0
    assert json.loads((copied / "eval.json").read_text())["checkpoint"] == first


def test_a_bad_run_is_exit_2(drl, tmp_path):
    line = one_error(drl("eval", "run=nope", cwd=tmp_path), 2)
    assert "no run 'nope'" in line
    assert str(tmp_path / "outputs") in line


def test_bad_options_are_exit_2_all_at_once(drl, tmp_path):
    done = drl("eval", "runn=x", "episodes=0", "seed=-1", cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert "Did you mean run?" in lines[0]


def test_a_tampered_model_is_exit_8(copied, drl):
    model = copied / "checkpoints" / "best" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    line = one_error(drl("eval", f"run={copied}", cwd=copied), 8)
    assert "model.safetensors" in line
    assert not (copied / "eval.json").exists()


def test_a_missing_checkpoint_is_exit_8(copied, drl):
    assert "step_42" in one_error(drl("eval", f"run={copied}", "checkpoint=step_42", cwd=copied), 8)


@pytest.mark.parametrize("manifest", ["{}", "[]", '{"sha'])
def test_a_damaged_manifest_is_exit_8(copied, drl, manifest):
    (copied / "checkpoints" / "best" / "manifest.json").write_text(manifest)
    assert "manifest.json" in one_error(drl("eval", f"run={copied}", cwd=copied), 8)


def test_weights_that_do_not_fit_the_config_are_exit_8(copied, drl):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["network"]["hidden"] = [8]
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    one_error(drl("eval", f"run={copied}", "episodes=1", cwd=copied), 8)


def test_an_environment_that_is_gone_is_exit_2(copied, drl):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["env"]["id"] = "module_that_is_gone:Env-v0"
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    assert "module_that_is_gone" in one_error(drl("eval", f"run={copied}", "episodes=1", cwd=copied), 2)


def test_an_environment_that_raises_is_exit_4(copied, drl, user_folder):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["env"] |= {"id": "user_envs:Tiny-v0", "kwargs": {"fail": "step"}}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    done = drl("eval", f"run={copied}", "episodes=1", cwd=user_folder)
    assert "the arm fell off" in one_error(done, 4)


def test_the_mean_has_a_bootstrap_interval(evaluated):
    done, result = evaluated
    low, high = interval([np.array(result["returns"])], np.mean)
    assert result["mean_interval_95"] == pytest.approx([low, high])
    assert f"mean {result['mean']:.1f} [{low:.1f}, {high:.1f}]  std" in done.stdout


def test_one_episode_has_no_interval(ask):
    lines, _, _, result = ask("episodes=1")
    assert result["mean_interval_95"] is None
    assert f"mean {result['mean']:.1f}  std" in lines[1]


def test_nothing_that_was_found_is_lost(ask, copied):
    name = (copied / "checkpoints" / "best").readlink().name
    old = {"checkpoint": "step_1", "mean": 3.0}
    (copied / "eval.json").write_text(json.dumps(old))
    first, second = ask("episodes=1"), ask("episodes=1", "seed=1")
    again = ask("episodes=1")
    assert [lines[-1] for lines, *_ in (first, second, again)] == [
        f"kept in eval-{name}-1.json",
        f"kept in eval-{name}-2.json",
        f"kept in eval-{name}-1.json",
    ]
    kept = {path.name: json.loads(path.read_text()) for path in copied.glob("eval-*.json")}
    assert kept == {"eval-step_1-1.json": old, f"eval-{name}-1.json": first[3], f"eval-{name}-2.json": second[3]}
    assert again[3] == first[3] != second[3]


def test_checkpoints_by_name_link_and_number(ask, copied):
    steps = sorted(path.name for path in (copied / "checkpoints").glob("step_*") if not path.name.endswith("-best"))
    number = int(steps[0].removeprefix("step_"))
    last = (copied / "checkpoints" / "last").readlink().name
    for asked, found in ((number, steps[0]), (f"{number}.0", steps[0]), (steps[-1], steps[-1]), ("last", last)):
        assert ask("episodes=1", f"checkpoint={asked}")[3]["checkpoint"] == found


def test_a_missing_checkpoint_lists_those_that_exist(ask, copied):
    _, (line,), code, _ = ask("checkpoint=1234567")
    steps = sorted(path.name for path in (copied / "checkpoints").glob("step_*"))
    assert code == 8
    assert line.endswith(f"there is: best, last, {', '.join(steps)}")
    shutil.rmtree(copied / "checkpoints")
    _, (line,), code, _ = ask()
    assert (code, line.rpartition("; ")[2]) == (8, "there is none")


def test_arguments_of_the_environment(ask, copied):
    plain = ask("episodes=2")[3]
    changed = ask("episodes=2", "env.kwargs.g=2.5")[3]
    assert (plain["env_kwargs"], changed["env_kwargs"]) == ({}, {"g": 2.5})
    assert changed["seeds"] == plain["seeds"]
    assert changed["returns"] != plain["returns"]
    assert ask("episodes=2", "+env.kwargs.g=1e1")[3]["returns"] == plain["returns"]  # what it is by default
    config = yaml.safe_load((copied / "config.yaml").read_text())
    for group, key in (("env", "kwargs"), ("manage", "env_kwargs")):  # of the run, and of its evaluations alone
        other = config | {group: config[group] | {key: {"g": 2.5}}}
        (copied / "config.yaml").write_text(yaml.safe_dump(other))
        assert ask("episodes=2")[3]["returns"] == changed["returns"]
        assert ask("episodes=2", "env.kwargs.g=10")[3]["returns"] == plain["returns"]
    _, (line,), code, _ = ask("env.kwargs.gg=2")
    assert code != 0
    assert "gg" in line


def test_what_the_environment_says_is_shown_and_kept(ask, copied):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["env"] |= {"id": "telling:Telling-v0", "kwargs": {"width": 3, "level": 2}}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    lines, _, _, result = ask("episodes=2", "env.kwargs.level=5")
    assert (result["mean"], result["info"]["cost"], result["info"]["level"]) == (4.0, 4.0, 5.0)
    assert "cost 4  level 5" in lines[2]


@pytest.mark.parametrize("arg", ["env.kwargs.g", "env.kwargs.=3", "env.kwargs.g=[1", "env.kwargs.g="])
def test_arguments_that_can_not_be_read(ask, arg):
    assert ask(arg)[1:3] == ([f"error: {arg}: say env.kwargs.NAME=value"], 2)


def test_stochastic_explores_the_same_way_for_the_same_seed(ask):
    (greedy, _, _, best), first, again = ask("episodes=2"), *(ask("episodes=2", "stochastic=true") for _ in range(2))
    assert (best["stochastic"], first[3]["stochastic"]) == (False, True)
    assert first[3]["returns"] == again[3]["returns"] != best["returns"]
    assert ("greedy" in greedy[0], "stochastic" in first[0][0]) == (True, True)


@pytest.mark.parametrize("patterns", [["runs=[outputs]"], ["20", "latest"]])
def test_several_runs(ask, copied, twin, patterns):
    lines, errors, code, result = ask(*patterns, "episodes=2")
    other = json.loads((twin / "eval.json").read_text())
    assert (errors, code) == ([], 0)
    assert not set(other["seeds"]) & set(result["seeds"])
    table = {line.split()[0]: line for line in lines[6:]}
    for folder, found in ((copied, result), (twin, other)):
        low, high = found["mean_interval_95"]
        assert f"  {found['mean']:.1f} [{low:.1f}, {high:.1f}]  " in table[folder.name]
    middle = (result["mean"] + other["mean"]) / 2
    assert lines[-1].startswith(f"Pendulum-v1 algo=sac mode=async: IQM over 2 runs {middle:.1f} [")


def test_a_run_that_can_not_be_evaluated_does_not_keep_the_others_from_it(ask, copied, twin):
    (twin / "config.yaml").write_text("")
    _, (line,), code, result = ask("runs=[outputs]", "episodes=1")
    assert (code, str(twin) in line, result is None) == (8, True, False)


def test_every_run_has_to_be_above_min_return(ask, copied, twin):
    _, lines, code, _ = ask("runs=[outputs]", "episodes=1", "min_return=0")
    assert code == 9
    assert [line.split()[1] for line in lines] == [f"{folder.name}:" for folder in (copied, twin)]


def test_no_runs_at_all(ask):
    assert ask("runs=[]")[1:3] == (["error: runs: names no run"], 2)


def test_run_and_runs_are_not_both_said(ask):
    assert ask("run=latest", "runs=[latest]")[1:3] == (["error: run names one run, runs several: say one of them"], 2)


def test_help_lists_the_options(drl, tmp_path):
    done = drl("eval", "--help", cwd=tmp_path)
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()[2:10]]
    assert names == ["run", "runs", "episodes", "checkpoint", "seed", "stochastic", "min_return", "output_dir"]

"""drl-eval on a small run."""

import json
import re
import shutil
import statistics

import pytest
import yaml

from drl_cli.utils.seeding import integers


@pytest.fixture
def copied(small_run, tmp_path):
    """A copy of the small run, to be damaged."""
    folder = tmp_path / "outputs" / "Pendulum-v1" / "sac-async" / small_run.folder.name
    shutil.copytree(small_run.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("eval.json"))
    return folder


@pytest.fixture(scope="module")
def evaluated(small_run, drl):
    """`drl-eval episodes=3` where the run was made; the process and eval.json."""
    done = drl("eval", "episodes=3", cwd=small_run.cwd)
    return done, json.loads((small_run.folder / "eval.json").read_text())


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


def test_help_lists_the_options(drl, tmp_path):
    done = drl("eval", "--help", cwd=tmp_path)
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert names == ["run", "episodes", "checkpoint", "seed", "min_return", "output_dir"]

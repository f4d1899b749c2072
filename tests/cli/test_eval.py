import json
import shutil
import statistics

import numpy as np
import pytest
import yaml

from drl_cli.runs.comparison import interval
from drl_cli.settings.trust import remember
from drl_cli.utils.seeding import integers


@pytest.fixture(scope="module")
def evaluated(small_run, drl):
    """`drl-eval episodes=3` in the folder of the small run: the process and eval.json."""
    done = drl("eval", "episodes=3", cwd=small_run.cwd)
    return done, json.loads((small_run.folder / "eval.json").read_text())


@pytest.fixture
def ask(copied, drl_here):
    """Run drl-eval beside a copy of the small run. Return lines, errors, exit code, and the content of eval.json."""

    def run(*args):
        done, result = drl_here("eval", *args), copied / "eval.json"
        found = json.loads(result.read_text()) if result.exists() else None
        return done.stdout.splitlines(), done.stderr.splitlines(), done.returncode, found

    return run


@pytest.fixture
def refused(ask):
    """Run drl-eval, and return its exit code and its only error."""

    def run(*args):
        _, (line,), code, _ = ask(*args)
        assert line.startswith("error: ")
        return code, line

    return run


@pytest.fixture
def twin(copied):
    """A second run beside the copied run, with another seed."""
    folder = copied.with_name("20990101-000000-000000-s8")
    shutil.copytree(copied, folder, symlinks=True)
    change_config(folder, seed=8)
    return folder


def change_config(folder, **groups):
    """Change keys of a run's config, as if the user had made the run so: `group={key: value}`, or `key=value`."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for name, value in groups.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    remember(folder / "config.yaml", config)


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
    low, high = interval([np.array(returns)], np.mean)
    assert result["mean_interval_95"] == pytest.approx([low, high])
    assert f"mean {result['mean']:.1f} [{low:.1f}, {high:.1f}]  std" in done.stdout


def test_its_seeds_differ_from_the_seeds_of_training(evaluated, small_run):
    _, result = evaluated
    assert len(set(result["seeds"])) == 3
    evaluations = integers(3, "evaluate", 1000)
    workers = [seed for index in range(8) for seed in integers(3, "worker", 64, index, 0)]
    assert not set(result["seeds"]) & {*evaluations, *workers}


def test_the_same_command_gives_the_same_and_another_seed_other_episodes(evaluated, ask):
    _, first = evaluated
    assert ask("episodes=3")[3]["returns"] == first["returns"]
    other = ask("episodes=3", "seed=1")[3]
    assert not set(other["seeds"]) & set(first["seeds"])
    assert other["returns"] != first["returns"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--episodes", "5"], "no flag '--episodes': options have no dashes; say episodes=5"),
        (["-x"], "no flag '-x'.   options: run, runs, episodes"),
        (["outputs"], "Say latest for the newest run."),
        (["lastest"], "Did you mean latest?"),
        (["run="], "run: say which run: latest, a path, the start of a run id, or a run's name"),
    ],
)
def test_words_that_are_no_options(refused, args, says):
    code, line = refused(*args)
    assert (code, says in line) == (2, True), line


def test_a_run_of_an_older_version_is_evaluated_with_a_warning(ask, copied):
    record = json.loads((copied / "run.json").read_text())
    record["versions"] |= {"torch": "1.0.0", "drl-cli": "0.0.1"}
    (copied / "run.json").write_text(json.dumps(record))
    config = yaml.safe_load((copied / "config.yaml").read_text())
    for group, key in (("algo", "preset"), ("sweep", "max_jobs"), ("env", "wrappers"), ("replay", "compress")):
        del config[group][key]
    del config["precision"]
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    _, (warning,), code, _ = ask("episodes=1")
    assert code == 0
    assert "was made with drl-cli 0.0.1 (here " in warning
    assert ", torch 1.0.0 (here " in warning


def test_min_return_decides_the_exit_code(ask, evaluated):
    mean = evaluated[1]["mean"]
    lines, (error,), code, _ = ask("episodes=3", f"min_return={mean + 1}")
    assert (code, "below min_return" in error, f"mean {mean:.1f}" in lines[1]) == (9, True, True)
    assert ask("episodes=3", f"min_return={mean - 1}")[1:3] == ([], 0)


def test_a_changed_model_is_exit_8(copied, refused):
    model = copied / "checkpoints" / "best" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    code, line = refused()
    assert (code, "model.safetensors" in line, (copied / "eval.json").exists()) == (8, True, False)


def test_a_config_that_does_not_fit_or_an_environment_that_fails(copied, refused, user_folder, monkeypatch):
    monkeypatch.syspath_prepend(str(user_folder))
    change_config(copied, network={"hidden": [8]})
    assert refused("episodes=1")[0] == 8
    change_config(copied, network={"hidden": [16, 16]}, env={"id": "module_that_is_gone:Env-v0"})
    code, line = refused("episodes=1")
    assert (code, "module_that_is_gone" in line) == (2, True)
    change_config(copied, env={"id": "user_envs:Tiny-v0", "kwargs": {"fail": "step"}})
    code, line = refused("episodes=1")
    assert (code, "the arm fell off" in line) == (4, True)


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


def test_arguments_of_the_environment(ask, copied):
    plain, changed = ask("episodes=2")[3], ask("episodes=2", "env.kwargs.g=2.5")[3]
    assert (plain["env_kwargs"], changed["env_kwargs"]) == ({}, {"g": 2.5})
    assert changed["seeds"] == plain["seeds"]
    assert changed["returns"] != plain["returns"]
    assert ask("episodes=2", "+env.kwargs.g=1e1")[3]["returns"] == plain["returns"]  # the default value
    for group, key in (("env", "kwargs"), ("manage", "env_kwargs")):  # of the run, and of its evaluations alone
        change_config(copied, **{group: {key: {"g": 2.5}}})
        assert ask("episodes=2")[3]["returns"] == changed["returns"]
        assert ask("episodes=2", "env.kwargs.g=10")[3]["returns"] == plain["returns"]
        change_config(copied, **{group: {key: {}}})


def test_values_in_info_are_shown_and_kept(ask, copied):
    change_config(copied, env={"id": "telling:Telling-v0", "kwargs": {"width": 3, "level": 2}})
    lines, _, _, result = ask("episodes=2", "env.kwargs.level=5")
    assert (result["mean"], result["info"]["cost"], result["info"]["level"]) == (4.0, 4.0, 5.0)
    assert "cost 4  level 5" in lines[2]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        *(([arg], f"{arg}: say env.kwargs.NAME=value") for arg in ("env.kwargs.g", "env.kwargs.=3", "env.kwargs.g=[1")),
        (["env.kwargs.g="], "env.kwargs.g=: say env.kwargs.NAME=value"),
        (["runs=[]"], "runs: names no run"),
        (["run=latest", "runs=[latest]"], "run names one run, runs several: say one of them"),
    ],
)
def test_words_that_can_not_be_read(refused, words, error):
    assert refused(*words) == (2, f"error: {error}")


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
    assert lines[-1].startswith(f"Pendulum-v1 small: IQM over 2 runs {middle:.1f} [")


def test_a_run_that_can_not_be_evaluated_does_not_stop_the_others(ask, copied, twin):
    (twin / "config.yaml").write_text("")
    _, (line,), code, result = ask("runs=[outputs]", "episodes=1")
    assert (code, str(twin) in line, result is None) == (8, True, False)


def test_every_run_must_reach_min_return(ask, copied, twin):
    _, lines, code, _ = ask("runs=[outputs]", "episodes=1", "min_return=0")
    assert code == 9
    assert [line.split()[1] for line in lines] == [f"{folder.name}:" for folder in (copied, twin)]


def test_a_single_folder_of_runs_is_evaluated_run_by_run(ask, copied, twin):
    lines, errors, code, _ = ask("outputs/Pendulum-v1", "episodes=1")
    assert (code, errors) == (0, [])
    assert {copied.name, twin.name} <= {line.split()[0] for line in lines}
    assert ask(str(copied), "episodes=1")[2] == 0
    assert ask("run=outputs/Pendulum-v1", "episodes=1")[1][0].startswith("error: outputs/Pendulum-v1 is no run")

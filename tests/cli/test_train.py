import csv
import hashlib
import json
import math
import os
import re

import numpy as np
import pytest
import safetensors.numpy
import yaml

from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.cli.train import help_text
from drl_cli.metrics.status import Status
from drl_cli.run_folder.find import read_config
from drl_cli.settings.build import build
from drl_cli.settings.conf import groups, options
from drl_cli.settings.value_types import group_of

EVAL_HEADER = "env_steps,opt_steps,version,wall_s,mean,std,min,max,median,episodes,length_mean"
PERF = {f"perf/{name}" for name in (
    "env_steps_per_s", "opt_steps_per_s", "updates_per_env_step", "worker_wait_frac", "trainer_wait_frac",
    "env_steps_per_s/worker_0", "samples_per_s", "loads_per_s",
    "updates_per_env_step_window")}  # fmt: skip
ACTIONS = {"CartPole-v1": "discrete", "Pendulum-v1": "box"}
EXHAUSTIVE = pytest.mark.exhaustive
IN_ALL_MODES = (("sac", "Pendulum-v1"), ("dqn", "CartPole-v1"), ("ppo", "CartPole-v1"))
IN_SINGLE = (("mrq", "Pendulum-v1"), ("impala", "CartPole-v1"))
"""Combinations of every check. The others are in `scripts/check all`: the golden values train every algorithm."""
COMBINATIONS = [
    pytest.param(
        algo, env, mode,
        marks=() if (algo, env) in IN_ALL_MODES or (mode == "single" and (algo, env) in IN_SINGLE) else EXHAUSTIVE,
    )
    for algo in algorithms()
    for env in ACTIONS
    for mode in load_algorithm(algo).MODES
    if mode != "offline"  # which needs a dataset: test_offline_run.py
    if (mode == "async" and ACTIONS[env] in load_algorithm(algo).ACTIONS) or (algo, env) in (*IN_ALL_MODES, *IN_SINGLE)
]  # fmt: skip


def read_json(path):
    return json.loads(path.read_text())


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def eval_rows(folder):
    with (folder / "eval.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def assert_complete(folder, status="done", code=0):
    """Check that a run's folder has all its files, after any end. Return the summary."""
    summary, run = read_json(folder / "summary.json"), read_json(folder / "run.json")
    assert (summary["status"], summary["exit_code"], run["status"]) == (status, code, status)
    assert summary["run_id"] == run["id"] == folder.name
    assert (folder / "train.log").is_file()
    assert (folder / "workers").is_dir()
    if summary["start_up_s"] is None and code:
        return summary  # the run ended before it recorded anything
    assert (folder / "eval.csv").read_text().splitlines()[0] == EVAL_HEADER
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert read_config(folder).seed == summary["seed"]
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["env_steps"] >= 0
    return summary


@pytest.fixture(scope="module")
def events(small_run):
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    (path,) = small_run.folder.glob("events.out.tfevents.*")
    values = ((value, event) for event in LegacyEventFileLoader(str(path)).Load() for value in event.summary.value)
    is_plugin = lambda value: value.metadata.plugin_data.plugin_name in ("hparams", "custom_scalars")  # noqa: E731
    return [(value.tag, event.step, value.simple_value) for value, event in values if not is_plugin(value)]


# The folder of a finished run


def test_a_run_leaves_a_complete_folder_and_names_the_next_commands(small_run):
    summary, out = assert_complete(small_run.folder), small_run.done.stdout
    relative = small_run.folder.relative_to(small_run.cwd / "outputs")
    assert relative.parts[:2] == ("Pendulum-v1", "sac-async")
    assert relative.name.endswith("-s3")
    assert [path.name for path in small_run.cwd.iterdir()] == ["outputs"]
    assert not (small_run.folder / "error.txt").exists()
    assert (summary["env"], summary["algo"], summary["mode"], summary["seed"]) == ("Pendulum-v1", "sac", "async", 3)
    assert small_run.done.stderr == ""
    folder = str(small_run.folder.relative_to(small_run.cwd))
    assert all(f"{command} run={folder}" in out for command in ("drl-eval", "drl-play", "drl-export"))
    assert f"tensorboard --logdir {os.path.dirname(folder)}\n" in out
    assert out.count("  eval  return ") == len(eval_rows(small_run.folder))
    logged = (small_run.folder / "train.log").read_text()
    without_clocks = [re.sub(r"^ *\d+:\d\d:\d\d", "", line) for line in out.splitlines()]
    assert [line for line in without_clocks if line not in logged] == []
    assert "nan" not in out


def test_the_summary_agrees_with_the_curve(small_run):
    summary, rows = read_json(small_run.folder / "summary.json"), eval_rows(small_run.folder)
    assert summary["env_steps"] == summary["inserts"] == 160
    assert summary["opt_steps"] == summary["samples"]
    assert summary["updates_per_env_step"] == summary["opt_steps"] / (160 - 32)
    assert summary["episodes"] == 160 // 20
    assert summary["best_return"] == max(row["mean"] for row in rows)
    assert summary["best_step"] == max(rows, key=lambda row: row["mean"])["env_steps"]
    assert summary["final_return"] == rows[-1]["mean"]
    assert summary["eval_episodes"] == 2
    assert 0 < summary["start_up_s"] < rows[0]["wall_s"] < summary["wall_s"] < 240
    assert summary["time_to_return_s"] is None
    assert 0 <= summary["worker_wait_frac"] <= 1
    assert 0 <= summary["trainer_wait_frac"] <= 1
    assert 0 <= summary["policy_lag_mean"] <= summary["policy_lag_max"] <= summary["opt_steps"]
    assert summary["peak_rss_mb"] > 50
    assert 0 < summary["processes"]["main"]["cpu_s"] < summary["wall_s"] * 2


def test_run_json_has_the_command_line_the_versions_and_the_machine(small_run):
    run = read_json(small_run.folder / "run.json")
    assert (run["renders"], run["formats"]) == (True, ["numpy", "torch", "onnx"])
    assert (run["command"], run["seed"]) == (["drl-train", *small_run.args], 3)
    assert (run["name"], run["tags"]) == ("small", ["a", "wide net"])
    assert run["notes"] == "it's small, for tests (160 steps): fast"  # with a quote, a comma, brackets and a colon
    assert "name: small   tags: [a,wide net]   notes: it's small" in small_run.done.stdout
    assert run["host"]
    assert {"drl-cli", "torch", "ray", "gymnasium"} <= set(run["versions"])
    assert "git_commit" in run
    assert (run["trainer"]["device"], run["trainer"]["threads"]) == ("cpu", 1)
    assert run["trainer"]["products"]["library"] in ("torch", "onednn")
    assert run["started"] <= run["ended"]


def test_config_yaml_is_resolved_and_has_every_key(small_run):
    text = (small_run.folder / "config.yaml").read_text()
    assert "${" not in text
    node = yaml.safe_load(text)
    assert set(node) == set(group_of(type(build(node))).keys)
    assert node["total_env_steps"] == 160
    assert node["algo"]["lr"] == 1e-3  # tuned


def test_eval_csv_has_a_row_per_evaluation(small_run):
    rows = eval_rows(small_run.folder)
    assert len(rows) >= 2
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(set(steps))
    assert rows[-1]["opt_steps"] == read_json(small_run.folder / "summary.json")["opt_steps"]
    for row in rows:
        assert row["min"] <= row["median"] <= row["max"]
        assert (row["episodes"], row["length_mean"]) == (2, 200)


def test_checkpoints_best_and_last(small_run):
    root, summary = small_run.folder / "checkpoints", read_json(small_run.folder / "summary.json")
    for name in ("best", "last"):
        assert summary[f"checkpoint_{name}"] == f"checkpoints/{(root / name).readlink()}"
        manifest = read_json(root / name / "manifest.json")
        files = {path.name for path in (root / name).iterdir()} - {"manifest.json"}
        assert manifest["sha256"] == {file: digest(root / name / file) for file in files}
        assert files == {"model.safetensors"} or name == "last"
        assert int((root / name).resolve().name[5:14]) >= manifest["env_steps"]  # of its version
    assert read_json(root / "best" / "manifest.json")["env_steps"] == summary["best_step"]
    assert read_json(root / "last" / "manifest.json")["opt_steps"] == summary["opt_steps"]


def test_metrics_jsonl_and_events_have_the_same_tags_over_env_steps(small_run, events):
    scalars, rows = events, eval_rows(small_run.folder)
    tags = {tag for tag, _, _ in scalars}
    assert {tag.split("/")[0] for tag in tags} == {"eval", "rollout", "train", "perf", "async", "replay", "system"}
    single = ("perf/sample_ms", "perf/update_ms", "async/policy_lag", "train/critic_loss")
    assert {*PERF, *single, "eval/return_mean", "rollout/return_mean"} <= tags
    last = json.loads((small_run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {tag for tag in tags if not tag.startswith("eval/")} >= set(last) - {"env_steps"} >= PERF
    assert last["env_steps"] == max(step for _, step, _ in scalars) == 160
    curve = [(step, value) for tag, step, value in scalars if tag == "eval/return_mean"]
    assert [step for step, _ in curve] == [row["env_steps"] for row in rows]
    assert [value for _, value in curve] == pytest.approx([row["mean"] for row in rows], rel=1e-6)


# The same run again


@pytest.mark.slow
def test_config_yaml_repeats_the_run(small_run, drl_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = drl_here("train", "--config-path", small_run.folder, "--config-name", "config")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/*/*/*")
    assert_complete(folder)
    model = "checkpoints/last/model.safetensors"
    assert digest(folder / model) == digest(small_run.folder / model)
    assert (folder / "config.yaml").read_text() == (small_run.folder / "config.yaml").read_text()


# Combinations of algorithm, environment and mode


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "env", "mode"), COMBINATIONS)
def test_every_combination_that_fits_runs(train_here, composed, capsys, env, algo, mode):
    overrides = (f"env={env}", f"algo={algo}", f"mode={mode}")
    config = build(composed(*overrides, "total_env_steps=160"))
    if config.is_on_policy:
        overrides += ("trainer.batch_size=32",)
    _, folder = train_here(*overrides)
    summary = assert_complete(folder)
    assert capsys.readouterr().err == ""
    assert summary["env_steps"] >= 160
    assert summary["opt_steps"] > 0
    assert math.isfinite(summary["final_return"])
    if config.is_on_policy:
        assert summary["samples"] == summary["inserts"] // 32
    elif mode != "async":
        assert summary["opt_steps"] == summary["samples"]
        ratio = config.orchestrator.sample_insert_ratio
        assert summary["opt_steps"] == int(ratio * (summary["inserts"] - 32))
    assert (summary["env"], summary["algo"], summary["mode"]) == (env, algo, mode)


def test_a_signal_before_there_is_a_record_changes_nothing(train_here, tmp_path, monkeypatch):
    def ended(*_):
        raise SystemExit(129)

    monkeypatch.setattr("drl_cli.run_folder.run_json.run_record", ended)
    with pytest.raises(SystemExit):
        train_here()
    assert not list(tmp_path.glob("*/*/*/run.json"))


@pytest.mark.slow
def test_wrappers_are_used_in_training_and_in_evaluations(train_here):
    summary, folder = train_here("env=user_envs:Tiny-v0", "env.wrappers=[user_envs:Twice]")
    assert (summary["exit_code"], summary["final_return"] is None) == (0, False)
    assert "user_envs:Twice" in (folder / "config.yaml").read_text()


# Ends


@pytest.mark.slow
def test_stop_return_and_stop_wall_s_end_the_run(train_here):
    summary, folder = train_here("env=Pendulum-v1", "stop.return=-9999", "total_env_steps=5000")
    assert_complete(folder)
    assert summary["env_steps"] < 5000
    first = eval_rows(folder)[0]
    assert summary["time_to_return_env_steps"] == first["env_steps"]
    assert summary["time_to_return_s"] == pytest.approx(first["wall_s"], abs=1e-3)
    summary, folder = train_here("env=Pendulum-v1", "stop.wall_s=0.001", "total_env_steps=5000")
    assert_complete(folder)
    assert summary["env_steps"] < 5000


@pytest.mark.parametrize(("fail", "text"), [("step", "the arm fell off"), ("reset", "stuck at the start")])
def test_a_failed_run_leaves_one_line_and_a_complete_folder(train_here, capsys, monkeypatch, fail, text):
    monkeypatch.setattr("drl_cli.preflight.preflight.try_environment", lambda config, spec: None)
    monkeypatch.setenv("DRL_DEBUG", "1" if fail == "step" else "")
    _, folder = train_here("env=user_envs:Tiny-v0", f"+env.kwargs.fail={fail}")
    err = capsys.readouterr().err
    assert ("Traceback" in err) == (fail == "step")
    line, where = err[err.index("error: ") :].splitlines() if fail == "step" else err.splitlines()
    assert line.startswith("error: ")
    assert text in line
    assert "(user_envs.py:" in line
    assert all(shown in (folder / "train.log").read_text() for shown in (line, where, "failed: best return"))
    assert where == f"  traceback: {folder / 'error.txt'}; DRL_DEBUG=1 prints it"
    assert "Traceback" in (folder / "error.txt").read_text()
    assert_complete(folder, "failed", 4)


@pytest.mark.slow
def test_divergence_names_the_update_and_keeps_its_batch(train_here, capsys):
    _, folder = train_here("env=user_envs:Tiny-v0", "+env.kwargs.fail=reward", "env.normalize_reward=false")
    warning, error, path = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: user_envs:Tiny-v0: rewards are of size 1e+30; env.normalize_reward=true")
    assert error.startswith("error: ")
    assert "Traceback" in (folder / "error.txt").read_text()
    assert_complete(folder, "diverged", 5)
    assert "training diverged at update 1: critic loss is infinite; the batch was finite; its largest value: " in error
    assert "reward 1e+30" in error
    assert path == f"  its batch: {folder / 'diverged.safetensors'}"
    batch = safetensors.numpy.load_file(folder / "diverged.safetensors")
    assert batch["obs"].shape == (8, 3)
    np.testing.assert_array_equal(batch["reward"], np.float32(1e30))


# Console


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "times"),
    [
        (("env=drl_cli.envs.probes:Counter-v0", "+env.kwargs.spread=1"), 2),  # all episodes return the same
        (("env=Pendulum-v1", "tuned=none", "algo.lr=1e-9", "orchestrator.sample_insert_ratio=1"), 1),  # no cause
    ],
)
def test_a_run_that_does_not_learn_says_so_at_its_end_and_at_once_if_it_knows_a_cause(
    drl_here, tiny, monkeypatch, tmp_path, words, times
):
    monkeypatch.chdir(tmp_path)
    done = drl_here("train", *tiny, "mode=single", "algo=sac", *words)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line.startswith("no evaluation is better than the first ")]
    assert len(lines) == times
    assert all(("reward=rnd" in line) == (times == 2) for line in lines)


@pytest.mark.slow
def test_json_prints_one_object_per_line(train_here, capsys):
    summary, folder = train_here("env=Pendulum-v1", "console=json", "logger.report_s=0.01", "logger.console_s=0.01")
    out = capsys.readouterr().out
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds[:3], events[2]["what"]) == (["note", "note", "awaits"], "the trainer and the workers")
    assert (kinds[-1], kinds.count("end")) == ("end", 1)
    assert {"status", "evaluation"} <= set(kinds)
    assert events[-1]["best_return"] == summary["best_return"]
    assert "NaN" not in out
    status = Status.read(folder)
    assert [event["mean"] for event in events if event["event"] == "evaluation"] == [mean for _, mean in status.scores]
    assert status.env_steps == 160


# Help


def test_help_lists_groups_with_their_choices_and_keys(drl_here):
    out = drl_here("train", "--help").stdout
    listed = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    for group in groups():
        assert group == "tuned" or all(name in listed[group] for name in options(group))
    assert listed["tuned"].split()[1] == str(len(options("tuned")))  # without their names, which fill a screen
    assert max(map(len, out.splitlines())) < 500
    assert all(key in out for key in ("seed", "total_env_steps", "device", "precision", "output_dir", "stop.return"))


def test_the_help_of_another_group_keeps_the_keys_of_the_algorithm():
    lines = help_text(["network=lstm", "network", "algo=sac"]).splitlines()
    titles = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert titles == ["network=lstm", "algo=sac"]
    assert help_text(["algo=auto", "algo"]).count("\nalgo=") > 20


@pytest.mark.slow
def test_a_preset_keeps_the_name_that_was_typed(drl_here, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/algo").mkdir(parents=True)
    (tmp_path / "conf/algo/my_dqn.yaml").write_text("defaults: [dqn]\nlr: 1e-3\n")
    typed = [["algo=munchausen_dqn"], ["algo=dqn"], ["--config-dir", "conf", "algo=my_dqn"]]
    for words in typed:
        done = drl_here("train", "env=CartPole-v1", *words, *tiny, "mode=single", "tuned=none")
        name = words[-1].partition("=")[2]
        assert (done.returncode, done.stderr) == (0, "")
        assert f"CartPole-v1 {name} single seed 0  ->  outputs/CartPole-v1/{name}-single/" in done.stdout
        (folder,) = tmp_path.glob(f"outputs/CartPole-v1/{name}-single/*")
        assert read_json(folder / "run.json")["algo"] == read_json(folder / "summary.json")["algo"] == name
    again = drl_here("train", "from_config=outputs/CartPole-v1/munchausen_dqn-single/*", "seed=5").stdout
    assert "outputs/CartPole-v1/munchausen_dqn-single/" in again
    listed = drl_here("list", "runs").stdout.splitlines()[1:]
    assert sorted(line.split()[2] for line in listed) == ["dqn", "munchausen_dqn", "munchausen_dqn", "my_dqn"]
    assert len(drl_here("list", "runs", "algo=dqn").stdout.splitlines()) == 2
    labels = drl_here("compare", "outputs", "png=null", "csv=null").stdout
    assert [name for name in ("algo=dqn", "algo=munchausen_dqn", "algo=my_dqn") if name in labels.split()] == [
        *("algo=dqn", "algo=munchausen_dqn", "algo=my_dqn")
    ]

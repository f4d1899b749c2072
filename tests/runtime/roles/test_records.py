import csv
import os

import numpy as np
import pytest
import telling
from fake_services import install_mlflow, install_wandb
from graphs import TINY, make_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drl_cli.envs.make import read_spec
from drl_cli.run_folder.evaluations import EVAL_COLUMNS
from drl_cli.runtime.roles import records
from drl_cli.runtime.roles.evaluator import Evaluator, make_evaluator
from drl_cli.runtime.roles.manage import Manage
from drl_cli.types import LoadParams
from drl_cli.utils import machine
from drl_cli.utils.seeding import integers

TELLING = ("env=telling:Telling-v0", "logger.tensorboard=true", "seed=5")


@pytest.fixture
def make(tmp_path):
    """Create a manage of the run in tmp_path; a second call is a resumed run."""

    def make_it(*overrides):
        config = make_config(*TINY, *TELLING, *overrides)
        folder = tmp_path / "env" / "sac-async" / "id"
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        return Manage(config, read_spec(config.env), folder, 0.0)

    return make_it


def params_of(manage):
    from drl_cli.algos.lookup import load_algorithm
    from drl_cli.api import Context
    from drl_cli.utils.lazy import torch

    config = manage.config
    algorithm = load_algorithm(config.algo.name).Algorithm
    return algorithm(config.algo, config.network, manage.spec, 0, Context(torch.device("cpu"))).policy_params()


def evaluate(manage, *env_steps):
    return [manage.evaluate(LoadParams(step, step, step), params_of(manage)) for step in env_steps]


def scalars(manage):
    events = EventAccumulator(str(manage.folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


REPORT = {"rollout/return_mean": 3.0, "rollout/length_mean": 9.0, "perf/env_steps_per_s": 50.0, "train/loss": 1.0}


@pytest.mark.parametrize(
    ("aliases", "evaluation", "report"),
    [
        ("none", {}, {}),
        (
            "sb3",
            {"eval/mean_reward": "eval/return_mean", "eval/mean_ep_length": "eval/length_mean"},
            {"rollout/ep_rew_mean": 3.0, "rollout/ep_len_mean": 9.0, "time/fps": 50.0},
        ),
        (
            "cleanrl",
            {"eval/episodic_return": "eval/return_mean"},
            {"charts/episodic_return": 3.0, "charts/episodic_length": 9.0, "charts/SPS": 50.0},
        ),
    ],
)
def test_scalars_have_the_names_of_another_library_too(make, aliases, evaluation, report):
    manage = make(f"logger.aliases={aliases}")
    evaluate(manage, 100)
    manage.records.record(REPORT, 100)
    manage.close("done")
    found = scalars(manage)
    assert {tag: found[tag] for tag in evaluation} == {tag: found[name] for tag, name in evaluation.items()}
    assert {tag: found[tag] for tag in report} == {tag: [(100, value)] for tag, value in report.items()}
    peers = {tag for names in records.ALIASES.values() for tag in names.values()}
    assert peers & found.keys() == {*evaluation, *report}


def test_the_environments_info_reaches_every_record(make):
    manage = make("+manage.env_kwargs.level=4", "manage.eval_episodes=4")
    first, second = evaluate(manage, 100, 200)
    manage.close("done")
    even = np.mean([seed % 2 == 0 for seed in integers(5, "evaluate", 4)])
    assert 0 < even < 1
    assert first.info == {"success": even, "cost": 4.0, "level": 4.0, "return_mean": 9.0, "mean": 7.0}
    assert second.info["lap_time"] == 2.5  # of each environment's second episode
    rows = list(csv.DictReader((manage.folder / "eval.csv").open()))
    assert tuple(rows[0])[:11] == EVAL_COLUMNS
    assert [(row["mean"], row["cost"], row["level"], row["lap_time"]) for row in rows] == [
        ("4.0", "4.0", "4.0", ""),
        ("4.0", "4.0", "4.0", "2.5"),
    ]
    recorded = scalars(manage)
    assert (recorded["eval/success"], recorded["eval/lap_time"]) == ([(100, even), (200, even)], [(200, 2.5)])
    assert recorded["eval/return_mean"] == [(100, 4.0), (200, 4.0)]  # ours, not the environment's
    for name in ("opt_steps", "version", "wall_s", "length_mean"):
        wanted = [(int(row["env_steps"]), float(row[name])) for row in rows]
        assert recorded[f"eval/{name}"] == [(step, pytest.approx(value)) for step, value in wanted]


def test_a_cut_episode_has_no_info(make):
    manage = make("manage.max_episode_steps=3")
    (report,) = evaluate(manage, 100)
    assert (report.cut, report.info) == (2, {})


def test_evaluations_may_use_another_environment(make):
    manage = make("+env.kwargs.level=1", "+manage.env_kwargs.level=2", "+env.kwargs.draws=nothing")
    env = make_evaluator(manage.config, manage.spec, [0]).envs[0].raw.unwrapped
    assert (env.level, env.draws) == (2, "nothing")


def test_a_users_evaluator_scores_and_takes_part_in_confirming(make):
    manage = make("manage.evaluator=telling:Generous", "stop.return=1004")
    (report,) = evaluate(manage, 100)
    assert report.mean == 1004.0
    assert report.statistics["episodes"] == 4  # two that reached the goal, and two that confirm it
    assert [type(evaluator).__name__ for evaluator in manage.evaluators] == ["Generous"] * 2
    assert isinstance(make_evaluator(make().config, manage.spec, [0]), Evaluator)


def test_a_users_recorder_gets_reports_evaluations_and_videos(make):
    manage = make("logger.recorders=[telling:Own]", "manage.video_period=1", "logger.project=mine")
    assert manage.report({"perf/x": 1.0}, 50) == []
    evaluate(manage, 40)
    assert manage.close("done") == []
    first, second, third, *rest = (manage.folder / "own.txt").read_text().splitlines()
    assert (first, second) == ("telling:Telling-v0 sac-async s5 mine 5", "50 perf/x")
    assert third.startswith("40 eval/success eval/cost")
    assert rest == ["eval/video eval_000000040.gif", "done"]


@pytest.mark.parametrize("kind", ["Failing", "Unmade"])
def test_a_failing_recorder_does_not_affect_other_recorders(make, kind):
    manage = make(f"logger.recorders=[telling:{kind},telling:Own]")
    problems = [problem for step in range(1, 4) for problem in manage.report({"perf/x": 1.0}, step)]
    (report,) = evaluate(manage, 4)
    problems += manage.close("done")
    assert report.problem is None
    assert len(problems) == 1
    assert problems[0].startswith(f"telling:{kind} ")
    assert len((manage.folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert (manage.folder / "own.txt").read_text().splitlines()[-1] == "done"
    assert scalars(manage)["perf/x"] == [(1, 1.0), (2, 1.0), (3, 1.0)]


def test_a_full_disk_does_not_affect_background_recorders(make, monkeypatch):
    manage = make("logger.recorders=[telling:Own]")

    def full(*args):
        raise OSError("no space left")

    manage.records.lines.record = full
    with pytest.raises(OSError, match="no space"):
        manage.report({"perf/x": 1.0}, 50)
    manage.close("done")
    assert "50 perf/x" in (manage.folder / "own.txt").read_text()


def test_a_recorder_that_hangs_at_the_end_leaves_complete_files(make, monkeypatch):
    monkeypatch.setattr(records, "CLOSE_S", 0.0)
    manage = make("logger.recorders=[telling:Hanging]")
    manage.report({"perf/x": 1.0}, 50)
    (problems,) = manage.close("done")
    telling.Hanging.released.set()
    assert problems.startswith("telling:Hanging is still busy at the end")
    assert scalars(manage)["perf/x"] == [(50, 1.0)]
    assert manage.records.lines.file.closed


def test_wandb_and_mlflow_record_the_same(make, monkeypatch):
    wandb, mlflow = install_wandb(monkeypatch), install_mlflow(monkeypatch)
    manage = make("logger.wandb=offline", "logger.mlflow=offline")
    manage.report({"perf/x": 1.0}, 50)
    evaluate(manage, 40)
    assert manage.close("failed") == []
    (run,) = wandb.runs
    assert (run.id, run.config["seed"], run.exit_code) == ("id", 5, 1)
    assert [(line["env_steps"], line.get("perf/x"), line.get("eval/return_mean")) for line in run.logged] == [
        (50, 1.0, None),
        (40, None, 4.0),
    ]
    ((_, runs),) = mlflow.stores.values()
    (theirs,) = runs.values()
    assert ("perf/x", 1.0, 50) in theirs.metrics
    assert ("eval/return_mean", 4.0, 40) in theirs.metrics
    assert theirs.info.status == "FAILED"


def videos(manage):
    events = EventAccumulator(str(manage.folder), size_guidance={"images": 0}).Reload()
    return [event.step for event in events.Images("eval/video")] if "eval/video" in events.Tags()["images"] else []


def test_every_nth_evaluation_is_filmed(make):
    manage = make("manage.video_period=2")
    evaluate(manage, 10, 20, 30, 40)
    manage.close("done")
    assert videos(manage) == [10, 30]
    assert sorted(path.name for path in (manage.folder / "videos").iterdir()) == [
        "eval_000000010.gif",
        "eval_000000030.gif",
    ]


def test_films_are_drawn_without_a_screen(make, monkeypatch):
    monkeypatch.setattr(
        "os.environ", {name: value for name, value in os.environ.items() if name not in machine.DRAWING}
    )
    manage = make("manage.video_period=1")
    evaluate(manage, 10)
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"
    manage.close("done")


def test_the_film_is_of_the_first_episode_of_an_evaluation(make):
    manage = make("manage.video_period=1")
    evaluate(manage, 10)
    (seed, *_) = manage.evaluators[0].seeds
    assert manage.camera.evaluator.seeds == [seed]
    assert manage.camera.env.unwrapped.count == 4  # to its end
    manage.close("done")
    assert manage.camera.env.unwrapped.is_closed
    from PIL import Image

    with Image.open(manage.folder / "videos" / "eval_000000010.gif") as image:
        assert (image.n_frames, image.info["duration"], image.size) == (5, 100, (240, 80))


@pytest.mark.parametrize(
    ("env", "cause"),
    [
        ("+env.kwargs.draws=nothing", "ValueError: render() gives NoneType"),
        ("+env.kwargs.draws=fails", "RuntimeError: no display"),
        ("env=drl_cli.envs.probes:Counter-v0", "TypeError: Counter.__init__() got"),
    ],
)
def test_a_failed_film_is_reported_once_and_evaluations_continue(make, env, cause):
    manage = make("manage.video_period=1", env)
    reports, problems = evaluate(manage, 10, 20), manage.report({}, 30)
    assert len(problems) == 1
    assert problems[0].startswith(f"manage.video_period: no video is made: {cause}")
    assert manage.report({}, 40) == []
    assert all(report.mean > 0 for report in reports)
    manage.close("done")
    assert videos(manage) == []

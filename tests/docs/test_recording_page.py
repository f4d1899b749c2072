"""The commands of docs/recording.md run on small runs, in a folder with the modules of the page."""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from composing import compose_plain
from fake_services import install_mlflow, install_wandb

from drl_cli.cli.train import train
from drl_cli.run_folder.evaluations import EVAL_COLUMNS
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import for_hydra, read_command

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text()
COMMANDS = re.findall(r"^drl-train (.*)$", PAGE, re.MULTILINE)
MODULES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
SMALL = (
    *("tuned=none", "debug.in_process=true", "network.hidden=[16,16]", "worker.num=1", "worker.envs=2"),
    *("worker.block_rows=16", "orchestrator.min_inserts=32", "trainer.batch_size=8", "replay.capacity=2000"),
    *("manage.eval_period=60", "manage.eval_episodes=2", "env.max_episode_steps=20", "total_env_steps=96"),
    *("mode=single", "manage.confirm_episodes=0"),
)


pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Run every command of the page. Return the run folders by the last argument, and the fake wandb and mlflow."""
    here, found = tmp_path_factory.mktemp("reader"), {}
    for name, text in MODULES.items():
        (here / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.syspath_prepend(here)
        patch.setattr(sys, "argv", ["drl-train"])
        wandb, mlflow = install_wandb(patch), install_mlflow(patch)
        patch.setattr("drl_cli.preflight.preflight.source_file", lambda module: here)
        for command in COMMANDS:
            args = shlex.split(command)
            check_command(read_command(args))
            summary = train(compose_plain(*for_hydra(args), *SMALL))
            assert summary["exit_code"] == 0
            (found[args[-1]],) = here.glob(f"outputs/*/*/{summary['run_id']}")
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)
    return found, wandb, mlflow


def rows(folder):
    return list(csv.DictReader((folder / "eval.csv").open()))


def test_the_page_has_the_modules_and_commands_of_this_test():
    assert (set(MODULES), len(COMMANDS)) == ({"my_wraps.py", "my_recorder.py", "my_evaluator.py"}, 7)
    assert ",".join(EVAL_COLUMNS) in PAGE


def test_a_wrapper_adds_a_number_to_reports_and_evaluations(folders):
    folder = folders[0]["env.wrappers=[my_wraps:CostSum]"]
    assert all(float(row["cost_sum"]) > 0 for row in rows(folder))
    reports = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any("rollout/cost_sum" in report for report in reports)


def test_evaluations_play_another_environment(folders):
    config = (folders[0]["manage.env_kwargs.g=9.0"] / "config.yaml").read_text()
    assert re.search(r"env_kwargs:\n\s+g: 9.0\n", config)


def test_an_evaluation_is_filmed(folders):
    videos = folders[0]["manage.video_period=5"] / "videos"
    assert len(list(videos.glob("eval_*.gif"))) == 1


def test_wandb_and_mlflow_have_the_run(folders):
    _, wandb, mlflow = folders
    (run,) = wandb.runs
    assert (run.mode, run.project, run.exit_code) == ("offline", "pendulum", 0)
    assert any("eval/return_mean" in line for line in run.logged)
    ((uri, (_, runs)),) = mlflow.stores.items()
    assert uri.endswith("/outputs/mlflow.db")
    assert [run.info.status for run in runs.values()] == ["FINISHED"]


def test_the_recorder_keeps_the_best(folders):
    best = max(float(row["mean"]) for row in rows(folders[0]["logger.recorders=[my_recorder:Best]"]))
    first, last = (folders[0]["logger.recorders=[my_recorder:Best]"] / "best.txt").read_text().splitlines()
    assert (float(first.split()[0]), last) == (best, "done")


def test_the_evaluator_decides_the_score(folders):
    assert {row["mean"] for row in rows(folders[0]["stop.return=0.95"])} == {"0.0"}

import json
import re

import pytest
from choices import some

from drl_cli.runs.find import read_config

MODES = some(["single", "sync", "async"], "single")


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_an_episode_that_ended_is_shown_and_recorded(train_here, capsys, mode):
    summary, folder = train_here("env=Pendulum-v1", f"mode={mode}")  # episodes of 20 steps
    assert summary["episodes"] == 8
    (shown,) = re.findall(r"100\.0%  step 160  train return +(\S+)  length +20  ", capsys.readouterr().out)
    means = [line["rollout/return_mean"] for line in lines_of(folder) if "rollout/return_mean" in line]
    assert min(means) - 0.1 < float(shown) < max(means) + 0.1
    (events,) = folder.glob("events.out.tfevents.*")
    assert b"rollout/return_mean" in events.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_run_in_which_no_episode_ended_says_so(train_here, capsys, mode):
    train_here("env=Pendulum-v1", f"mode={mode}", "env.max_episode_steps=200")
    out = capsys.readouterr().out
    assert re.search(r"100\.0%  step 160  no episode has ended yet +[\d,]+ env/s +[\d,]+ updates/s  ratio ", out)
    assert "- env/s" not in out


SMALL = (
    *("env=Pendulum-v1", "algo=sac", "mode=single", "trainer.batch_size=16", "network.hidden=[16,16]"),
    *("manage.eval_episodes=1", "manage.confirm_episodes=0", "env.max_episode_steps=20", "logger.tensorboard=false"),
)
R2D2 = ("env=CartPole-v1", "algo=r2d2", "total_env_steps=1000", "replay.seq_len=10", "replay.burn_in=4")
LINE = "warm-up: orchestrator.min_inserts=50 (not 1000), shortened to a tenth of total_env_steps=500\n"


def weights(folder):
    return (folder / "checkpoints/last/model.safetensors").read_bytes()


@pytest.fixture
def trained(drl_here, tmp_path, monkeypatch):
    """Train in this process. Return what is printed, and the run's folder."""
    monkeypatch.chdir(tmp_path)

    def train(*args):
        if args[0] != "-m" and not args[0].startswith("resume="):
            args = (*args, "debug.in_process=true")
        done = drl_here("train", *args)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout, max(tmp_path.glob("outputs/*/*/*"))

    return train


@pytest.mark.slow
def test_a_shortened_warm_up_is_said_stored_and_kept_by_a_longer_run(trained):
    out, folder = trained(*SMALL, "total_env_steps=500")
    assert (out.count(LINE), read_config(folder).orchestrator.min_inserts) == (1, 50)
    assert json.loads((folder / "summary.json").read_text())["opt_steps"] == (512 - 50) // 2
    out, again = trained("resume=latest", "total_env_steps=1000")
    assert ((again, "warm-up" in out), read_config(folder).orchestrator.min_inserts) == ((folder, False), 50)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["updates_per_env_step"] == pytest.approx(0.5, abs=0.001)
    assert summary["opt_steps"] == (summary["env_steps"] - 50) // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(R2D2, marks=pytest.mark.exhaustive),
        pytest.param(("env=Pendulum-v1", "algo=mrq", "total_env_steps=400"), marks=pytest.mark.exhaustive),
        pytest.param(("env=BitFlip", "algo=dqn", "total_env_steps=300"), marks=pytest.mark.exhaustive),
        ("env=Pendulum-v1", "algo=d4pg", "algo.n_step=5", "total_env_steps=300"),
    ],
)
def test_rows_of_several_steps_are_learned_from_after_a_short_warm_up(trained, overrides):
    fast = ("mode=single", "network.hidden=[16,16]", "manage.eval_episodes=1", "trainer.batch_size=16")
    overlap = ("replay.overlap=5",) if "algo=r2d2" in overrides else ()
    out, folder = trained(*overrides, *fast, *overlap)
    assert "warm-up: orchestrator.min_inserts=" in out
    assert json.loads((folder / "summary.json").read_text())["opt_steps"] > 0

import json

import pytest

from drl_cli.run_folder.find import read_config

SMALL = (
    *("env=Pendulum-v1", "algo=sac", "mode=single", "trainer.batch_size=16", "network.hidden=[16,16]"),
    *("manage.eval_episodes=1", "manage.confirm_episodes=0", "env.max_episode_steps=20", "logger.tensorboard=false"),
)
LINE = "warm-up: orchestrator.min_inserts=50 (not 1000), shortened to a tenth of total_env_steps=500\n"


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

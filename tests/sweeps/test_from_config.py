import pytest
import yaml

from drl_cli.errors import UsageError
from drl_cli.runs.named import with_config_of_run
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import mapping


def composed(words):
    """Return the config that drl-train makes of these words."""
    command = read_command(words)
    command = with_config_of_run(command)
    return mapping(command.overrides, command.config_file)


@pytest.fixture
def begun(copied, drl_here, monkeypatch):
    """Return the words of the jobs that `drl-train -m` would start, and what the command prints."""
    sweeps = []
    monkeypatch.setattr("drl_cli.sweeps.multirun.run_jobs", lambda sweep, jobs, configs: sweeps.append(sweep))

    def run(*args):
        done = drl_here("train", "-m", *args)
        assert sweeps, done.stderr
        return [job.arguments(sweeps[-1].flags) for job in sweeps[-1].jobs]

    return run


@pytest.mark.slow
def test_each_job_begins_with_the_config_of_the_run_and_has_its_own_words(begun, copied, drl_here):
    jobs = begun("from_config=latest", "seed=1,2", "algo.gamma=0.9")
    old = yaml.safe_load((copied / "config.yaml").read_text())
    assert jobs == [[f"from_config={copied.resolve()}", f"seed={seed}", "algo.gamma=0.9"] for seed in (1, 2)]
    for seed, words in enumerate(jobs, 1):
        new = composed(words)
        assert (new["seed"], new["algo"], new["name"]) == (seed, old["algo"] | {"gamma": 0.9}, None)
        done = drl_here("train", *words, "dry_run=true")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("words", "name"), [([], None), (["name=second"], "second"), (["+name=third"], "third")])
def test_a_new_run_does_not_inherit_the_name_of_the_run(copied, words, name):
    new = composed(["from_config=latest", *words])
    assert (new["name"], new["tags"]) == (name, ["a", "wide net"])


def test_a_resumed_run_keeps_its_name(copied):
    assert composed(["resume=latest", "total_env_steps=320"])["name"] == "small"


def test_a_group_of_the_user_sets_single_keys_of_the_run(copied, tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "best.yaml").write_text("# @package _global_\nalgo: {gamma: 0.9}\n")
    old = yaml.safe_load((copied / "config.yaml").read_text())
    new = composed(["--config-dir", "conf", "from_config=latest", "experiment=best"])
    assert new["algo"] == old["algo"] | {"gamma": 0.9}
    with pytest.raises(UsageError, match="replay=fifo can't be chosen here"):
        composed(["from_config=latest", "replay=fifo"])


@pytest.mark.slow
def test_the_dry_run_checks_what_the_jobs_will_do(copied, drl_here):
    done = drl_here("train", "-m", "from_config=latest", "algo.lr=-1,1e-3", "dry_run=true")
    assert (done.returncode, done.stderr) == (2, "error: algo.lr: must be > 0, got -1   (job 1 of 2)\n")
    done = drl_here("train", "-m", "from_config=latest", "orchestrator.min_inserts=500,600", "dry_run=true")
    assert "orchestrator.min_inserts=500 is not below total_env_steps=160" in done.stderr  # which only the run has
    done = drl_here("train", "-m", "from_config=latest", "seed=1,2", "dry_run=true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 jobs; all checks passed\n", "")

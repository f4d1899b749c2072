import dataclasses
import re
import subprocess
import sys

import pytest

from drl_cli.bench import ratio
from drl_cli.bench.ratio import KEY, measured, nearest, rates, with_measured_ratio
from drl_cli.errors import UsageError
from drl_cli.preflight.environment import environment_spec
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose

WORDS = ["env=CartPole-v1", "algo=dqn", "mode=single", "network.hidden=[8]"]


@pytest.mark.parametrize(
    ("measured", "chosen"), [(1e-4, 0.1), (0.15, 0.1), (0.17, 0.25), (0.7, 0.5), (0.72, 1), (1.5, 2), (900, 2)]
)
def test_the_nearest_ratio(measured, chosen):
    assert nearest(measured) == chosen


def test_auto_is_replaced_by_a_number_as_if_it_were_typed(monkeypatch):
    monkeypatch.setattr(ratio, "measured", lambda words: (2000.0, 800.0))
    command = read_command([f"{KEY}=auto", *WORDS])
    changed, line = with_measured_ratio(command)
    assert compose(changed.overrides).orchestrator.sample_insert_ratio == 0.5
    assert line == f"{KEY}=0.5 (auto): workers make 2,000 env steps/s, the trainer 800 updates/s"


def test_a_number_is_not_measured():
    command = read_command([f"{KEY}=1", *WORDS])
    assert with_measured_ratio(command) == (command, None)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["env=CartPole-v1", "algo=ppo"], "auto: PPO does not read it"),
        (["-m", "env=CartPole-v1", "algo=dqn", "seed=0,1"], "auto measures one run; in a sweep, say a number"),
        (["env=CartPole-v1", "algo=dqn", "algo.lrr=1"], "algo.lrr"),
    ],
)
def test_what_can_not_be_measured(words, problem):
    with pytest.raises(UsageError, match=problem):
        with_measured_ratio(read_command([*words, f"{KEY}=auto"]))


@pytest.mark.slow
def test_the_rates_of_both_sides(monkeypatch):
    monkeypatch.setattr(ratio, "SECONDS", 0.1)
    config = compose([*WORDS, f"{KEY}=1", "replay.capacity=1000", "orchestrator.min_inserts=100"])
    spec = environment_spec(config)
    steps, updates = rates(config, spec)
    larger = dataclasses.replace(config, network=dataclasses.replace(config.network, hidden=(1024, 1024)))
    _, slower = rates(larger, spec)
    assert steps > slower
    assert updates > 2 * slower


@pytest.mark.slow
def test_a_process_of_its_own_measures_also_for_a_script_without_a_main_guard(tmp_path):
    words = {"env": "CartPole-v1", "algo": "dqn", "mode": "single", "total_env_steps": 200, KEY: "auto"}
    words |= {"network.hidden": [8], "console": "quiet", "dry_run": True}
    (tmp_path / "script.py").write_text(f"import drl_cli\n\ndrl_cli.train({words})\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_environment_that_fails_while_it_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(
        "from gymnasium.envs.classic_control import PendulumEnv\n\n\nclass Late(PendulumEnv):\n    t = 0\n\n"
        "    def step(self, action):\n        self.t += 1\n        if self.t > 40:\n"
        "            raise ValueError('sensor lost')\n        return super().step(action)\n"
    )
    with pytest.raises(UsageError) as caught:
        measured(["env=late:Late", "algo=sac", "mode=single", "network.hidden=[8]", "total_env_steps=600", f"{KEY}=1"])
    (problem,) = caught.value.problems  # a fast worker meets it first, and has no rebuild left
    assert re.match(r"(late:Late|worker 0 env 0: step) raised ValueError: sensor lost \(late.py:10\)", problem)
    assert caught.value.exit_code == 4


@pytest.mark.slow
def test_the_errors_of_the_measurement_are_those_of_the_run():
    with pytest.raises(UsageError, match="'Nowhere-v0' can't be made") as caught:
        measured(["env=Nowhere-v0", "algo=dqn"])
    assert caught.value.exit_code == 2

from types import SimpleNamespace

import numpy as np
import pytest
from graphs import make_config

from drl_cli.deploy import recording
from drl_cli.errors import UsageError


def measured(env, dataset=None, words=()):
    config = make_config(f"env={env}", "data.reference=auto")
    changed, lines = recording.with_measured_reference(config, dataset, words)
    return changed.data.reference, lines


def of_returns(*returns):
    return SimpleNamespace(facts=SimpleNamespace(whole_returns=np.array(returns)))


def test_a_random_policy_is_measured_and_the_best_recorded_result_is_the_expert(monkeypatch):
    found = [
        {"env": "Pendulum-v1", "return": -150.0, "algo": "sac"},
        {"env": "Pendulum-v1", "return": -140.0, "algo": "mrq"},
    ]
    monkeypatch.setattr(recording, "results", lambda: [*found, {"env": "CartPole-v1", "return": 500.0, "algo": "dqn"}])
    (random, expert), (line,) = measured("Pendulum-v1")
    assert -1500 < random < -900
    assert expert == -140.0
    assert (
        line == f"data.reference=[{random:.1f},-140.0]: 20 episodes of random actions, and the recorded result of mrq"
    )
    assert measured("Pendulum-v1")[0][0] == random


def test_a_changed_task_has_no_recorded_result():
    dataset = of_returns(-1600.0, -800.0, -900.0)
    (_, expert), (line,) = measured("Pendulum-v1", dataset, ["env.kwargs.g=5"])
    assert (expert, line.endswith("and the best episode of the dataset")) == (-800.0, True)


def test_without_an_expert_the_user_is_asked():
    with pytest.raises(UsageError, match=r"there is no return of an expert; say \[-1\d+\.\d,EXPERT\]"):
        measured("Pendulum-v1", None, ["env.kwargs.g=5"])
    with pytest.raises(UsageError, match=r"from the best episode of the dataset: data.reference="):
        measured("Pendulum-v1", of_returns(-1800.0), ["env.kwargs.g=5"])


def test_returns_that_are_given_stay():
    config = make_config("env=Pendulum-v1", "data.reference=[0,1]")
    assert recording.with_measured_reference(config, None, ()) == (config, [])

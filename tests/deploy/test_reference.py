from types import SimpleNamespace

import numpy as np
import pytest
from graphs import make_config

from drl_cli.deploy import recording
from drl_cli.errors import UsageError
from drl_cli.runs.auto import results
from drl_cli.utils.shown import score_text


def measured(env, dataset=None, words=()):
    config = make_config(f"env={env}", "data.reference=auto")
    changed, lines = recording.with_measured_reference(config, dataset, words)
    return changed.data.reference, lines


def of_returns(*returns):
    return SimpleNamespace(facts=SimpleNamespace(whole_returns=np.array(returns)))


def test_a_random_policy_is_measured_and_the_best_recorded_result_is_the_expert():
    best, algo = max((one["return"], one["algo"]) for one in results() if one["env"] == "Pendulum-v1")
    (random, expert), (line,) = measured("Pendulum-v1")
    assert -1500 < random < -900
    assert expert == best
    start = f"data.reference=[{score_text(random)},{score_text(best)}]"
    assert line == f"{start}: 20 episodes of random actions, and the recorded result of {algo}"
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

import pickle
import re

import numpy as np
import pytest
from graphs import COUNTER

from drl_cli.errors import Diverged
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.roles.divergence import check_metrics, check_state


def diverged(values=((1.0, np.nan),), **columns):
    with pytest.raises(Diverged) as caught:
        check_metrics(["loss", "q_mean"], np.array(values), 10, columns, "the batch was finite")
    return caught.value


def ones(*shape):
    return np.ones((1, *shape), np.float32)


def test_finite_metrics_are_no_error():
    metrics, state = np.zeros((2, 1)), {"a": np.ones(3), "b": np.array(7), "c": np.zeros(0, np.float32)}
    columns = {"reward": np.full((2, 3), np.nan)}
    check_metrics(["loss"], metrics, 10, columns, "")
    check_state(state, 10)
    metrics[1, 0] = state["a"][1] = np.inf
    with pytest.raises(Diverged, match="loss is infinite"):
        check_metrics(["loss"], metrics, 10, columns, "")
    with pytest.raises(Diverged, match="a is infinite"):
        check_state(state, 10)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (((1.0, 1.0), (np.inf, np.nan)), "training diverged at update 12: loss is infinite; the batch was finite"),
        (((1.0, np.nan), (np.nan, 0.0)), "training diverged at update 11: q mean is NaN; the batch was finite"),
    ],
)
def test_the_first_bad_metric_is_named(values, says):
    error = diverged(values, reward=np.ones((2, 3), np.float32))
    assert (str(error), error.exit_code, error.is_data) == (says, 5, False)
    assert error.batch["reward"].shape == (3,)


def test_a_part_of_an_observation_is_named():
    obs, source = ones(4, 2), np.array([[0, 1, 2, 2**16]], np.int32)
    obs[0, 2, 1] = np.nan
    columns = {"obs.arm.angles": obs, "obs.camera": np.full((1, 4, 2), 255, np.uint8), "source": source}
    assert str(diverged(**columns)).endswith("; first bad value: obs.arm.angles from worker 0 env 2")


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (np.s_[0, 3, 1], np.nan, "first bad value: obs from worker 1 env 0"),
        (np.s_[0, 2], -np.inf, "first bad value: obs from worker 0 env 2"),
        (np.s_[0, 3, 1], -3e6, "the batch was finite; its largest value: obs -3e+06 from worker 1 env 0"),
        (np.s_[0], 2e10, "the batch was finite; its largest value: obs 2e+10 from worker 0 env 0"),
        (np.s_[0], 9e9, "the batch was finite"),
        (np.s_[0, 3, 1], 9e5, "the batch was finite"),
    ],
)
def test_the_first_bad_value_and_its_origin_are_named(at, value, says):
    obs, source = ones(4, 2), np.array([[0, 1, 2, 2**16]], np.int32)
    obs[at] = value
    error = diverged(done=np.ones((1, 4), bool), obs=obs, reward=2e5 * ones(4), source=source)
    assert str(error).endswith(f"q mean is NaN; {says}")
    assert error.is_data == (says != "the batch was finite")
    assert str(diverged(obs=obs)).endswith("; " + says.partition(" from")[0])


def test_the_largest_value_of_all_columns_is_named():
    obs, reward = ones(4, 2), ones(4)
    obs[0, 0, 0], reward[0, 1] = 1e12, 1e30
    assert "its largest value: reward 1e+30" in str(diverged(obs=obs, reward=reward, action=1e11 * ones(4)))


def test_sequences_have_an_origin_at_every_step():
    obs, source = ones(4, 3, 2), np.arange(12, dtype=np.int32).reshape(1, 4, 3)
    obs[0, 1, 2, 0] = np.nan
    assert str(diverged(obs=obs, source=source)).endswith("first bad value: obs from worker 0 env 5")


def test_diverged_survives_pickling():
    error = pickle.loads(pickle.dumps(diverged(reward=np.full((1, 3), np.nan))))
    assert str(error).endswith("first bad value: reward")
    assert error.is_data
    assert np.isnan(error.batch["reward"]).all()


def test_skipped_updates_are_counted_and_reported(build_graph, caplog):
    graph = build_graph(COUNTER, "mode=sync", "trainer.on_nonfinite=skip")
    (shard,) = graph.replay.shards
    insert = shard.role.insert

    def poison(headers, columns):
        if headers[0].blocks[0].number == 0:
            columns["reward"][0] = np.inf
        return insert(headers, columns)

    shard.role.insert = poison
    graph.run()
    graph.finish()
    progress = graph.progress
    assert 0 < progress.skipped_updates == progress.samples - progress.opt_steps
    assert progress.report(0.0)["train/skipped_updates"] == progress.skipped_updates
    lines = [re.match(r"(\d+) non-finite updates were skipped", line) for line in caplog.messages]
    counts = [int(match[1]) for match in lines if match]
    assert counts[0] < counts[-1] == progress.skipped_updates
    assert counts == sorted({*counts})  # at once, and with each report, of which a slow run has several
    assert np.isfinite(get(graph.learning.params)).all()

"""An algorithm from outside that learns from windows and writes columns of each step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from graphs import TINY, make_config
from handles import by_name
from outside import my_windows

from drl_cli.envs.make import read_spec
from drl_cli.errors import AlgorithmRefused, UsageError
from drl_cli.preflight.algorithm import write_problems
from drl_cli.preflight.preflight import preflight
from drl_cli.runtime.factories import make_replay
from drl_cli.runtime.place.handles import get
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill
from drl_cli.testing import check_algorithm
from drl_cli.types import Column

NAME = "outside.my_windows"
OVERRIDES = (NAME, "env=CartPole-v1", "network.hidden=[16]")


def test_tables_selects_windows(composed):
    config = fill(build(composed("tuned=none", "env=CartPole-v1", f"algo={NAME}")))
    assert (config.replay.rows, config.replay.table, config.replay.seq_len) == ("windows", "windows", 8)
    preflight(config)


@pytest.mark.slow
def test_it_meets_the_contract():
    check_algorithm(*OVERRIDES)


def written(value):
    """Return an `update` that writes other columns than the value: what `value` returns for the batch."""
    learn = my_windows.Algorithm.update

    def update(self, batch, counts):
        return replace(learn(self, batch, counts), columns=value(batch))

    return update


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (lambda batch: {}, r"Update\.columns has \[\], and WRITES has \['value'\]: value"),
        (lambda batch: {"value": batch["value"], "reward": batch["reward"]}, r"and WRITES has \['value'\]: reward"),
        (
            lambda batch: {"value": batch["value"][:, 0]},
            r"value is torch.float32\[16\], needed is torch.float32\[16, 8\]",
        ),
        (lambda batch: {"value": batch["value"].double()}, r"value is torch.float64\[16, 8\]"),
        (lambda batch: {"value": batch["value"] + torch.inf}, "value is not finite"),
        (lambda batch: {"value": batch["value"].clone().requires_grad_()}, r"value has a gradient; say \.detach\(\)"),
    ],
    ids=["nothing", "undeclared", "shape", "dtype", "infinite", "gradient"],
)
def test_check_algorithm_names_wrong_columns(monkeypatch, columns, message):
    monkeypatch.setattr(my_windows.Algorithm, "update", written(columns))
    with pytest.raises(AssertionError, match=message):
        check_algorithm(*OVERRIDES)


REFUSED = [
    (("replay=fifo-once",), ("value",), "serves its rows and drops them; say replay=uniform or windows"),
    (("replay=windows",), ("valeu",), "has no valeu; it has obs, action, "),
    (("replay=windows",), ("discount",), "has no discount; it has obs, action, "),
    (("replay=sequences", "replay.seq_len=9", "replay.burn_in=2", "replay.overlap=7"), ("value",), "in up to 6 rows"),
    (("replay=sequences", "replay.seq_len=9", "replay.burn_in=0", "replay.overlap=0"), ("value",), None),
    (("replay=windows",), ("value", "reward"), None),
    (("replay=prioritized", "replay.rows=windows"), ("value",), None),
    (("replay=uniform",), ("value",), None),
]


@pytest.mark.parametrize(("words", "writes", "problem"), REFUSED, ids=lambda each: str(each))
def test_columns_that_replay_cannot_replace_are_refused(monkeypatch, words, writes, problem):
    monkeypatch.setattr(my_windows, "WRITES", writes)
    config = make_config("env=CartPole-v1", f"algo={NAME}", *words)
    lines = [*write_problems(config, read_spec(config.env))]
    assert len(lines) == (problem is not None)
    assert problem is None or problem in lines[0]


def test_a_run_is_refused_before_it_starts(monkeypatch, composed):
    monkeypatch.setattr(my_windows, "WRITES", ("valeu",))
    with pytest.raises(UsageError, match="has no valeu"):
        preflight(fill(build(composed("tuned=none", "env=CartPole-v1", f"algo={NAME}"))))


def test_images_are_not_written(monkeypatch):
    monkeypatch.setattr(my_windows, "WRITES", ("obs",))
    config = make_config("env=drl_cli.envs.probes:Frames-v0", f"algo={NAME}")
    (line,) = write_problems(config, read_spec(config.env))
    assert "images can't be changed: obs" in line


def test_columns_of_another_shape_end_the_run(run_graph, monkeypatch):
    monkeypatch.setattr(my_windows.Algorithm, "update", written(lambda batch: {"value": batch["value"][:, 0]}))
    with pytest.raises(AlgorithmRefused, match=r"Update\.columns: value has shape \(16,\), the batch has \(16, 8\)"):
        run_graph("env=CartPole-v1", f"algo={NAME}", "mode=single")


def test_every_sampled_step_gets_its_new_value(run_graph, monkeypatch):
    """The new value follows from the observation, so that each step shows whether it got its own value."""
    learn = my_windows.Algorithm.update

    def update(self, batch, counts):
        number = (batch["obs"][..., 0] + 1000) * batch["valid"]
        return replace(learn(self, batch, counts), columns={"value": number})

    monkeypatch.setattr(my_windows.Algorithm, "update", update)
    graph = run_graph("env=CartPole-v1", f"algo={NAME}", "mode=single", "replay.capacity=300", "trainer.batch_size=32")
    rows = get(by_name(graph.replay.shards[0], "contents"))
    is_written = rows["value"] > 500
    assert is_written.mean() > 0.5
    np.testing.assert_array_equal(rows["value"][is_written], rows["obs"][is_written, 0] + 1000)


def test_workers_rate_windows_by_the_return(run_graph):
    args = ("replay.rows=windows", "replay=prioritized", "replay.initial_priority=worker", "algo.n_step=3")
    graph = run_graph(
        "env=CartPole-v1", f"algo={NAME}", "mode=single", *args, "replay.alpha=1", "orchestrator.min_inserts=500"
    )
    shard = graph.replay.shards[0]
    rows = get(by_name(shard, "contents"))
    values = shard.role.table.sampler.tree.values[: len(rows["reward"])]
    assert len({*values.round(5).tolist()}) > 100  # every row has a priority of its own
    assert rows["is_random"].sum() > 400
    assert np.median(values[rows["is_random"]]) > 2.0  # their value is 0, and three rewards are 2.97
    assert rows["reward"].max() == 1.0  # single steps


@pytest.mark.parametrize("wanted", ["no", "read", "written"])
def test_windows_have_the_state_of_each_step_on_demand(monkeypatch, wanted):
    monkeypatch.setattr(my_windows, "STEP_STATES", wanted == "read", raising=False)
    monkeypatch.setattr(my_windows, "WRITES", ("state",) if wanted == "written" else ())
    monkeypatch.setattr(my_windows.Policy, "memory_size", 3)
    columns = {"value": Column((), "float32"), "is_random": Column((), "bool"), "state": Column((3,), "float32")}
    monkeypatch.setattr(my_windows.Policy, "extra_columns", staticmethod(lambda *args: columns))
    config = make_config("env=CartPole-v1", f"algo={NAME}", "replay.seq_len=5", *TINY)
    spec, num = read_spec(config.env), 40
    replay = make_replay(config, spec, 0)
    schema = replay.table.store.columns
    rows = {name: np.zeros((num, *column.shape[1:]), column.dtype) for name, column in schema.items()}
    rows |= {"discount": rows["reward"], "state": np.arange(3.0 * num, dtype=np.float32).reshape(num, 3)}
    replay.table.insert(rows, np.zeros(num, np.int64))
    drawn = replay.table.sample(2, 8, 0)
    state, valid = drawn.columns["state"], drawn.columns["valid"]
    assert state.shape == ((2, 8, 3) if wanted == "no" else (2, 8, 5, 3))
    if wanted == "no":
        return
    np.testing.assert_array_equal(state[..., 1:, 0][valid[..., 1:]], (state[..., :-1, 0] + 3)[valid[..., 1:]])
    assert not state[~valid].any()
    if wanted == "written":
        replay.table.write(drawn.row_ids, {"state": state + 1000})
        assert (replay.contents()["state"][drawn.row_ids[valid]] == state[valid] + 1000).all()

"""Environment faults in a worker and in a run: no row crosses a fault and all counters are exact."""

from itertools import product

import numpy as np
import pytest
from choices import some
from counting import check_counter_rows
from graphs import COUNTER, TINY, make_config, workers
from handles import by_name

from drl_cli.envs.make import read_spec
from drl_cli.errors import EnvironmentFailed
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.roles.worker import Worker
from drl_cli.settings import first_try
from drl_cli.types import LoadParams, num_rows

FAULTY = "env=drl_cli.envs.probes:Faulty-v0"
FAULTS = ("raise", "nan_obs", "inf_reward", "shape", "hang", "reset")
TABLES = {
    "one step": (),
    "three steps": ("algo.n_step=3",),
    "rollouts": ("algo=ppo", "algo.minibatch_size=8"),
    "sequences": ("replay=sequences", "replay.seq_len=4", "replay.burn_in=2", "replay.overlap=1"),
}
AT = 24


@pytest.fixture(autouse=True)
def no_trial(monkeypatch):
    """No environment is tried before a run, because the trial would meet the fault that happens once."""
    monkeypatch.setattr(first_try, "trial_of", lambda *args: None)


def collect(*overrides, blocks=6, version=0):
    """Return a worker with three environments and the headers and columns of blocks with 10 random steps."""
    config = make_config(*TINY, "worker.num=1", "worker.envs=3", "worker.block_rows=30", *overrides)
    worker = Worker(config, read_spec(config.env), 0, 0)
    params_header, params = LoadParams(version, 0, 0, random_actions=True), np.zeros(10_000, np.float32)
    worker.policy.load = lambda vector: None
    taken = [worker.collect(params_header, None if i else params) for i in range(blocks)]
    return worker, [header for header, _ in taken], [columns for _, columns in taken]


def joined(blocks):
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def faulty(fault, path):
    return (FAULTY, f"+env.kwargs.fault={fault}", f"+env.kwargs.at={AT}", f"+env.kwargs.file={path}")


@pytest.mark.parametrize(
    ("fault", "table"), [*product(("raise", "reset"), TABLES), *product(FAULTS[1:5], ("three steps", "sequences"))]
)
def test_a_fault_does_not_change_the_rows_of_other_environments(tmp_path, alarms, fault, table):
    """Environment 0 fails once, in the third of six blocks."""
    overrides = (*TABLES[table], "network.hidden=[4]")
    worker, headers, blocks = collect(*faulty(fault, tmp_path / "once"), *overrides)
    _, _, expected = collect(COUNTER, *overrides)
    rows, expected = joined(blocks), joined(expected)
    source = rows["source"] if "valid" not in rows else rows["source"].max(1)
    others = source > 0
    expected_others = (expected["source"] if "valid" not in expected else expected["source"].max(1)) > 0
    for name, column in expected.items():
        np.testing.assert_array_equal(rows[name][others], column[expected_others], err_msg=name)

    lost = 0 if fault == "reset" else 1
    assert [header.env_steps for header in headers] == [30, 30, 30 - lost, 30, 30, 30]
    assert worker.env_steps == 180 - lost == headers[-1].blocks[0].last_env_step
    assert sum(header.rows for header in headers) == 180 - lost - worker.builder.open_rows
    faults = [fault for header in headers for fault in header.faults]
    assert len(faults) == len(headers[2].faults) == 1
    assert faults[0].startswith("worker 0 env 0: ")
    assert faults[0].endswith("environment rebuilt 1/10 (worker.max_restarts)")

    first = int(expected["obs"][~expected_others].reshape(-1, 3)[:, 0].max())
    lived = 25 if fault == "reset" else AT - 1  # episodes end after 3, 7, 12, 18, 25 steps
    if table == "sequences":
        check_sequences(rows, first, lived, 180 - lost - worker.builder.open_rows)
        return
    assert [header.rows for header in headers] == [num_rows(block) for block in blocks]
    n_step = 3 if table == "three steps" else 1
    check_counter_rows(rows, n_step, 0.99, 180 - lost, failed_after={first: lived})
    if table == "rollouts":
        mine = blocks[2]["obs"][:, 0] == first
        assert blocks[2]["cut"][mine].tolist() == [False] * (mine.sum() - 1) + [True]
        follows = (rows["next_obs"][:-1] == rows["obs"][1:]).all(1) & ~(rows["terminated"] | rows["truncated"])[:-1]
        assert (follows | rows["cut"][:-1]).all()


def check_sequences(rows, tag, lived, num_steps):
    """Check that rows hold consecutive steps of one episode and that no step of the failed environment is lost."""
    learned = set()
    for obs, mask, truncated in zip(rows["obs"], rows["valid"], rows["truncated"], strict=True):
        real = obs[mask]
        assert len(np.unique(real[:, :2], axis=0)) == 1
        assert (np.diff(real[:, 2]) == 1).all()
        learned |= {tuple(step) for step in obs[2:][mask[2:]].tolist()}
        if (real[-1] == (tag, 4, lived - 19)).all() and lived != 25:  # the last step before it failed
            assert truncated[mask].tolist() == [False] * (len(real) - 1) + [True]
    assert (len(learned), sum(step[0] == tag for step in learned)) == (num_steps, lived)


def test_recurrent_policies_reset_at_faults(tmp_path):
    config = make_config(*TINY, *faulty("nan_obs", tmp_path / "once"), "worker.num=1", "worker.envs=3")
    worker, begun = Worker(config, read_spec(config.env), 0, 0), []
    random = worker.policy.random

    def see(obs, last):
        if last.begins.any():
            begun.append(np.flatnonzero(last.begins).tolist())
            assert not last.action[last.begins].any()
            assert not last.reward[last.begins].any()
        return random(obs, last)

    worker.policy.random = see
    for _ in range(AT + 1):
        worker._step(random_actions=True)
    assert begun == [[0, 1, 2]] * 5 + [[0]]  # at first, after 3, 7, 12 and 18 steps, and at the fault


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_too_many_faults_end_the_run(max_restarts):
    with pytest.raises(EnvironmentFailed) as caught:
        collect(FAULTY, "+env.kwargs.at=4", f"worker.max_restarts={max_restarts}")
    message = str(caught.value)
    assert message.startswith(f"worker 0 env {max_restarts}: step raised RuntimeError: probe crashed at step 4")
    assert f"(worker.max_restarts={max_restarts})" in message
    assert ("the first fault was in env 0: step raised RuntimeError" in message) == (max_restarts > 0)
    assert caught.value.exit_code == 4


def test_an_error_of_the_policy_is_not_blamed_on_the_environment(monkeypatch):
    config = make_config(*TINY, COUNTER, "worker.num=1")
    worker = Worker(config, read_spec(config.env), 0, 0)
    worker.policy.random = lambda obs, last: 1 / 0
    worker.policy.load = lambda vector: None
    with pytest.raises(ZeroDivisionError):
        worker.collect(LoadParams(0, 0, 0, random_actions=True), np.zeros(1))


@pytest.mark.parametrize("fault", ["raise", "nan_obs", "shape", "reset", "hang"])
@pytest.mark.parametrize(("mode", "n_step", "proxies"), some([("single", 1, 0), ("sync", 3, 1)], ("sync", 3, 1)))
def test_runs_with_faults_have_exact_rows_and_counts(run_graph, alarms, caplog, mode, fault, n_step, proxies):
    """Every environment and every replacement fails at its 40th step."""
    args = (
        FAULTY,
        f"+env.kwargs.fault={fault}",
        "+env.kwargs.at=40",
        "worker.max_restarts=100",
        "worker.num=2",
    )
    graph = run_graph(*args, f"mode={mode}", f"algo.n_step={n_step}", f"worker.proxies={proxies}")
    progress, rows = graph.progress, get(by_name(graph.replay.shards[0], "contents"))
    alive = {tag for worker in workers(graph) for tag in worker.envs.obs[:, 0]}
    lived = 43 if fault == "reset" else 39  # the episode that ends then is the first to end after 40 steps
    failed_after = {tag: lived for tag in np.unique(rows["obs"][:, 0]) if tag not in alive}
    check_counter_rows(rows, n_step, 0.99, progress.env_steps, failed_after=failed_after)
    assert progress.env_steps == sum(worker.env_steps for worker in workers(graph)) >= 512
    assert progress.inserts == len(rows["obs"]) == progress.env_steps - sum(w.builder.open_rows for w in workers(graph))
    faults = [record.getMessage() for record in caplog.records if "environment rebuilt" in record.getMessage()]
    assert progress.env_restarts == len(faults) >= len(failed_after) > 0
    assert all(line.startswith("worker ") for line in faults)
    assert graph.stop_reason == "total_env_steps"


@pytest.mark.ray
@pytest.mark.parametrize("fault", some(["raise", "hang"], "hang"))
def test_async_on_ray(run_graph, caplog, tmp_path, fault):
    """After a hang only the environment is replaced, not the worker."""
    file = f"+env.kwargs.file={tmp_path / 'once'}" if fault == "hang" else "worker.max_restarts=100"
    graph = run_graph(
        *(
            FAULTY,
            f"+env.kwargs.fault={fault}",
            "+env.kwargs.at=40",
            "mode=async",
            "worker.num=2",
            "algo.n_step=3",
        ),
        *("worker.step_timeout_s=2", "total_env_steps=1024", file),
        on_ray=True,
    )
    rows, progress = get(by_name(graph.replay.shards[0], "contents")), graph.progress
    faults = [record.getMessage() for record in caplog.records if "environment rebuilt" in record.getMessage()]
    assert progress.env_restarts == len(faults) > 0
    assert progress.worker_restarts == 0
    tags, counts = np.unique(rows["obs"][:, 0], return_counts=True)
    failed = {tag: 39 for tag, count in zip(tags, counts, strict=True) if count == 39}
    assert len(failed) == len(faults)
    check_counter_rows(rows, 3, 0.99, progress.env_steps, failed_after=failed)

"""A worker with EnvPool environments gives the same rows as a worker with single environments."""

import fake_envpool
import numpy as np
import pytest
from graphs import TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.errors import EnvironmentFailed
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import LoadParams

TABLES = {
    "n_step": ("algo.n_step=5",),
    "rollouts": ("algo=ppo", "algo.minibatch_size=8"),
    "sequences": ("replay=sequences", "replay.seq_len=4", "replay.burn_in=2", "replay.overlap=1"),
}


@pytest.fixture
def make_worker(monkeypatch):
    fake_envpool.install(monkeypatch)

    def make(*overrides):
        sizes = ("worker.num=1", "worker.envs=3", "worker.block_rows=30")
        config = make_config(*TINY, "env=FakePlain-v0", "env.backend=envpool", *sizes, *overrides)
        worker = Worker(config, read_spec(config.env), 0, 0)
        worker.policy.load = lambda vector: None
        return worker

    return make


def collect(worker, num_blocks):
    params_header, params = LoadParams(0, 0, 0, random_actions=True), np.zeros(1, np.float32)
    taken = [worker.collect(params_header, params) for _ in range(num_blocks)]
    blocks = [columns for _, columns in taken]
    return [header for header, _ in taken], {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


@pytest.mark.parametrize(("table", "limit"), [("n_step", "null"), ("rollouts", "4"), ("sequences", "4")])
def test_rows_equal_those_of_single_environments(make_worker, monkeypatch, table, limit):
    overrides = (*TABLES[table], f"env.max_episode_steps={limit}")
    worker = make_worker(*overrides)
    headers, rows = collect(worker, 6)
    assert worker.envs.pool.reset_rows == 0
    monkeypatch.setattr("drl_cli.runtime.roles.worker.EnvPoolBatch", EnvBatch)
    single = make_worker(*overrides)
    assert isinstance(single.envs, EnvBatch)
    expected_headers, expected = collect(single, 6)
    assert rows.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(rows[name], column, err_msg=name)
    assert [header.blocks for header in headers] == [header.blocks for header in expected_headers]
    assert [header.episodes for header in headers] == [header.episodes for header in expected_headers]
    assert worker.env_steps == 180


def test_a_failed_step_gives_no_row(make_worker):
    worker = make_worker("+env.kwargs.fault=nan_obs", "+env.kwargs.fault_at=12", "algo.n_step=3")
    headers, rows = collect(worker, 3)
    assert [header.env_steps for header in headers] == [30, 29, 30]
    assert headers[1].faults == ("worker 0 env 1: observation[0] is nan; new episode 1/10 (worker.max_restarts)",)
    assert len(rows["reward"]) == 89 - worker.builder.open_rows
    assert all(np.isfinite(column).all() for column in rows.values())


def test_a_pool_that_raises_ends_the_worker(make_worker):
    worker = make_worker("+env.kwargs.fault=raise")
    with pytest.raises(EnvironmentFailed, match="worker 0 EnvPool's step raised RuntimeError: the simulator is gone"):
        collect(worker, 1)


def test_a_resumed_worker_warns_and_starts_new_episodes(make_worker, caplog):
    """Open rows end as truncated; no row crosses into a new episode and no row is lost."""
    first, second = make_worker("algo.n_step=5"), make_worker("algo.n_step=5")
    _, before = collect(first, 2)
    second.load_state(first.state())
    lines = ["worker 0 envs 0 to 2: EnvPool can't continue episodes; they begin others"]
    assert [record.getMessage() for record in caplog.records] == lines
    headers, after = collect(second, 2)
    assert ([header.env_steps for header in headers], headers[0].blocks[0].first_env_step) == ([27, 30], 60)
    assert len(before["reward"]) + len(after["reward"]) == 117 - second.builder.open_rows
    assert (after["obs"][:, 0] == after["next_obs"][:, 0]).all()
    assert (after["obs"][:, 1] == after["next_obs"][:, 1]).all()
    assert after["truncated"].sum() > 0


def test_a_run_resumes_with_and_without_envpool(make_worker, monkeypatch):
    """The test of resume=RUN env.backend=... confirm=true in both directions."""
    first = make_worker()
    collect(first, 2)
    monkeypatch.setattr("drl_cli.runtime.roles.worker.EnvPoolBatch", EnvBatch)
    second = make_worker()
    second.load_state(first.state())
    headers, _ = collect(second, 2)
    assert [header.env_steps for header in headers] == [27, 30]
    monkeypatch.undo()
    fake_envpool.install(monkeypatch)
    third = make_worker()
    third.load_state(second.state())
    assert [header.env_steps for header in collect(third, 1)[0]] == [27]


@pytest.mark.slow
def test_counters_are_equal_with_and_without_envpool(run_graph, monkeypatch):
    fake_envpool.install(monkeypatch)
    overrides = ("env=FakeCounter-v0", "mode=single", "worker.num=1", "algo.n_step=3")
    pooled, plain = (run_graph(*overrides, f"env.backend={name}") for name in ("envpool", "gymnasium"))
    assert pooled.progress.env_steps == plain.progress.env_steps == 512
    assert pooled.progress.opt_steps == plain.progress.opt_steps > 0
    assert pooled.progress.inserts == plain.progress.inserts

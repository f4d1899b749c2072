import numpy as np
import pytest
from graphs import TINY, make_config

from drl_cli.bench import collect, replay, updates
from drl_cli.bench.collect import Collecting
from drl_cli.bench.replay import Replaying
from drl_cli.bench.updates import Updating, lone_trainer
from drl_cli.envs.make import read_spec
from drl_cli.runtime.trial import single_trainer


def parts(*overrides):
    """Config, spec, header and first parameters of a small run."""
    config = single_trainer(make_config(*TINY, *overrides), threads=1)
    spec = read_spec(config.env)
    return config, spec, *lone_trainer(config, spec).publish(0, 0)


def states(envs):
    return [env.unwrapped.state.tolist() for env in envs]


def test_the_bare_loop_repeats_the_workers_episodes():
    both = Collecting(*parts("env=Pendulum-v1", "env.max_episode_steps=7"))
    both.by_worker(3)
    assert states(both.bare.envs) != states(env.raw for env in both.worker.envs.envs)
    both.by_bare_loop()
    assert states(both.bare.envs) == states(env.raw for env in both.worker.envs.envs)
    both.by_worker(1)
    both.by_bare_loop()
    assert states(both.bare.envs) == states(env.raw for env in both.worker.envs.envs)
    assert both.worker.env_steps == 5 * both.rows
    both.close()


def test_collect_is_measured_with_the_number_of_environments_asked_for():
    config, spec, params_header, params = parts("env=Pendulum-v1")
    ours, bare = collect.measure(config, spec, params_header, params, 2, 0.05)
    assert len(ours) == len(bare) == 5
    assert all(rate.per_s > 0 and rate.per_cpu_s > 0 for rate in (*ours, *bare))


@pytest.mark.slow
def test_the_bare_loop_plays_the_games_of_ale_py_with_the_workers_actions():
    pytest.importorskip("ale_py", minversion="0.12.1", reason="needs the extra atari:  pip install 'drl-cli[atari]'")
    game = ("env=Pong", "algo=dqn", "env.backend=ale", "network.channels=0.125", "network.hidden=[8]", "worker.envs=2")
    both = Collecting(*parts(*game, "env.kwargs.protocol=machado", "+env.kwargs.max_frames=40", "worker.block_rows=30"))
    both.by_bare_loop()
    both.by_worker(1)
    both.by_bare_loop()
    none = {"reset_mask": np.zeros(2, np.bool_)}
    seen = [pool.reset(options=none) for pool in (both.bare.vector, both.worker.envs.pool)]
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert seen[0][1]["frame_number"].min() > 40
    both.close()


@pytest.mark.parametrize("rows", [(), ("replay.rows=windows",)], ids=["own rows", "windows"])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "sequences"])
def test_a_table_is_filled_with_real_rows_and_served_from(sampler, rows):
    if rows and sampler == "sequences":
        pytest.skip("the same as prioritized windows")
    config, *rest = parts("env=Pendulum-v1", f"replay={sampler}", "replay.capacity=600", "trainer.batch_size=16", *rows)
    table = Replaying(config, *rest, seconds=30.0)
    assert table.is_full
    assert len(table.replay.table) == config.replay.num_rows
    rows = table.replay.contents()
    assert len(np.unique(rows["obs"])) > 100
    before = table.replay.table.inserts
    assert table.insert() == table.replay.table.inserts - before > 0
    assert table.serve(3) == 3
    rates = replay.measure(table, 0.05)
    assert list(rates) == ["insert", "draw"]


def test_new_priorities_are_given():
    table = Replaying(*parts("env=Pendulum-v1", "replay=prioritized", "replay.capacity=600"), seconds=30.0)
    header, columns = table.draw(1)
    assert np.ptp(columns["weight"]) == 0  # nothing has been learned from yet
    for _ in range(20):
        table.serve(2)
    assert np.ptp(table.draw(1)[1]["weight"]) > 0
    assert header.row_ids is not None


def test_a_queue_gets_what_it_serves():
    table = Replaying(*parts("env=Pendulum-v1", "algo=ppo", "trainer.batch_size=64"), seconds=0.1)
    assert ([table.serve(1) for _ in range(3)], list(replay.measure(table, 0.05))) == ([1, 1, 1], ["draw"])


@pytest.mark.parametrize(
    ("overrides", "per_batch"),
    [
        (("env=Pendulum-v1",), 1),
        (("env=CartPole-v1", "algo=dqn", "replay=prioritized"), 1),
        (("env=Pendulum-v1", "algo=ppo", "trainer.batch_size=64", "algo.minibatch_size=16", "algo.epochs=3"), 12),
    ],
)
def test_the_trainer_learns_from_the_table(overrides, per_batch):
    config, spec, params_header, params = parts(*overrides)
    side = Updating(Replaying(config, spec, params_header, params, seconds=0.5), spec, threads=1)
    before, done = side.trainer.publish(1, 0)[1], side.train()
    assert done == side.trainer.opt_steps == config.updates_per_call * per_batch
    assert side.updates_per_batch == per_batch
    assert not np.array_equal(before, side.trainer.publish(2, 0)[1])
    assert {threads: len(rounds) for threads, rounds in updates.measure([side], 0.01).items()} == {1: 5}


def test_one_of_several_trainers_has_its_share_of_a_batch():
    config = single_trainer(make_config("mode=sync", "trainer.num=2", "trainer.batch_size=256"), threads=1)
    assert (config.trainer.num, config.trainer.batch_size) == (1, 128)

"""data=... in the modes with workers: a share of every batch comes from the dataset."""

import numpy as np
import pytest
from datasets import record
from graphs import COUNTER, at, weights

from drl_cli.envs.probes import Counter

MIXED = (COUNTER, "algo=td3", "total_env_steps=256", "data.share=0.25")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The words for a dataset of Counter whose environment has the number -7."""
    path, env = tmp_path_factory.mktemp("data") / "counter.npz", Counter()
    env.tags = 1  # reset sets the number of the environment to 0
    record(env, path)
    return f"data.source={path}"


def batches(graph):
    """Collect the batches that the trainer gets."""
    found, trainer = [], graph.trainers["trainer"].role
    train = trainer.train
    trainer.train = lambda header, columns: (found.append(columns), train(header, columns))[1]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("replay=prioritized", "algo.n_step=3"), ("algo=mrq",)])
@pytest.mark.parametrize("mode", ["single", "sync", "async"])
def test_the_share_is_held_in_every_batch(run_graph, data, mode, options):
    seen = []
    graph = run_graph(*MIXED, data, f"mode={mode}", *options, started=lambda graph: seen.append(batches(graph)))
    (found,) = seen
    assert sum(len(columns["reward"]) for columns in found) == graph.progress.opt_steps > 20
    for columns in found:
        tags = columns["obs"][..., 0]
        first = tags if tags.ndim == 2 else tags[..., 0]  # of windows, the first step
        np.testing.assert_array_equal((first == 0).sum(1), first.shape[1] // 4)
    assert graph.progress.env_steps >= 256
    assert graph.progress.inserts <= graph.progress.env_steps
    assert graph.replay.shards[0].role.table.stats()["recorded_rows"] > 390


@pytest.mark.slow
@pytest.mark.parametrize("options", [("env.normalize_obs=true",), ("replay=prioritized",)])
def test_equal_seeds_give_equal_weights_and_a_resumed_run_goes_on_bit_for_bit(run_graph, data, options):
    words = (*MIXED, data, "mode=single", *options)

    def interrupt(graph):
        at(graph, 128, graph.interrupt)

    whole, half = run_graph(*words), run_graph(*words, started=interrupt)
    assert half.progress.env_steps < 256
    assert weights(run_graph(*words)) == weights(whole)
    resumed = run_graph(*words, run=half.folder)
    assert weights(resumed) == weights(whole)
    saved = {path.name for path in (half.folder / "checkpoints/last").glob("state.replay-0.*")}
    assert saved == {"state.replay-0.safetensors", "state.replay-0.00000.safetensors"}  # only the run's own rows


def test_the_statistics_include_the_recorded_rows(run_graph, data):
    graph = run_graph(*MIXED, data, "mode=single", "env.normalize_obs=true")
    manager = graph.replay.shards[0].role
    assert manager.moments.count == manager.table.inserts + len(manager.table.recorded)


def test_recorded_rows_begin_with_equal_priorities(run_graph, tmp_path):
    record("CartPole-v1", tmp_path / "cartpole.npz", 100)
    words = ("env=CartPole-v1", "algo=dqn", "mode=single", f"data.source={tmp_path / 'cartpole.npz'}")
    priorities = ("replay=prioritized", "replay.initial_priority=worker", "orchestrator.min_inserts=512")
    table = run_graph(*words, *priorities, "total_env_steps=256").replay.shards[0].role.table
    own, recorded = (each.sampler.tree.values[: len(each)] for each in (table.own, table.recorded))
    assert len(np.unique(own)) > 100
    assert len(np.unique(recorded)) == 1

"""The option replay.age_factor, in every kind of prioritized table."""

from dataclasses import replace

import numpy as np
import pytest
from replays import CONFIGS, SCHEMA, Source, make

from drl_cli.replay.base import Load
from drl_cli.replay.samplers import FadedTree, SumTree
from drl_cli.types import Column

LOAD = Load(1000, 8, 8, 8, is_async=False, versions_per_batch=1)
FADED = CONFIGS["prioritized-faded"]


def test_importance_weights_have_the_faded_probabilities():
    table = replace(FADED, alpha=1.0, beta=1.0, uniform_mix=0.25).make_table(SCHEMA, np.random.default_rng(0), 9)
    table.insert(*Source("prioritized").block(30))
    priorities = np.random.default_rng(1).uniform(0.1, 3, 30)
    table.update_priorities(np.arange(30)[None], priorities[None])
    drawn = table.sample(3, 16, 0).columns
    values = (priorities + FADED.eps) * np.maximum(0.9 ** np.arange(29, -1, -1.0), 0.1)
    probability = 0.75 * values / values.sum() + 0.25 / 30
    expected = 1 / probability[drawn["id"]]
    np.testing.assert_allclose(drawn["weight"], expected / expected.max(1, keepdims=True), rtol=1e-5)


def test_a_row_ages_by_the_transitions_of_all_shards_and_of_a_whole_sequence():
    half = FADED.share(0, 2)
    assert (half.age_factor, half.num_rows) == (pytest.approx(0.81), 20)
    sequences = replace(CONFIGS["sequences"], seq_len=5, overlap=2, age_factor=0.9)
    schema = {name: Column((4, *column.shape), column.dtype) for name, column in SCHEMA.items()}
    table = sequences.make_table(schema, np.random.default_rng(0), 9)
    assert table.sampler.tree.age_factor == pytest.approx(0.9**3)


def test_an_age_factor_of_1_is_the_plain_tree():
    assert type(make("prioritized").sampler.tree) is SumTree
    assert type(make("prioritized-faded").sampler.tree) is FadedTree
    assert FADED.without_ages() == CONFIGS["prioritized"]
    assert FADED.table_bytes(SCHEMA) == make("prioritized-faded").nbytes > make("prioritized").nbytes


def test_an_age_needs_rows_in_order():
    (problem,) = replace(FADED, remover="random").problems(LOAD)
    assert problem == "replay.age_factor=0.9 needs rows in order; say replay.remover=oldest"
    assert [*FADED.problems(LOAD)] == [*replace(FADED, remover="random", age_factor=1.0).problems(LOAD)] == []


def test_the_age_continues_in_a_copy_from_the_state_and_the_rows():
    table, again, source = make("prioritized-faded"), make("prioritized-faded", seed=5), Source("prioritized-faded")
    for _ in range(9):
        table.insert(*source.block(7))
    again.load_state(table.state())
    again.store.fill([{name: column.copy() for name, column in table.store.columns.items()}])
    assert isinstance(again.sampler.tree, FadedTree)
    np.testing.assert_array_equal(again.sampler.tree.take(np.arange(40)), table.sampler.tree.take(np.arange(40)))
    np.testing.assert_array_equal(again.sample(4, 64, 0).row_ids, table.sample(4, 64, 0).row_ids)

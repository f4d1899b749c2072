"""Seeds of workers: no two of them, and no two incarnations of one, act alike at random or see the same episodes."""

from itertools import combinations

import numpy as np
import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.roles.worker import Worker

LIVES = [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.fixture(scope="module")
def blocks():
    """The first columns of each life (index, incarnation), whose actions are random ones."""
    config = make_config(*TINY, COUNTER, "worker.num=2", "worker.envs=3", "worker.block_rows=30")
    spec, load = read_spec(config.env), LoadParams(-1, 0, 0, random_actions=True)
    return [Worker(config, spec, *life).collect(load)[1] for life in LIVES]


def test_environments_of_all_lives_have_seeds_of_their_own(blocks):
    tags = [set(block["obs"][:, 0].tolist()) for block in blocks]
    assert [len(of_life) for of_life in tags] == [3] * len(LIVES)
    assert len(set.union(*tags)) == 3 * len(LIVES)


def test_policies_of_all_lives_draw_other_actions(blocks):
    for one, other in combinations(blocks, 2):
        assert not np.isin(one["action"], other["action"]).any()

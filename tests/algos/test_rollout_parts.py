"""Rollout: chunks, minibatches, and features without autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import LOOKS, VECTOR, Learner

from drl_cli.algos import rollout as module
from drl_cli.algos.rollout import Rollout, chunks
from drl_cli.optim.group import ProcessGroup


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 9))
def test_chunks_are_runs_of_steps_of_one_episode(cut, length):
    index, real = chunks(np.array(cut), length)
    assert index.shape == real.shape
    assert index.shape[1] <= length
    assert real.any(0).all()  # no chunk is longer than it has to be
    expected, chunk = [], []
    for row, ends in enumerate(cut):
        chunk.append(row)
        if ends or len(chunk) == length or row == len(cut) - 1:
            expected, chunk = [*expected, chunk], []
    assert [rows[mask].tolist() for rows, mask in zip(index, real, strict=True)] == expected
    for rows, mask in zip(index, real, strict=True):
        assert (mask[: mask.sum()]).all()
        assert (rows[~mask] == rows[mask][-1]).all()  # padding repeats the last


def make(look, minibatch_size=4, seq_len=3, group=None, envs=3, steps=10):
    learner = Learner("ppo", "discrete", *LOOKS.get(look, (VECTOR, "none")))
    algorithm = learner.algorithm()
    batch = learner.rollout(algorithm, envs=envs, steps=steps)
    rollout = Rollout(batch, algorithm.encoder, group or ProcessGroup(), minibatch_size, seq_len)
    rollout.rows["number"] = torch.arange(envs * steps)
    return rollout, batch, algorithm


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("look", ["plain", "image", "tree"])
def test_every_row_comes_once_in_random_order(look):
    rollout, batch, _ = make(look)
    parts = list(rollout.minibatches(generator()))
    assert [len(part["number"]) for part in parts] == [4] * 7 + [2]
    order = torch.cat([part["number"] for part in parts])
    assert torch.equal(order, torch.randperm(30, generator=generator()))
    for part in parts:
        assert torch.equal(part["action"], batch["action"][part["number"]])
        if look == "tree":
            assert torch.equal(part["obs"]["camera"], batch["obs"]["camera"][part["number"]])
    assert ("next_obs" in parts[0]) == (look != "plain")


def test_every_chunk_comes_once_with_its_first_state():
    rollout, batch, _ = make("memory", minibatch_size=7)
    parts = list(rollout.minibatches(generator()))
    firsts = torch.cat([part["number"][:, 0] for part in parts])
    order = torch.randperm(len(rollout.index), generator=generator())
    assert torch.equal(firsts, rollout.index[order, 0])
    assert {len(part["number"]) for part in parts[:-1]} == {2}  # seven steps are two chunks of three
    taken = torch.cat([part["number"][part["valid"]] for part in parts])
    assert sorted(taken.tolist()) == list(range(30))
    for part in parts:
        assert torch.equal(part["state"], batch["state"][part["number"][:, 0]])
    rollout, *_ = make("memory", minibatch_size=2)
    assert {len(part["number"]) for part in rollout.minibatches(generator())} == {1}
    rollout, *_ = make("memory", minibatch_size=12, group=ProcessGroup(0, 2))
    assert len(next(rollout.minibatches(generator()))["number"]) == 2  # the other trainer has the other half


@pytest.mark.parametrize("look", ["plain", "image"])
def test_several_trainers_share_each_minibatch(look):
    rollouts = [make(look, 7, group=ProcessGroup(rank, 2))[0] for rank in range(2)]
    order = torch.randperm(60, generator=generator())
    pairs = zip(*(rollout.minibatches(generator()) for rollout in rollouts), strict=True)
    for both, part in zip(pairs, torch.split(order, 7), strict=True):
        for rank, mine in enumerate(both):
            is_mine = (part >= 30 * rank) & (part < 30 * rank + 30)
            if is_mine.any():
                assert torch.equal(mine["is_mine"], is_mine)
                assert torch.equal(mine["number"], part[is_mine] - 30 * rank)
            else:
                assert mine["is_mine"].tolist() == [True] + [False] * (len(part) - 1)
            assert mine["valid_weight"].tolist() == pytest.approx(
                [2 * int(is_mine.sum()) / len(part)] * len(mine["number"])
            )
        assert sum(
            (mine["valid_weight"].sum() if mine["valid_weight"].any() else 0) / len(mine["valid_weight"])
            for mine in both
        ) == pytest.approx(2)


def test_a_trainer_without_rows_in_a_minibatch_gets_one_row_of_weight_0():
    rollouts = [make("plain", 1, group=ProcessGroup(rank, 2), envs=1, steps=3)[0] for rank in range(2)]
    for both in zip(*(rollout.minibatches(generator()) for rollout in rollouts), strict=True):
        assert sorted(mine["valid_weight"].tolist() for mine in both) == [[0.0], [2.0]]
        assert all(mine["is_mine"].tolist() == [True] and len(mine["number"]) == 1 for mine in both)


@pytest.mark.parametrize("look", ["plain", "image", "tree", "memory"])
def test_features_of_all_rows_without_autograd(look, monkeypatch):
    rollout, batch, algorithm = make(look)
    grads, features = [], algorithm.encoder.features

    def noted(obs):
        grads.append(torch.is_grad_enabled())
        return features(obs)

    monkeypatch.setattr(algorithm.encoder, "features", noted)
    monkeypatch.setattr(module, "PIECE", 7)
    obs, next_obs = rollout.features()
    assert grads
    assert look == "plain" or not any(grads)
    assert not obs.requires_grad
    assert obs.shape == next_obs.shape == (30, algorithm.encoder.size)
    if look != "memory":
        with torch.no_grad():
            torch.testing.assert_close(obs, features(batch["obs"]), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(next_obs, features(batch["next_obs"]), rtol=1e-5, atol=1e-6)
        return
    with torch.no_grad():  # step by step, each from the state that the policy had there
        out, state = algorithm.encoder.memory.step(features(batch["obs"]), batch["state"])
        then, _ = algorithm.encoder.memory.step(features(batch["next_obs"]), state)
    torch.testing.assert_close(obs, out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(next_obs, then, rtol=1e-4, atol=1e-5)

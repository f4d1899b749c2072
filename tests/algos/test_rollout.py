import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import LOOKS, VECTOR, Learner
from outside import my_a2c

from drl_cli.algos import rollout as module
from drl_cli.algos.rollout import EncodedRollouts, Rollouts, split_rows
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.losses.returns import gae, vtrace
from drl_cli.replay.builders import RolloutBuilder
from drl_cli.replay.fifo import FifoTable
from drl_cli.testing.case import Case, Together
from drl_cli.testing.contract import boundary_checks, check_batch_end, check_burn_in, check_padding
from drl_cli.types import Column


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 9))
def test_chunks_are_runs_of_steps_of_one_episode(cut, length):
    index, real = split_rows(np.array(cut), length)
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


def make(look, seq_len=3, group=None, envs=3, steps=10):
    learner = Learner("ppo", "discrete", *LOOKS.get(look, (VECTOR, "none")))
    algorithm = learner.algorithm()
    batch = learner.rollout(algorithm, envs=envs, steps=steps)
    rollout = EncodedRollouts(batch, algorithm.encoder, group or ProcessGroup(), seq_len)
    rollout.rows["number"] = torch.arange(envs * steps)
    return rollout, batch, algorithm


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("look", ["plain", "image", "tree"])
def test_every_row_comes_once_in_random_order(look):
    rollout, batch, _ = make(look)
    parts = list(rollout.minibatches(generator(), 4))
    assert [len(part["number"]) for part in parts] == [4] * 7 + [2]
    order = torch.cat([part["number"] for part in parts])
    assert torch.equal(order, torch.randperm(30, generator=generator()))
    for part in parts:
        assert torch.equal(part["action"], batch["action"][part["number"]])
        if look == "tree":
            assert torch.equal(part["obs"]["camera"], batch["obs"]["camera"][part["number"]])
    assert ("next_obs" in parts[0]) == (look != "plain")


def test_every_chunk_comes_once_with_its_first_state():
    rollout, batch, _ = make("memory")
    parts = list(rollout.minibatches(generator(), 7))
    firsts = torch.cat([part["number"][:, 0] for part in parts])
    order = torch.randperm(len(rollout.index), generator=generator())
    assert torch.equal(firsts, rollout.index[order, 0])
    assert {len(part["number"]) for part in parts[:-1]} == {2}  # seven steps are two chunks of three
    taken = torch.cat([part["number"][part["valid"]] for part in parts])
    assert sorted(taken.tolist()) == list(range(30))
    for part in parts:
        assert torch.equal(part["state"], batch["state"][part["number"][:, 0]])
    rollout, *_ = make("memory")
    assert {len(part["number"]) for part in rollout.minibatches(generator(), 2)} == {1}
    rollout, *_ = make("memory", group=ProcessGroup(0, 2))
    assert len(next(rollout.minibatches(generator(), 12))["number"]) == 2  # the other trainer has the other half


@pytest.mark.parametrize("look", ["plain", "image"])
def test_several_trainers_share_each_minibatch(look):
    rollouts = [make(look, group=ProcessGroup(rank, 2))[0] for rank in range(2)]
    order = torch.randperm(60, generator=generator())
    pairs = zip(*(rollout.minibatches(generator(), 7) for rollout in rollouts), strict=True)
    for both, part in zip(pairs, torch.split(order, 7), strict=True):
        for rank, mine in enumerate(both):
            is_mine = (part >= 30 * rank) & (part < 30 * rank + 30)
            if is_mine.any():
                assert torch.equal(mine["number"], part[is_mine] - 30 * rank)
            else:
                assert mine["number"].tolist() == [0]
            assert mine["weight"].tolist() == pytest.approx([2 * int(is_mine.sum()) / len(part)] * len(mine["number"]))
        assert sum(
            (mine["weight"].sum() if mine["weight"].any() else 0) / len(mine["weight"]) for mine in both
        ) == pytest.approx(2)


def test_a_trainer_without_rows_in_a_minibatch_gets_one_row_of_weight_0():
    rollouts = [make("plain", group=ProcessGroup(rank, 2), envs=1, steps=3)[0] for rank in range(2)]
    for both in zip(*(rollout.minibatches(generator(), 1) for rollout in rollouts), strict=True):
        assert sorted(mine["weight"].tolist() for mine in both) == [[0.0], [2.0]]
        assert all(len(mine["number"]) == 1 for mine in both)


@pytest.mark.parametrize("look", ["plain", "image", "tree", "memory"])
def test_features_of_all_rows_without_autograd(look, monkeypatch):
    rollout, batch, algorithm = make(look)
    grads, encoded, features = [], [], algorithm.encoder.features

    def noted(obs):
        grads.append(torch.is_grad_enabled())
        encoded.append(len(obs["camera"] if isinstance(obs, dict) else obs))
        return features(obs)

    monkeypatch.setattr(algorithm.encoder, "features", noted)
    monkeypatch.setattr(module, "MAX_ROWS", 7)
    obs, next_obs = rollout.features()
    assert grads
    assert look == "plain" or not any(grads)
    assert not obs.requires_grad
    assert obs.shape == next_obs.shape == (30, algorithm.encoder.size)
    if look in ("image", "tree"):  # the next observation is the next row's, unless the next row is another episode's
        cut = batch["cut"].tolist()
        cut[-1] = True
        assert 3 <= sum(cut) < 15
        assert sum(encoded) == 30 + sum(cut)
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


GAMMA, LAMBDA, ENVS, BLOCK, BATCH = 0.9, 0.8, 16, 16, 250


@pytest.fixture(scope="module")
def batches():
    """Batches of 250 rows from blocks of 16 environments x 16 steps, so that batches end anywhere in a piece.

    `place`, int `[N, 3]`, is environment, time and block of each row.
    """
    builder, rng = RolloutBuilder(GAMMA), np.random.default_rng(0)
    schema = {"obs": Column((2,), "float32"), "next_obs": Column((2,), "float32"), "place": Column((3,), "int64")}
    schema |= {name: Column((), "float32") for name in ("reward", "discount", "log_ratio")}
    schema |= {name: Column((), "bool") for name in ("terminated", "truncated", "cut")}
    table, before = FifoTable(schema, 4096, 1), None
    for block in range(4):
        for t in range(block * BLOCK, (block + 1) * BLOCK):
            obs, next_obs = rng.standard_normal((2, ENVS, 2), np.float32)
            place = np.stack([np.arange(ENVS), np.full(ENVS, t), np.full(ENVS, block)], 1)
            ends = {"terminated": rng.random(ENVS) < 0.05, "truncated": rng.random(ENVS) < 0.05}
            step = {"obs": obs, "next_obs": next_obs, "place": place, "valid": np.ones(ENVS, bool), **ends}
            if before:  # the observation is the one that the last step led to, unless the episode ended
                goes_on = ~(before["terminated"] | before["truncated"])
                obs[goes_on] = before["next_obs"][goes_on]
            before = step
            draws = rng.standard_normal((2, ENVS)).astype(np.float32)
            builder.append({**step, "reward": draws[0], "log_ratio": draws[1]})
        columns = builder.take()
        table.insert(columns, np.zeros(len(columns["reward"]), np.int64))
    columns = table.sample(4, BATCH, 0).columns
    return [{name: torch.from_numpy(column[i]) for name, column in columns.items()} for i in range(4)]


def critic(obs):
    return (obs * torch.tensor([0.5, -1.0])).sum(-1)


def later_rows(batch, i):
    rows, place = [i], batch["place"].tolist()
    while not (batch["terminated"][rows[-1]] or batch["truncated"][rows[-1]]):
        env, time, block = place[rows[-1]]
        if [env, time + 1, block] not in place:
            break
        rows.append(place.index([env, time + 1, block]))
    return rows


def brute_force(batch, i, rho, c):
    """Return sum_k (prod_{j < k} gamma c_{i+j}) rho_{i+k} delta_{i+k} up to the end of the row's piece."""
    total, factor = 0.0, 1.0
    for row in later_rows(batch, i):
        discount = 0.0 if batch["terminated"][row] else GAMMA
        delta = batch["reward"][row] + discount * critic(batch["next_obs"][row]) - critic(batch["obs"][row])
        total += factor * float(rho[row] * delta)
        factor *= discount * float(c[row])
    return total


def steps_of(batch):
    rollouts = Rollouts(batch, ProcessGroup())
    return rollouts, rollouts.steps(critic(batch["obs"]), critic(rollouts.bootstrap_obs))


def test_batches_end_inside_pieces(batches):
    assert sum(not batch["cut"][-1] for batch in batches) >= 2  # otherwise the tests below test too little


def test_next_values_equal_the_critic_at_next_obs(batches):
    for batch in batches:
        rollouts, (*_, next_value, cut) = steps_of(batch)
        torch.testing.assert_close(rollouts.flat(next_value), critic(batch["next_obs"]))
        assert rollouts.flat(cut)[-1]
        assert rollouts.rows["cut"][-1]
        assert torch.equal(rollouts.rows["cut"][:-1], batch["cut"][:-1])
        assert torch.equal(rollouts.flat(rollouts.pieces(batch["reward"])), batch["reward"])
        assert len(later_rows(batch, int(rollouts.index[0, 0]))) == rollouts.mask[0].sum()


@pytest.mark.parametrize("lambda_", [LAMBDA, 1.0])  # of PPO; A2C's advantage is the n-step return minus the value
def test_advantages_equal_sums_over_whole_episodes(batches, lambda_):
    for batch in batches:
        expected = torch.tensor(
            [brute_force(batch, i, torch.ones(BATCH), torch.full((BATCH,), lambda_)) for i in range(BATCH)]
        )
        rollouts, steps = steps_of(batch)
        torch.testing.assert_close(rollouts.flat(gae(*steps, lambda_)), expected, rtol=1e-4, atol=1e-5)
        flat = (batch["reward"], batch["discount"], critic(batch["obs"]), critic(batch["next_obs"]), batch["cut"])
        torch.testing.assert_close(gae(*flat, lambda_), expected, rtol=1e-4, atol=1e-5)  # as PPO computes it


def test_v_trace_equals_sums_over_whole_episodes(batches):
    for batch in batches:
        ratio = batch["log_ratio"].exp().clamp(max=1.0)
        expected = torch.tensor([brute_force(batch, i, ratio, ratio) for i in range(BATCH)])
        rollouts, steps = steps_of(batch)
        target, _ = vtrace(*steps, rollouts.pieces(batch["log_ratio"]))
        torch.testing.assert_close(rollouts.flat(target), expected + critic(batch["obs"]), rtol=1e-4, atol=1e-5)


def test_pieces_of_a_maximum_length_are_closed(batches):
    rollouts = Rollouts(batches[0], ProcessGroup(), max_length=5)
    assert rollouts.index.shape[1] == 5
    *_, next_value, cut = rollouts.steps(critic(batches[0]["obs"]), critic(rollouts.bootstrap_obs))
    assert cut[:, -1].all()
    torch.testing.assert_close(rollouts.flat(next_value), critic(batches[0]["next_obs"]))


def halves(batch):
    return [{name: column[rank * 125 : (rank + 1) * 125] for name, column in batch.items()} for rank in range(2)]


def test_two_trainers_have_the_statistics_and_minibatches_of_one(batches):
    groups, found = Together.pair(), [None, None]
    one = Rollouts(batches[0], ProcessGroup())
    one.rows["number"] = torch.arange(BATCH)

    def member(rank):
        rollouts = Rollouts(halves(batches[0])[rank], groups[rank])
        rollouts.rows["number"] = torch.arange(125) + 125 * rank
        reward = rollouts.rows["reward"]
        numbers = (rollouts.mean(reward), rollouts.quantile(reward, 0.3), rollouts.normalized(reward))
        found[rank] = (*numbers, list(rollouts.minibatches(generator(), 32)))

    groups[0].run(member)
    reward = one.rows["reward"]
    for mean, quantile, _, _ in found:
        torch.testing.assert_close(mean, reward.mean())
        torch.testing.assert_close(quantile, reward.quantile(0.3))
    torch.testing.assert_close(torch.cat([normalized for *_, normalized, _ in found]), one.normalized(reward))
    for whole, *parts in zip(one.minibatches(generator(), 32), *(parts for *_, parts in found), strict=True):
        numbers = torch.cat([part["number"][part["weight"] > 0] for part in parts])
        assert torch.equal(numbers.sort().values, whole["number"].sort().values)
        loss = sum((part["weight"] * part["reward"]).mean() for part in parts) / 2
        torch.testing.assert_close(loss, (whole["weight"] * whole["reward"]).mean())


def test_a_batch_of_a_replay_table_is_no_rollout():
    with pytest.raises(ValueError, match='set TABLES = \\("fifo-once",\\)'):
        Rollouts({"reward": torch.zeros(3)}, ProcessGroup())


def test_check_algorithm_refuses_to_depend_on_cut_of_the_last_row(monkeypatch):
    update = my_a2c.Algorithm.update

    def trusting(self, batch, counts):
        return update(self, batch | {"reward": torch.where(batch["cut"], batch["reward"], 0.0)}, counts)

    monkeypatch.setattr(my_a2c.Algorithm, "update", trusting)
    with pytest.raises(AssertionError, match="cut of the batch's last row changes what is learned"):
        check_batch_end(Case("outside.my_a2c", "network.hidden=[8]"))


@pytest.mark.parametrize(
    ("words", "checks"),
    [
        (("dqn",), []),
        (("r2d2", "replay.seq_len=4", "replay.burn_in=0"), [check_padding]),
        (("r2d2", "replay.seq_len=4", "replay.burn_in=2"), [check_padding, check_burn_in]),
        (("outside.my_a2c",), [check_batch_end]),
    ],
)
def test_check_algorithm_checks_the_ends_of_rows_that_a_case_has(words, checks):
    assert boundary_checks(Case(*words)) == checks

import functools

import numpy as np
import pytest
import torch
from choices import some
from counting import check_counter_rows
from graphs import COUNTER, RAW, make_config, weights, workers

from drl_cli.envs.make import read_spec
from drl_cli.errors import Diverged
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.roles.evaluator import Evaluator
from drl_cli.runtime.roles.normalization import (
    CLIP,
    BatchNormalizer,
    Layout,
    NormalizedPolicy,
    Statistics,
    make_layout,
    make_policy,
)
from drl_cli.types import tree
from drl_cli.utils.moments import RunningMoments

BOTH = ("env.normalize_obs=true", "env.normalize_reward=true")
LAYOUT = Layout({"": (3, 2)}, True)


def rows(count, seed=0):
    """Badly scaled columns `[count, ...]`."""
    rng = np.random.default_rng(seed)
    obs = (rng.standard_normal((count, 3, 2)) * [[1e3, 1e-3], [1, 5], [2, 3]] + 70).astype(np.float32)
    reward = (300 * rng.standard_normal(count) + 40).astype(np.float32)
    return {"obs": obs, "reward": reward, "next_obs": obs + 1, "discount": np.ones(count, np.float32)}


def statistics(count=500, seed=0, layout=LAYOUT):
    return Statistics.of(layout, layout.moments(rows(count, seed)))


class Identity:
    """A policy that returns its observations."""

    def load(self, params):
        self.params = params

    def greedy(self, obs, last=None):
        return obs

    def act(self, obs, last=None):
        return {"action": obs}


def header(version=0, shard=0, moments=None):
    return BatchTrainingData(1, version=version, shard=shard, moments=moments)


def test_statistics_are_those_of_numpy():
    columns, ours = rows(500), statistics(500)
    np.testing.assert_allclose(
        ours.mean, np.append(columns["obs"].astype(float).mean(0), columns["reward"].mean()), 1e-6
    )
    np.testing.assert_allclose(ours.std, np.append(columns["obs"].astype(float).std(0), columns["reward"].std()), 1e-6)
    assert ours.mean.dtype == ours.std.dtype == np.float32


def test_padded_steps_of_sequences_do_not_count():
    columns = {"obs": rows(12)["obs"].reshape(4, 3, 3, 2), "reward": rows(12)["reward"].reshape(4, 3)}
    mask = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]], bool)
    ours = LAYOUT.moments(columns | {"valid": mask})
    assert ours.count == 8
    np.testing.assert_allclose(ours.mean[:-1], columns["obs"][mask].astype(float).mean(0).ravel())


@pytest.mark.parametrize("layout", [LAYOUT, Layout({"": (3, 2)}, False), Layout({}, True)])
def test_statistics_are_the_end_of_the_vector(layout):
    params, ours = np.arange(5, dtype=np.float32), statistics(layout=layout)
    vector = ours.join(params)
    assert (vector.dtype, len(vector)) == (np.float32, 5 + 1 + 2 * layout.size)
    own, theirs = Statistics.split(layout, vector)
    assert own.tobytes() == params.tobytes()
    assert theirs.join(own).tobytes() == vector.tobytes()
    assert theirs.count == 500


def test_a_vector_without_statistics_is_refused():
    with pytest.raises(ValueError, match=r"\(3,\).*\(15,\)"):
        Statistics.split(LAYOUT, np.zeros(3, np.float32))


def test_actor_and_learner_normalise_by_identical_values():
    ours, columns = statistics(), rows(100, seed=1)
    columns["obs"][0] = 1e9
    policy, learner = NormalizedPolicy(Identity(), LAYOUT), BatchNormalizer(LAYOUT)
    policy.load(ours.join(np.zeros(4, np.float32)))
    assert learner.load(ours.join(np.zeros(4, np.float32))).shape == policy.policy.params.shape == (4,)
    batch = learner({name: torch.from_numpy(column) for name, column in columns.items()})
    for name in ("obs", "next_obs"):
        assert policy.greedy(columns[name]).tobytes() == batch[name].numpy().tobytes()
    assert policy.act(columns["obs"])["action"].tobytes() == batch["obs"].numpy().tobytes()
    wanted = (columns["obs"][1:] - ours.mean[:6].reshape(3, 2)) / np.sqrt(ours.std[:6].reshape(3, 2) ** 2 + 1e-8)
    np.testing.assert_allclose(batch["obs"][1:], np.clip(wanted, -10, 10), rtol=1e-5, atol=1e-5)
    assert batch["obs"][0].abs().max() == CLIP == 10.0
    divisor = np.hypot(ours.mean[-1], ours.std[-1])
    np.testing.assert_allclose(batch["reward"], columns["reward"] / divisor, rtol=1e-6)  # no shift
    assert batch["discount"].tolist() == columns["discount"].tolist()


def test_before_the_first_row_nothing_changes():
    columns = rows(50) | {"obs": np.full((50, 3, 2), 1e4, np.float32)}
    learner, policy = BatchNormalizer(LAYOUT), NormalizedPolicy(Identity(), LAYOUT)
    policy.load(learner.statistics.join(np.zeros(4, np.float32)))
    batch = learner({name: torch.from_numpy(column) for name, column in columns.items()})
    assert all(np.array_equal(batch[name], columns[name]) for name in columns)
    assert np.array_equal(policy.greedy(columns["obs"]), columns["obs"])


@pytest.mark.parametrize(("value", "divisor"), [(0.0, 1.0), (1.0, 1.0), (-0.1, 0.1)])
def test_a_constant_reward_is_divided_by_its_size(value, divisor):
    columns = rows(50) | {"reward": np.full(50, value, np.float32)}
    assert Statistics.of(LAYOUT, LAYOUT.moments(columns)).reward == pytest.approx(divisor)


def test_a_reward_of_minus_1_with_a_rare_0_is_hardly_scaled():
    """As in Acrobot and MountainCar. The standard deviation is 0.14, and would make rewards of -7."""
    columns = rows(50) | {"reward": np.append(np.full(49, -1, np.float32), np.float32(0))}
    assert Statistics.of(LAYOUT, LAYOUT.moments(columns)).reward == pytest.approx(0.98**0.5)


def test_rewards_and_returns_have_one_scale_and_missing_and_raw_columns_stay():
    """Cal-QL compares the return from a state, `mc_return`, with Q."""
    columns = {name: torch.from_numpy(column) for name, column in rows(50).items()}
    columns["mc_return"] = 9 * columns["reward"]
    learner, plain = BatchNormalizer(LAYOUT), BatchNormalizer(Layout({"": (3, 2)}, False))
    for each in (learner, plain):
        each.receive(header(moments=each.layout.moments(rows(50))))
    assert set(learner({"obs": columns["obs"]})) == {"obs"}
    batch, raw = learner(columns), plain(columns)
    assert torch.allclose(batch["mc_return"], 9 * batch["reward"])
    assert not torch.equal(batch["reward"], columns["reward"])
    assert (raw["reward"] is columns["reward"], raw["mc_return"] is columns["mc_return"]) == (True, True)


def test_a_normalizer_continues_from_its_state():
    def receive(learner, version):
        learner.receive(header(version, moments=LAYOUT.moments(rows(50, seed=version))))

    once, again = BatchNormalizer(LAYOUT, is_on_policy=True), BatchNormalizer(LAYOUT, is_on_policy=True)
    for version in (0, 1, 2):
        receive(once, version)
    once.before = LAYOUT.moments(rows(7, seed=9))
    again.load_state(once.state())
    for version in (2, 3):  # of which the first is not new
        for learner in (once, again):
            receive(learner, version)
        assert {name: value.tobytes() for name, value in once.state().items()} == {
            name: value.tobytes() for name, value in again.state().items()
        }


def test_shards_are_merged_by_their_counts_and_only_the_newest_of_each_counts():
    learner, parts = BatchNormalizer(LAYOUT), [rows(count, seed) for seed, count in enumerate((400, 30, 7))]
    first, second, more = (LAYOUT.moments(part) for part in parts)
    for message in (header(shard=0, moments=first), header(shard=1, moments=second)):
        learner.receive(message)
    learner.receive(header(shard=1, moments=second.merge(more)))
    together = {name: np.concatenate([part[name] for part in parts]) for name in ("obs", "reward")}
    wanted = Statistics.of(LAYOUT, LAYOUT.moments(together))
    assert learner.statistics.count == 437
    np.testing.assert_allclose(learner.statistics.mean, wanted.mean, rtol=1e-6)
    np.testing.assert_allclose(learner.statistics.std, wanted.std, rtol=1e-6)


def test_on_policy_rows_use_the_statistics_of_the_version_that_acted():
    """Rank 0 publishes and rank 1 learns the version from the next header; both always have equal statistics."""
    publisher, other = BatchNormalizer(LAYOUT, is_on_policy=True), BatchNormalizer(LAYOUT, is_on_policy=True)
    moments = [LAYOUT.moments(rows(100, seed)) for seed in range(3)]
    for version in range(3):
        for step in range(2):
            for learner in (publisher, other):
                learner.receive(header(version, moments=moments[version]))
            assert publisher.statistics.join(np.zeros(0)).tobytes() == other.statistics.join(np.zeros(0)).tobytes()
            assert publisher.statistics.count == (0 if version == 0 else 100)
            if version:
                wanted = Statistics.of(LAYOUT, moments[version - 1])
                assert np.array_equal(publisher.statistics.mean, wanted.mean), step
        publisher.adopt()  # as publishing does


def test_new_rows_are_added_to_loaded_statistics():
    learner, more = BatchNormalizer(LAYOUT), rows(100, seed=1)
    learner.load(statistics(300).join(np.zeros(4, np.float32)))
    learner.receive(header(moments=LAYOUT.moments(more)))
    together = {name: np.concatenate([rows(300)[name], more[name]]) for name in ("obs", "reward")}
    wanted = Statistics.of(LAYOUT, LAYOUT.moments(together))
    assert learner.statistics.count == 400
    np.testing.assert_allclose(learner.statistics.mean, wanted.mean, rtol=1e-5)
    np.testing.assert_allclose(learner.statistics.std, wanted.std, rtol=1e-3)  # the mean was saved in float32


# In the graph


def managers(graph):
    return [shard.role for shard in graph.replay.shards]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "proxies"), some([("single", 0), ("sync", 2), ("async", 0)], ("sync", 2)))
def test_statistics_cover_all_workers_and_shards(run_graph, mode, proxies):
    graph = run_graph(
        *(COUNTER, f"mode={mode}", "worker.num=4", f"worker.proxies={proxies}", "replay.shards=3", "algo.n_step=3"),
        *("total_env_steps=900", *BOTH),
    )
    parts = [shard.contents() for shard in managers(graph)]
    assert all(len(part["reward"]) for part in parts)
    columns = {name: np.concatenate([part[name] for part in parts]).astype(np.float64) for name in ("obs", "reward")}
    merged = functools.reduce(RunningMoments.merge, [shard.moments for shard in managers(graph)])
    assert merged.count == graph.progress.inserts == len(columns["reward"])
    table = np.concatenate([columns["obs"], columns["reward"][:, None]], -1)
    np.testing.assert_allclose(merged.mean, table.mean(0), rtol=1e-12)
    np.testing.assert_allclose(merged.variance, table.var(0), rtol=1e-9)
    trainer = graph.trainers["trainer"].role.normalizer
    assert 0 < trainer.statistics.count <= merged.count
    assert sorted(trainer.shards) == [0, 1, 2]
    assert 0.8 * graph.progress.inserts < graph.progress.report(0.0)["replay/normalizer_count"] <= merged.count


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "proxies"), some([("single", 0), ("sync", 1), ("async", 0)], ("async", 0)))
def test_every_worker_acts_by_the_statistics_of_its_version(build_graph, mode, proxies):
    graph = build_graph(COUNTER, f"mode={mode}", "worker.num=2", f"worker.proxies={proxies}", *BOTH)
    published, acted = {}, []
    publish = graph.trainers["trainer"].role.publish

    def note(version, env_steps):
        params_header, params = publish(version, env_steps)
        published[version] = graph.trainers["trainer"].role.normalizer.statistics
        return params_header, params

    graph.trainers["trainer"].role.publish = note
    for worker in workers(graph):

        def collect(params_header, *params, worker=worker, collect=worker.collect):
            result = collect(params_header, *params)
            acted.append((result[0].blocks[0].version, worker.policy.statistics))
            return result

        worker.collect = collect
    graph.run()
    for version, theirs in acted:
        assert theirs.join(np.zeros(0)).tobytes() == published[version].join(np.zeros(0)).tobytes()
    assert len({theirs.count for _, theirs in acted}) > 2
    assert published[0].count == 0
    check_counter_rows(managers(graph)[0].contents(), 1, 0.95, graph.progress.env_steps)  # raw rows


def test_evaluation_changes_no_statistics(run_graph):
    graph = run_graph(COUNTER, "mode=sync", "manage.eval_period=128", *BOTH)
    assert len(graph.evaluations) > 2
    assert managers(graph)[0].moments.count == graph.progress.inserts
    vector, config = get(graph.learning.params), graph.config
    kept, evaluator = vector.tobytes(), Evaluator(config, read_spec(config.env), [1, 2, 3])
    for _ in range(2):
        evaluator.evaluate(vector)
        policy = evaluator.policy
        assert policy.statistics.count > 0
        own, _ = Statistics.split(policy.layout, vector)
        assert policy.statistics.join(own).tobytes() == vector.tobytes() == kept


@pytest.mark.slow
def test_reported_and_evaluated_rewards_are_raw(run_graph):
    """The return of Counter is 1 + 2 + ... + length for every policy."""
    graph = run_graph(COUNTER, "mode=sync", "manage.eval_period=128", *BOTH)
    plain = run_graph(COUNTER, "mode=sync", "manage.eval_period=128")
    for ours, theirs in zip(graph.evaluations, plain.evaluations, strict=True):
        assert ours.statistics == theirs.statistics
    assert weights(graph) != weights(plain)


def test_float_parts_of_a_tree_are_normalised():
    """Each float part has its own statistics, bit-equal in policy and trainer; other parts stay."""
    config = make_config("env=drl_cli.envs.probes:Tree-v0", *BOTH)
    assert make_layout(config, read_spec(config.env)) == Layout({"who": (3,)}, True)
    layout, rng = Layout({"a.0": (3, 2), "b": (2,)}, True), np.random.default_rng(0)
    names, columns = ("obs", "next_obs"), rows(200)
    tall = {f"{name}.b": (1e4 * rng.standard_normal((200, 2)) - 7).astype(np.float32) for name in names}
    rest = {f"{name}.c": rng.integers(256, size=(200, 4)).astype(np.uint8) for name in names}
    block = {f"{name}.a.0": columns[name] for name in names} | tall | rest | {"reward": columns["reward"]}
    moments = layout.moments(block)
    expected = [block["obs.a.0"].reshape(200, 6), block["obs.b"], block["reward"][:, None]]
    np.testing.assert_allclose(moments.mean, np.concatenate(expected, 1).astype(float).mean(0))
    vector = Statistics.of(layout, moments).join(np.zeros(4, np.float32))
    policy, learner = NormalizedPolicy(Identity(), layout), BatchNormalizer(layout)
    policy.load(vector)
    learner.load(vector)
    batch = learner({name: torch.from_numpy(column) for name, column in block.items()})
    for name in names:
        obs = tree(block, name)
        seen = policy.greedy(obs)
        assert list(seen) == ["a.0", "b", "c"]
        assert seen["c"] is obs["c"]
        for path, part in seen.items():
            assert part.tobytes() == batch[f"{name}.{path}"].numpy().tobytes()
    np.testing.assert_allclose(batch["obs.b"].mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(batch["obs.b"].std(0, correction=0), 1, rtol=1e-4)
    np.testing.assert_allclose(batch["obs.a.0"].std(0, correction=0), 1, rtol=1e-2)


@pytest.mark.parametrize("what", [(), BOTH, BOTH[:1], BOTH[1:]])
def test_the_vector_has_what_is_normalised(build_graph, what):
    graph = build_graph(COUNTER, "mode=sync", *what)
    trainer = graph.trainers["trainer"].role
    own, (_, vector) = trainer.algorithm.policy_params(), trainer.publish(0, 0)
    size = 3 * (BOTH[0] in what) + (BOTH[1] in what)
    assert len(vector) == len(own) + (1 + 2 * size if what else 0)
    assert (managers(graph)[0].moments is None) == (what == ())
    assert vector[: len(own)].tobytes() == own.tobytes()


def test_statistics_that_are_not_finite_are_named_as_the_cause(build_graph):
    """The value may be outside of the batch."""
    graph = build_graph(COUNTER, "mode=sync", *BOTH)
    (manager,) = managers(graph)
    manager.moments = manager.moments.merge(RunningMoments(1, np.full(4, np.nan), np.zeros(4)))
    with pytest.raises(Diverged, match="an observation or reward was not finite"):
        graph.run()


@pytest.mark.parametrize("by_newest", [False, True])
def test_on_policy_the_learner_sees_what_the_actor_saw(build_graph, by_newest):
    """In the first pass over a batch all probability ratios are 1; with newer statistics they are not."""
    graph = build_graph(
        *(COUNTER, "algo=ppo", "mode=sync", "worker.num=2", "worker.block_rows=32", "trainer.batch_size=64"),
        *("algo.epochs=1", "algo.minibatch_size=64", "algo.lr=1e-3", "worker.random_steps=0", *BOTH),
    )
    normalizer, divergences = graph.trainers["trainer"].role.normalizer, []
    if by_newest:
        normalizer.is_on_policy = False
    trained = graph.progress.trained

    def note(report, *shard):
        divergences.append(abs(report.metrics["approx_kl"]))
        trained(report, *shard)

    graph.progress.trained = note
    graph.run()
    assert len(divergences) == 8
    assert normalizer.statistics.count >= 448
    assert (max(divergences) > 1e-5) == by_newest


def test_first_priorities_are_of_normalised_rows():
    config = make_config("env=drl_cli.envs.probes:Choose-v0", "algo=dqn", "network.hidden=[8]", *BOTH)
    plain = make_config("env=drl_cli.envs.probes:Choose-v0", "algo=dqn", "network.hidden=[8]", *RAW)
    spec, rng = read_spec(config.env), np.random.default_rng(0)
    policy, bare = make_policy(config, spec, 0), make_policy(plain, spec, 0)
    params = rng.standard_normal(3 * 8 + 8 + 8 * 3 + 3).astype(np.float32)
    columns = {name: rng.standard_normal((20, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    columns |= {"reward": rng.standard_normal(20).astype(np.float32), "action": rng.integers(3, size=20)}
    columns["discount"] = np.full(20, 0.9, np.float32)
    learner = BatchNormalizer(policy.layout)
    learner.receive(header(moments=policy.layout.moments(columns)))
    policy.load(learner.statistics.join(params))
    bare.load(params)
    batch = learner({name: torch.from_numpy(column) for name, column in columns.items()})
    wanted = bare.priorities({name: tensor.numpy() for name, tensor in batch.items()})
    np.testing.assert_allclose(policy.priorities(columns), wanted, rtol=1e-6)
    assert np.abs(policy.priorities(columns) - bare.priorities(columns)).max() > 0.1


@pytest.mark.slow
def test_badly_scaled_observations_and_rewards_are_learned_from(run_graph):
    """The best return is 0; an untrained policy gets about -200."""
    args = ("env=drl_cli.envs.probes:Scaled-v0", "mode=sync", "network.hidden=[32,32]", "algo.lr=3e-3")
    args += ("algo.alpha_lr=3e-3", "algo.tau=0.05", "algo.initial_alpha=0.1", "worker.envs=8", "worker.block_rows=64")
    args += ("orchestrator.min_inserts=256", "trainer.batch_size=64", "total_env_steps=2000", "manage.eval_episodes=32")
    plain, normalised = (run_graph(*args, *what).progress.last.mean for what in ((), BOTH))
    assert normalised > -10
    assert plain < -100

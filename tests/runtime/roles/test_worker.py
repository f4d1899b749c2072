from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from graphs import COUNTER, TINY, inserted, make_config, workers
from handles import by_name

from drl_cli.envs.make import read_spec
from drl_cli.replay.builders import NStepBuilder, RolloutBuilder, SequenceBuilder
from drl_cli.replay.frames import FrameBuilder
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.roles import worker as worker_module
from drl_cli.runtime.roles.worker import Worker, make_builder
from drl_cli.types import LoadParams

FRAMES = ("env=drl_cli.envs.probes:Frames-v0", "algo=dqn")
SEQUENCES = ("replay=sequences", "replay.seq_len=5", "replay.burn_in=3", "replay.overlap=1")
RANDOM = LoadParams(-1, 0, 0, random_actions=True)


def make_worker(*overrides, index=0, incarnation=0):
    config = make_config(*TINY, *overrides)
    return Worker(config, read_spec(config.env), index, incarnation)


def built(*overrides):
    config = make_config(*TINY, *overrides)
    policy = type("Policy", (), {"priorities": lambda self, rows: ("priorities", sorted(rows))})()
    return make_builder(config, read_spec(config.env), policy, 3, 7), config


@pytest.mark.parametrize(
    ("overrides", "kind", "open_steps"),
    [
        ((*FRAMES, "algo.n_step=1"), NStepBuilder, 0),
        ((*FRAMES, "algo.n_step=4"), NStepBuilder, 3),
        ((*FRAMES, *SEQUENCES), SequenceBuilder, 8),
    ],
)
def test_a_frame_builder_keeps_frames_of_open_rows(overrides, kind, open_steps):
    builder, _ = built(*overrides)
    assert type(builder) is FrameBuilder
    assert type(builder.builder) is kind
    assert builder._open.maxlen == open_steps
    assert builder._next_id == (3 + 1 << 16 | 7) << 32  # unique to worker and incarnation
    assert builder.prioritize is None
    assert builder.codec.name == "none"


def test_builders_have_the_configs_numbers():
    builder, _ = built(COUNTER, "algo.n_step=3", "algo.gamma=0.5", "env.reward_scale=0.25")
    assert type(builder) is NStepBuilder
    assert (builder.n_step, builder.gamma, builder.reward_scale) == (3, 0.5, 0.25)
    builder, _ = built(COUNTER, "algo=ppo", "algo.minibatch_size=8", "algo.gamma=0.5", "env.reward_scale=0.25")
    assert type(builder) is RolloutBuilder
    assert (builder.gamma, builder.reward_scale) == (0.5, 0.25)
    sequences = (*SEQUENCES, "algo.gamma=0.5", "env.reward_scale=0.25")
    builder, _ = built("env=CartPole-v1", "algo=dqn", *sequences)
    assert type(builder) is SequenceBuilder
    numbers = (builder.seq_len, builder.length, builder.stride, builder.gamma, builder.reward_scale)
    assert numbers == (5, 8, 4, 0.5, 0.25)


@pytest.mark.parametrize("env", [FRAMES[0], "env=CartPole-v1"])
def test_builders_compute_priorities_if_the_worker_does(env):
    builder, config = built(env, "algo=dqn", "replay=prioritized", "replay.initial_priority=worker")
    assert config.replay.worker_priorities
    assert type(builder) is (FrameBuilder if "Frames" in env else NStepBuilder)
    assert builder.prioritize({"obs": 1, "a": 2}) == ("priorities", ["a", "obs"])


def test_close_closes_the_environments():
    worker, closed = make_worker(COUNTER), []
    worker.envs.close = lambda: closed.append(True)
    worker.close()
    assert closed == [True]


def test_before_the_first_parameters_only_random_actions_are_possible():
    worker = make_worker(COUNTER)
    for header in (LoadParams(0, 0, 0, random_actions=True), LoadParams(-1, 0, 0)):
        with pytest.raises(AssertionError):
            worker.collect(header)


@pytest.mark.parametrize(
    ("index", "is_limited", "length", "due"),
    [(0, False, 50, 2), (0, True, 50, None), (1, False, 50, None), (0, False, 15, None)],
)
def test_episodes_that_do_not_end_give_one_warning(monkeypatch, index, is_limited, length, due):
    monkeypatch.setattr(worker_module, "ENDLESS_STEPS", 20)
    config = make_config(*TINY, COUNTER, f"+env.kwargs.base_length={length}", "worker.envs=3", "worker.block_rows=30")
    worker = Worker(config, replace(read_spec(config.env), is_limited=is_limited), index, 0)
    notes = [worker.collect(RANDOM)[0].notes for _ in range(4)]
    line = (
        "drl_cli.envs.probes:Counter-v0: no episode ended in 60 steps; "
        "if episodes never end, say env.max_episode_steps=1000 manage.max_episode_steps=1000, "
        "so that training sees the start again, and evaluations end"
    )
    assert notes == [(f"worker 0: {line}",) if count == due else () for count in range(1, 5)]


def test_a_restored_worker_does_not_warn_of_episodes(monkeypatch):
    monkeypatch.setattr(worker_module, "ENDLESS_STEPS", 1)
    config = make_config(*TINY, COUNTER, "+env.kwargs.base_length=50")
    spec = replace(read_spec(config.env), is_limited=False)
    before, after = Worker(config, spec, 0, 0), Worker(config, spec, 0, 0)
    before.collect(RANDOM)
    after.load_state(before.state())
    assert (after.collect(RANDOM)[0].notes, after.awaits_end) == ((), False)


def test_each_worker_and_incarnation_has_its_own_seeds():
    sizes = (COUNTER, "worker.num=2", "worker.envs=3", "worker.block_rows=30")
    made = [make_worker(*sizes, index=index, incarnation=i) for index in range(2) for i in range(2)]
    blocks = [worker.collect(RANDOM)[1] for worker in made]
    tags = [set(block["obs"][:, 0].tolist()) for block in blocks]
    assert len(set.union(*tags)) == sum(map(len, tags)) == 3 * 4
    for one, other in combinations(blocks, 2):
        assert not np.isin(one["action"], other["action"]).any()


class Clock:
    """A clock that moves only in functions wrapped by `takes`."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def takes(self, seconds, function):
        def run(*args, **options):
            self.now += seconds
            return function(*args, **options)

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(worker_module, "time", clock)
    return clock


def slow(worker, clock):
    """Make each of 8 steps take 1 s in the policy, 3 s in the environments and 0.5 s in the builder."""
    worker.policy.random = clock.takes(1.0, worker.policy.random)
    worker.envs.step = clock.takes(3.0, worker.envs.step)
    worker.builder.append = clock.takes(0.5, worker.builder.append)


def test_each_block_has_the_times_of_environments_and_policy(clock):
    worker = make_worker(COUNTER)
    slow(worker, clock)
    for _ in range(2):
        header, _ = worker.collect(RANDOM)
        assert (header.seconds, header.work_s, header.env_s, header.policy_s) == (36.0, 36.0, 24.0, 8.0)


TABLES = {
    "n_step": ("algo.n_step=3",),
    "prioritized": ("replay=prioritized", "replay.initial_priority=max"),
    "ppo": ("algo=ppo", "algo.minibatch_size=8", "orchestrator.limiter=none"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("table", "proxies"), [("n_step", 0), ("prioritized", 1), ("ppo", 0), ("ppo", 1)])
def test_rows_name_their_worker_and_environment(build_graph, table, proxies):
    graph = build_graph(COUNTER, *TABLES[table], "mode=sync", "worker.num=2", f"worker.proxies={proxies}")
    seen = inserted(graph)
    graph.run()
    obs, source = (np.concatenate([columns[name] for columns in seen]) for name in ("obs", "source"))
    assert source.dtype == np.int32
    tags = {2**16 * worker.index + i: tag for worker in workers(graph) for i, tag in enumerate(worker.envs.obs[:, 0])}
    assert set(source.tolist()) == set(tags) == {0, 1, 2, 3, 65536, 65537, 65538, 65539}
    assert all(obs[source == i, 0].tolist() == [tag] * int((source == i).sum()) for i, tag in tags.items())
    assert get(by_name(graph.replay.shards[0], "contents")).keys() >= {"source"}

"""Worker: the builder that its replay needs, and what it says at its start."""

import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.replay.builders import NStepBuilder, RolloutBuilder
from drl_cli.replay.frame_builder import FrameBuilder
from drl_cli.replay.sequences import SequenceBuilder
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.roles.worker import Worker, make_builder

FRAMES = ("env=drl_cli.envs.probes:Frames-v0", "algo=dqn")
SEQUENCES = ("replay=sequences", "replay.seq_len=5", "replay.burn_in=3", "replay.overlap=1")


def built(*overrides):
    config = make_config(*TINY, *overrides)
    policy = type("Policy", (), {"priorities": lambda self, rows: ("rated", sorted(rows))})()
    return make_builder(config, read_spec(config.env), policy, 3, 7), config


@pytest.mark.parametrize(
    ("overrides", "kind", "open_steps"),
    [
        ((*FRAMES, "algo.n_step=1"), NStepBuilder, 0),
        ((*FRAMES, "algo.n_step=4"), NStepBuilder, 3),
        ((*FRAMES, *SEQUENCES), SequenceBuilder, 8),
    ],
)
def test_frames_are_kept_for_as_many_steps_as_rows_may_be_open(overrides, kind, open_steps):
    builder, _ = built(*overrides)
    assert type(builder) is FrameBuilder
    assert type(builder.builder) is kind
    assert builder._open.maxlen == open_steps
    assert builder._next_id == (3 + 1 << 16 | 7) << 32  # no other worker's, and none of its earlier lives
    assert builder.prioritize is None
    assert builder.codec.name == "none"


def test_rows_are_made_by_the_configs_numbers():
    builder, _ = built(COUNTER, "algo.n_step=3", "algo.gamma=0.5", "env.reward_scale=0.25")
    assert type(builder) is NStepBuilder
    assert (builder.n_step, builder.gamma, builder.reward_scale) == (3, 0.5, 0.25)
    builder, _ = built(COUNTER, "algo=ppo", "algo.minibatch_size=8", "algo.gamma=0.5", "env.reward_scale=0.25")
    assert type(builder) is RolloutBuilder
    assert (builder.gamma, builder.reward_scale) == (0.5, 0.25)
    sequences = (*SEQUENCES, "algo.gamma=0.5", "env.reward_scale=0.25")
    builder, _ = built("env=CartPole-v1", "algo=dqn", *sequences)
    assert type(builder) is SequenceBuilder
    assert (builder.seq_len, builder.length, builder.stride, builder.gamma, builder.reward_scale) == (
        5,
        8,
        4,
        0.5,
        0.25,
    )


@pytest.mark.parametrize("env", [FRAMES[0], "env=CartPole-v1"])
def test_rows_are_rated_where_the_worker_gives_priorities(env):
    builder, config = built(env, "algo=dqn", "replay=prioritized", "replay.initial_priority=worker")
    assert config.worker_priorities
    assert type(builder) is (FrameBuilder if "Frames" in env else NStepBuilder)
    assert builder.prioritize({"obs": 1, "a": 2}) == ("rated", ["a", "obs"])


@pytest.mark.parametrize(
    ("exploration", "said"),
    [
        ("null", []),
        ("ladder", ["worker 1 explores by value ** 8"]),
        ("env_ladder", ["worker 1 explores by value ** 5 to 8, by environment"]),
    ],
)
def test_how_it_explores_is_in_its_log(caplog, exploration, said):
    caplog.set_level("INFO")
    config = make_config(*TINY, "env=CartPole-v1", "algo=dqn", "worker.num=2", f"worker.exploration={exploration}")
    worker = Worker(config, read_spec(config.env), 1, 0)
    assert [text for text in caplog.messages if "explores" in text] == said
    closed, close = [], worker.envs.close
    worker.envs.close = lambda: closed.append(close())
    worker.close()
    assert closed == [None]


def test_the_times_of_a_block_are_its_own():
    config = make_config(*TINY, COUNTER)
    worker = Worker(config, read_spec(config.env), 0, 0)
    worker.env_s = worker.policy_s = 1e6
    header, _ = worker.collect(LoadParams(-1, 0, 0, random_actions=True))
    assert 0 < header.env_s < 1e5
    assert 0 < header.policy_s < 1e5


def test_who_was_never_given_parameters_can_only_act_at_random_before_there_are_any():
    config = make_config(*TINY, COUNTER)
    worker = Worker(config, read_spec(config.env), 0, 0)
    for header in (LoadParams(0, 0, 0, random_actions=True), LoadParams(-1, 0, 0)):
        with pytest.raises(AssertionError):
            worker.collect(header)

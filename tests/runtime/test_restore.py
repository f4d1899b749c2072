import csv
import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
from choices import some
from datasets import record
from graphs import COUNTER, at, weights
from handles import by_name
from outside import my_writer

from drl_cli.errors import AlgorithmRefused
from drl_cli.runtime.orchestrator import saver
from drl_cli.runtime.place.handles import get

EVERY = ("checkpoint.period=128", "manage.eval_period=128")
PROBES = "drl_cli.envs.probes"
CUE = f"env={PROBES}:Cue-v0"
FRAMES = (f"env={PROBES}:Frames-v0", "+env.kwargs.size=12")
IMAGE = ("+env.kwargs.size=24",)
EXHAUSTIVE = (pytest.mark.slow, pytest.mark.exhaustive)
ROLLOUTS = ("trainer.batch_size=64", "algo.minibatch_size=32")
MEMORY = ("network.memory_size=8",)
SEQUENCES = ("replay=sequences", "replay.seq_len=4", "replay.burn_in=3", "replay.overlap=1")
ROWS = ("replay.rows=sequences", *SEQUENCES[1:])
SEARCH = ("algo.simulations=4", "algo.unroll_steps=2", "algo.n_step=2", "replay.seq_len=5")
IMAGINED = ("algo.horizon=2", "replay.seq_len=3")
PLANNED = ("algo.samples=8", "algo.policy_samples=2", "algo.elites=3", "algo.iterations=2")
NO_ALE, NO_MINATAR = (
    pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs drl-cli[{extra}]")
    for module, extra in (("ale_py", "atari"), ("minatar", "minatar"))
)
SCHEDULE = ("optimizer.schedule=linear", "optimizer.warmup_steps=300", "optimizer.max_norm=0.5")


def rows(graph):
    return list(csv.DictReader((graph.folder / "eval.csv").open()))


def interrupted(graph):
    """Run until the first checkpoint with updates, then stop as after a signal."""
    begin = graph.saver.begin

    def save_and_stop(*args):
        begin(*args)
        if graph.progress.train_started is not None:
            graph.interrupt()

    graph.saver.begin = save_and_stop
    graph.run()
    graph.finish()
    return graph


def stopped(graph, env_steps):
    """Stop as after a signal at this step. Processes may still be saving the first checkpoint, and skip a later one."""
    at(graph, env_steps, graph.interrupt)
    graph.run()
    graph.finish()
    assert env_steps <= graph.progress.env_steps < graph.config.total_env_steps
    return graph


def cut(graph):
    """Run until the first train call, then stop as after a signal during a slow update."""
    train = graph.learning.train

    def train_and_stop(updates):
        train(updates)
        graph.interrupt()
        graph.training_ends = 0.0

    graph.learning.train = train_and_stop
    graph.run()
    graph.finish()
    return graph


def counters(graph):
    return graph.progress.counts() | {"limiter": graph.limiter.state(), "ratio": graph.progress.updates_per_env_step()}


@pytest.mark.slow
def test_a_resumed_run_first_makes_the_updates_that_a_signal_prevented(run_graph, build_graph):
    args = (COUNTER, "mode=sync", "worker.num=2", "orchestrator.sample_insert_ratio=1", "trainer.updates_per_call=4")
    whole = run_graph(*args)
    part = cut(build_graph(*args))
    assert part.progress.opt_steps == 4  # of all that the rows pay for
    assert part.limiter.owed() > 0
    rest = run_graph(*args, run=part.folder)
    assert weights(rest) == weights(whole)
    assert rest.progress.opt_steps == whole.progress.opt_steps


def test_the_last_updates_of_a_resumed_run_need_no_more_steps(run_graph, build_graph):
    args = (COUNTER, "mode=single", "orchestrator.sample_insert_ratio=1", "trainer.updates_per_call=4")
    part = cut(build_graph(*args, "total_env_steps=96"))
    assert (part.progress.env_steps, part.progress.opt_steps) == (96, 4)
    rest = run_graph(*args, "total_env_steps=96", run=part.folder)
    assert (rest.progress.env_steps, rest.progress.opt_steps) == (96, 32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "algo"),
    [
        ("single", ("env=Pendulum-v1",)),
        ("sync", ("env=Pendulum-v1", "worker.num=2")),
        ("single", ("env=CartPole-v1", "algo=ppo", *ROLLOUTS)),
        ("offline", ()),
    ],
)
def test_a_checkpoint_saved_after_a_time_does_not_change_the_weights(run_graph, monkeypatch, tmp_path, mode, algo):
    drafts, make_draft = [], saver.make_draft
    monkeypatch.setattr(saver, "make_draft", lambda *args: drafts.append(args) or make_draft(*args))
    if mode == "offline":
        record("Pendulum-v1", tmp_path / "data.npz", 400)
        algo = ("env=Pendulum-v1", "algo=td3_bc", f"data.source={tmp_path / 'data.npz'}", "total_updates=48")
    words = (*algo, f"mode={mode}", "checkpoint.period=100000")
    whole = run_graph(*words, "checkpoint.period_s=null")
    num = len(drafts)
    more = run_graph(*words, "checkpoint.period_s=1e-9")
    assert len(drafts) - num > num
    assert weights(more) == weights(whole)


@pytest.mark.parametrize("mode", ["single", pytest.param("sync", marks=EXHAUSTIVE)])
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("env=Pendulum-v1",), marks=EXHAUSTIVE),
        ("env=Pendulum-v1", "algo.n_step=3", "replay=prioritized", "env.normalize_obs=true"),
        pytest.param(("env=LunarLanderContinuous", "algo.n_step=5"), marks=EXHAUSTIVE),
        ("env=CartPole-v1", "algo=dqn", "replay.remover=random"),
        ("env=CartPole-v1", "algo=ppo", *ROLLOUTS, "env.normalize_reward=true"),
        ("env=CartPole-v1", "algo=ppo", *ROLLOUTS, "reward=rnd"),
        pytest.param(("env=CartPole-v1", "algo=ppo", *ROLLOUTS, "reward=icm"), marks=EXHAUSTIVE),
        (COUNTER, "replay.shards=3"),
        (*FRAMES, "algo=dqn"),
        pytest.param((*FRAMES, "algo=dqn", "replay=prioritized", "network=resnet"), marks=EXHAUSTIVE),
        pytest.param((f"env={PROBES}:PatchReach-v0", *IMAGE), marks=EXHAUSTIVE),
        pytest.param((f"env={PROBES}:BothReach-v0", *IMAGE), marks=EXHAUSTIVE),
        pytest.param((f"env={PROBES}:Both-v0", "algo=ppo", *ROLLOUTS, *IMAGE), marks=EXHAUSTIVE),
        (CUE, "algo=dqn", "network=lstm", *MEMORY, *SEQUENCES),
        ("env=CartPole-v1", "algo=dqn", "replay=windows", "replay.seq_len=4", "algo.n_step=2", "replay.capacity=300"),
        pytest.param(
            (*FRAMES, "algo=dqn", "network=gru", *MEMORY, "replay=prioritized", "replay.rows=windows"), marks=EXHAUSTIVE
        ),
        pytest.param((CUE, "algo=dqn", "network=lstm", *MEMORY, "replay=uniform", *ROWS), marks=EXHAUSTIVE),
        ("env=BitFlip", "algo=dqn", "replay=hindsight", "algo.n_step=2", "replay.capacity=300"),
        ("env=CartPole-v1", "algo=dqn", "replay=windows", "replay.sampler=outside.my_sampler:Hindsight"),
        (CUE, "algo=r2d2", *MEMORY, *SEQUENCES[1:], "orchestrator.sample_insert_ratio=0.05"),
        ("env=CartPole-v1", "algo=apex"),
        pytest.param(("env=CartPole-v1", "algo=gumbel_muzero", "algo.value_prefix=true", *SEARCH), marks=EXHAUSTIVE),
        ("env=Pendulum-v1", "algo=dreamer", *IMAGINED, "trainer.batch_size=2", "replay.capacity=300"),
        ("env=Pendulum-v1", "algo=tdmpc2", *PLANNED, "trainer.batch_size=4", "replay.capacity=300"),
        pytest.param((CUE, "algo=ppo", "network=lstm", *MEMORY, *ROLLOUTS, "algo.seq_len=5"), marks=pytest.mark.slow),
        pytest.param(("env=Pendulum-v1", "network=gru", *MEMORY, *SEQUENCES), marks=EXHAUSTIVE),
        pytest.param((*FRAMES, "algo=dqn", "network=gru", *MEMORY, *SEQUENCES), marks=EXHAUSTIVE),
        ("env=Pendulum-v1", "algo=dr_q", "replay.age_factor=0.99", "replay.capacity=300"),
        ("env=Pendulum-v1", "optimizer=rmsprop", *SCHEDULE),
        pytest.param(("env=CartPole-v1", "algo=dqn", "optimizer=sgd", *SCHEDULE), marks=EXHAUSTIVE),
        pytest.param(("env=CartPole-v1", "algo=ppo", *ROLLOUTS, "optimizer=adamw", *SCHEDULE), marks=EXHAUSTIVE),
        ("env=Pendulum-v1", "network.layer_norm=true", "network.dropout=0.1"),
        ("env=CartPole-v1", "algo=outside.my_algo"),
        pytest.param(("env=MinAtar-Breakout", "algo=dqn"), marks=NO_MINATAR),
        pytest.param(
            ("env=Breakout", "env.kwargs.protocol=machado", "algo=dqn", "network=mlp", "manage.max_episode_steps=20"),
            marks=[NO_ALE, *EXHAUSTIVE],
        ),
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_one_that_never_stopped(run_graph, build_graph, mode, args):
    check_resume(run_graph, build_graph, f"mode={mode}", *args)


def check_resume(run_graph, build_graph, *args):
    args = ("seed=3", *args)
    once = run_graph(*args, "total_env_steps=512")
    half = interrupted(build_graph(*args, "total_env_steps=512", "checkpoint.period=250"))
    assert half.progress.env_steps == 256
    assert weights(half) != weights(once)
    rest = run_graph(*args, "total_env_steps=512", run=half.folder)
    assert weights(rest) == weights(once)
    assert counters(rest) == counters(once)


def check_equal_trainers(graph):
    """Check that all trainers, in their own processes, have equal parameters, moments, generators and targets."""
    first, *others = [get(by_name(trainer, "state")) for trainer in graph.trainers.values()]
    assert others
    for other in others:
        for name in (name for name in first if name.startswith("algorithm.")):
            np.testing.assert_array_equal(other[name], first[name])


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind",
    [
        ("env=CartPole-v1", "algo=ppo", *ROLLOUTS, "network.dropout=0.1", "optimizer=sgd"),
        ("env=CartPole-v1", "algo=ppo", *ROLLOUTS, "reward=rnd"),
        ("env=CartPole-v1", "algo=outside.my_a2c", ROLLOUTS[0], "worker.num=2"),
        (f"env={PROBES}:Frames-v0", "+env.kwargs.size=36", "algo=outside.my_a2c", ROLLOUTS[0], "worker.num=2"),
    ],
)
def test_several_trainers_are_equal_and_resume_exactly(run_graph, build_graph, kind):
    """The generators of trainers without a saved state also continue, because all draw equal numbers."""
    args = ("mode=sync", "seed=3", "trainer.num=2", *kind, "total_env_steps=768")
    once = run_graph(*args, on_ray=True)
    check_equal_trainers(once)
    half = stopped(build_graph(*args, on_ray=True), 320)
    assert weights(half) != weights(once)
    rest = run_graph(*args, run=half.folder, on_ray=True)
    check_equal_trainers(rest)
    assert weights(rest) == weights(once)
    assert counters(rest) == counters(once)


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("replay=prioritized", "replay.rows=windows", "replay.shards=2"),
        ("env=BitFlip", "replay=hindsight", "algo.n_step=2", "replay.shards=2"),
    ],
)
def test_windows_of_several_workers_resume_exactly(run_graph, build_graph, options):
    """In processes, with a table that is full, so that windows go on from saved steps to new ones."""
    kind = ("env=CartPole-v1", "algo=dqn", "worker.num=2", "replay=windows", "replay.seq_len=4", "replay.capacity=300")
    args = ("mode=sync", "seed=3", *kind, *options, "total_env_steps=768")
    once = run_graph(*args, on_ray=True)
    half = stopped(build_graph(*args, on_ray=True), 500)
    assert weights(half) != weights(once)
    rest = run_graph(*args, run=half.folder, on_ray=True)
    assert weights(rest) == weights(once)
    assert counters(rest) == counters(once)


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["single", "sync"], "single"))
@pytest.mark.parametrize("options", [(), ("replay=prioritized", "replay.remover=random")])
def test_columns_that_an_algorithm_writes_to_replay_are_resumed(run_graph, build_graph, monkeypatch, mode, options):
    learn = my_writer.Algorithm.update

    def update(self, batch, counts):
        found = learn(self, batch, counts)
        return replace(found, priorities=found.columns["uses"]) if options else found

    monkeypatch.setattr(my_writer.Algorithm, "update", update)
    args = ("env=CartPole-v1", "algo=outside.my_writer", f"mode={mode}", "seed=3", *options, "replay.capacity=300")
    once = run_graph(*args, "total_env_steps=512")
    uses = get(by_name(once.replay.shards[0], "contents"))["uses"]
    assert uses.max() > 3
    assert (uses > 0).sum() > 200
    half = interrupted(build_graph(*args, "total_env_steps=512", "checkpoint.period=100"))
    rest = run_graph(*args, "total_env_steps=512", run=half.folder)
    np.testing.assert_array_equal(get(by_name(rest.replay.shards[0], "contents"))["uses"], uses)
    assert weights(rest) == weights(once)


def test_columns_that_are_not_declared_are_refused(run_graph, monkeypatch):
    monkeypatch.setattr(my_writer, "WRITES", ())
    with pytest.raises(AlgorithmRefused, match=r"Update\.columns has uses; list these columns in WRITES"):
        run_graph("env=CartPole-v1", "algo=outside.my_writer", "mode=single")


@pytest.mark.slow
def test_a_resumed_run_continues_the_curve_and_the_weights(run_graph):
    args = ("env=Pendulum-v1", "mode=sync", *EVERY)
    once = run_graph(*args, "total_env_steps=512")
    half = run_graph(*args, "total_env_steps=256")
    before = weights(half)
    rest = run_graph(*args, "total_env_steps=512", run=half.folder)
    assert before != weights(rest) == weights(once)
    names = ("env_steps", "opt_steps", "version", "mean")
    assert [[row[name] for name in names] for row in rows(rest)] == [
        [row[name] for name in names] for row in rows(once)
    ]
    lines = [json.loads(line)["env_steps"] for line in (rest.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == sorted(lines)
    assert rest.progress.best.mean == once.progress.best.mean


@pytest.mark.slow
def test_wall_time_continues(run_graph):
    def age(graph):
        graph.progress.started -= 1000.0

    half = run_graph(COUNTER, "mode=sync", "total_env_steps=128", started=age)
    rest = run_graph(COUNTER, "mode=sync", "total_env_steps=256", run=half.folder)
    assert rest.progress.process_s() < 1000 < rest.progress.wall_s()
    assert [float(row["wall_s"]) > 1000 for row in rows(rest)] == [True] * 2
    assert rest.progress.summary(0.0, 0)["wall_s"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["sync", "async"], "async"))
def test_a_single_run_resumes_in_another_mode(run_graph, mode):
    args = (COUNTER, "orchestrator.sample_insert_ratio=0.25")
    half = run_graph(*args, "mode=single", "total_env_steps=512")
    rest = run_graph(*args, f"mode={mode}", "worker.num=2", "total_env_steps=1280", run=half.folder)
    assert rest.progress.env_steps >= 1280
    assert rest.progress.updates_per_env_step() == pytest.approx(0.25, rel=0.02)
    assert rest.progress.samples == rest.progress.opt_steps
    assert rest.progress.inserts == rest.limiter.state()["landed"]


@pytest.mark.slow
def test_without_saved_replay_the_replay_is_refilled_without_a_burst_of_updates(run_graph):
    args = (COUNTER, "mode=sync", "checkpoint.replay=off", "orchestrator.min_inserts=200")
    half = run_graph(*args, "total_env_steps=512")
    before = half.progress.opt_steps
    rest = run_graph(*args, "total_env_steps=1024", run=half.folder)
    paid = rest.progress.env_steps - half.progress.env_steps - 200
    assert rest.progress.opt_steps - before == pytest.approx(0.25 * paid, abs=1)
    assert rest.progress.updates_per_env_step() == pytest.approx(0.25, rel=0.02)

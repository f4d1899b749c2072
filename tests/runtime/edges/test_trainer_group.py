import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
from graphs import COUNTER, on_collected, weights

from drl_cli.errors import Diverged, RoleLost
from drl_cli.optim.group import PeerLost
from drl_cli.runtime.edges import trainer_group
from drl_cli.runtime.edges.calls import GRACE_S
from drl_cli.runtime.edges.trainer_group import TrainerGroup, roles
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.place.handles import ActorDied, LocalRef, get
from drl_cli.runtime.place.told import News

LOSS, DATA, OTHER = Diverged("loss is NaN"), Diverged("reward of worker 2", {}, is_data=True), Diverged("loss too")


class Trainer:
    """Records its calls and the references that it returned."""

    def __init__(self):
        self.calls, self.answers = [], []

    def call(self, method, *args, results=1):
        self.calls.append((method, *args))
        refs = [LocalRef() for _ in range(results)]
        self.answers.append(refs)
        return refs[0] if results == 1 else refs


def test_the_group_waits_for_a_compiler_since_its_first_trainer_does():
    trainers = [SimpleNamespace(told=lambda since=since: News((), since)) for since in (None, 7.0, 5.0)]
    assert TrainerGroup(trainers).compiler_since() == 5.0
    assert TrainerGroup(trainers[:1]).compiler_since() is None


def test_each_trainer_gets_its_part_and_the_first_answers_for_all():
    trainers = [Trainer(), Trainer()]
    group, parts = TrainerGroup(trainers), [LocalRef() for _ in range(4)]
    reports, priorities = group.train(parts)
    assert [trainer.calls for trainer in trainers] == [[("train", *parts[:2])], [("train", *parts[2:])]]
    assert [*zip(reports, priorities, strict=True)] == [tuple(trainer.answers[0]) for trainer in trainers]
    published, described, state = group.publish(7, 70), group.describe(), group.state()
    loaded = group.load_state(state)
    assert trainers[0].calls[1:] == [("publish", 7, 70), ("describe",), ("state",), ("load_state", state)]
    assert trainers[1].calls[1:] == [("load_state", state)]
    assert published == tuple(trainers[0].answers[1])
    assert [described, state] == [answer[0] for answer in trainers[0].answers[2:4]]
    assert loaded == [trainer.answers[-1][0] for trainer in trainers]


@pytest.mark.parametrize("num", [1, 2])
def test_the_first_trainer_publishes_with_its_train_call(num):
    trainers, newest = [Trainer() for _ in range(num)], LoadParams(6, 60, 600)
    parts = [LocalRef() for _ in range(2 * num)]
    reports, priorities, version = TrainerGroup(trainers).train_and_publish(parts, newest)
    assert trainers[0].calls == [("train_and_publish", *parts[:2], newest)]
    assert [trainer.calls for trainer in trainers[1:]] == [[("train", *parts[2:])]] * (num - 1)
    assert [*zip(reports, priorities, strict=True)] == [tuple(trainer.answers[0][:2]) for trainer in trainers]
    assert version == tuple(trainers[0].answers[0][2:])


def test_several_trainers_join_the_first_and_a_single_one_joins_nobody():
    trainers = [Trainer() for _ in range(3)]
    group = TrainerGroup(trainers)
    assert (group.roles, roles(1)) == (["trainer 0", "trainer 1", "trainer 2"], ["trainer"])
    joined, address = group.connect(), trainers[0].answers[0][0]
    assert trainers[0].calls == [("listen",), ("join", address)]
    assert [trainer.calls for trainer in trainers[1:]] == [[("join", address)]] * 2
    assert joined == [trainer.answers[-1][0] for trainer in trainers]
    alone = TrainerGroup([Trainer()])
    assert (alone.connect(), alone.trainers[0].calls) == ([], [])


@pytest.mark.parametrize(
    ("answers", "error", "expected"),
    [
        ([[LOSS, DATA]], LOSS, DATA),
        ([[LOSS, OTHER]], LOSS, LOSS),
        ([[LOSS, None]], LOSS, LOSS),
        ([[LOSS], [DATA]], LOSS, DATA),  # the second trainer answers later
        ([[ActorDied("signal 9"), PeerLost("gone"), DATA]], LOSS, DATA),
        ([[LOSS], []], LOSS, LOSS),  # the second trainer never answers
        ([], DATA, DATA),  # no trainer is asked, because the error is known
    ],
)
def test_an_error_that_names_bad_data_counts(monkeypatch, answers, error, expected):
    refs, left, asked = [LocalRef(), LocalRef(), LocalRef()], [], []

    def wait(silent, timeout_s):
        asked.append(timeout_s)
        ready = [(silent[i], answer) for i, answer in enumerate(left.pop(0))]
        for ref, answer in ready:
            ref.error = answer
        return [ref for ref, _ in ready]

    refs, left[:] = refs[: max(1, sum(map(len, answers)) + ([] in answers))], [list(part) for part in answers]
    moments = iter([50.0, 51.0, 99.0])
    monkeypatch.setattr(trainer_group, "wait", wait)
    monkeypatch.setattr(trainer_group, "now", lambda: next(moments))
    assert TrainerGroup([Trainer()] * len(refs)).at_fault(refs, error) is expected
    assert asked == [GRACE_S - 1.0, 0.0][: len(answers)]  # all have GRACE_S together


def policy(graph):
    """Return the final parameters of the policy, which are equal in all trainers."""
    ranks = [get(trainer.call("publish", 0, 0, results=2)[1]) for trainer in graph.trainers.trainers]
    for params in ranks:
        np.testing.assert_array_equal(params, ranks[0])
    return ranks[0]


@pytest.mark.ray
@pytest.mark.parametrize(
    "option",
    [
        "replay=uniform",
        pytest.param("replay=prioritized", marks=pytest.mark.exhaustive),
        pytest.param("env.normalize_obs=true", marks=pytest.mark.exhaustive),
    ],
)
def test_two_trainers_equal_one_and_are_reproducible(run_graph, option):
    args = (COUNTER, "mode=sync", "worker.num=1", option, "seed=5")
    one = run_graph(*args)
    two, again = (run_graph(*args, "trainer.num=2", on_ray=True) for _ in range(2))
    assert two.progress.opt_steps == one.progress.opt_steps > 50
    np.testing.assert_allclose(policy(two), policy(one), rtol=0, atol=1e-3)  # small differences grow
    assert weights(two) == weights(again)
    sent = two.progress.trace.counts
    assert sent[4] == 2 * one.progress.trace.counts[4]
    assert sent[5] == (sent[4] if option == "replay=prioritized" else 0)


@pytest.mark.ray
def test_two_trainers_in_async(run_graph):
    graph = run_graph(COUNTER, "mode=async", "worker.num=2", "trainer.num=2", "replay=prioritized", on_ray=True)
    progress = graph.progress
    assert policy(graph).any()
    assert (progress.opt_steps, progress.samples) == ((progress.inserts - 64) // 4, progress.opt_steps)
    assert progress.trace.counts[5] == progress.trace.counts[4] > 0


@pytest.mark.ray
@pytest.mark.exhaustive
def test_two_trainers_on_policy(run_graph):
    args = ("algo=ppo", "algo.minibatch_size=8", "worker.num=2", "worker.block_rows=8", "total_env_steps=256")
    graph = run_graph(COUNTER, *args, "mode=async", "trainer.num=2", on_ray=True)
    assert policy(graph).any()
    assert graph.progress.samples == graph.progress.trace.counts[4] / 2 > 0


def end(graph, rank, number):
    """Send a signal to a trainer of a running graph; return the error that ends the run, and the seconds until then."""
    process, sent = get(graph.trainers.trainers[rank].ping()), []

    def send(header):
        if graph.progress.opt_steps > 100 and not sent:
            os.kill(process, number)
            sent.append(time.monotonic())

    on_collected(graph, send)
    with pytest.raises(RoleLost) as caught:
        graph.run()
    elapsed = time.monotonic() - sent[0]
    if number != signal.SIGKILL:
        os.kill(process, signal.SIGKILL)
    return str(caught.value), elapsed


@pytest.mark.ray
@pytest.mark.parametrize(
    ("mode", "rank"),
    [
        pytest.param("sync", 1, marks=pytest.mark.exhaustive),
        pytest.param("async", 0, marks=pytest.mark.exhaustive),
        ("async", 1),
    ],
)
def test_a_killed_trainer_ends_the_run_and_is_named(build_graph, mode, rank):
    graph = build_graph(COUNTER, f"mode={mode}", "trainer.num=2", "total_env_steps=100000", on_ray=True)
    message, elapsed = end(graph, rank, signal.SIGKILL)
    assert message.startswith(f"trainer {rank} died")
    assert elapsed < 60  # a fifth of stall_s


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_hanging_trainer_ends_the_run_and_is_named(build_graph):
    args = ("mode=async", "trainer.num=2", "total_env_steps=100000", "orchestrator.stall_s=20")
    message, elapsed = end(build_graph(COUNTER, *args, on_ray=True), 1, signal.SIGSTOP)
    assert "trainer 1" in message
    assert elapsed < 60

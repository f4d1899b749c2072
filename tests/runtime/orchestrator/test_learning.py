import time

import pytest
from clocks import Clock
from graphs import COUNTER, TINY, make_config
from handles import FakeHandle
from headers import make_train_report

from drl_cli.chains.process_group import PeerLost
from drl_cli.errors import Diverged
from drl_cli.runtime.edges.calls import GRACE_S, Calls
from drl_cli.runtime.messages import SampleBatch
from drl_cli.runtime.orchestrator import learning as module
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.learning import CALL_S, Learning
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.place.handles import ActorDied, LocalRef
from drl_cli.types import LoadParams

LOSS, DATA, OTHER = Diverged("loss is NaN"), Diverged("reward of worker 2", {}, is_data=True), Diverged("loss too")


class Noted:
    """Records every call with its name; `answers` are the answers by name."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __getattr__(self, name):
        def call(*args, **options):
            self.calls.append((name, *args, *options.values()))
            return self.answers.get(name)

        return call


class NotedHandle(Noted, FakeHandle):
    """Records every call of a role."""


def report(opt_steps, num_updates=4, skipped=0, seconds=1.0, num_batches=4, waiting=0, repeats=0):
    options = {"skipped": skipped, "seconds": seconds, "num_batches": num_batches}
    options |= {"waiting": waiting, "repeats": repeats}
    return make_train_report(opt_steps, num_updates, **options)


class Trainer(FakeHandle):
    """Records its calls with its rank; `made.answers` are the references that it returns, by method."""

    def __init__(self, made, rank):
        self.made, self.rank = made, rank

    def call(self, method, *args, results=1):
        self.made.asked.append((self.rank, method, *args))
        made = self.made
        own = {"train": (made.reports[self.rank], made.priorities[self.rank]), "publish": made.published}
        answer = {**own, **made.answers}[method]
        assert results == (len(answer) if isinstance(answer, tuple) else 1)
        return answer


class Made:
    """Learning with recorders around it; `react` delivers the answers."""

    def __init__(self, *overrides, num=1, reports=None, mode="async"):
        options = (*TINY, COUNTER, f"mode={mode}", f"trainer.num={num}", "orchestrator.sample_load_ratio=8")
        config = make_config(*options, *overrides)
        self.reports = [LocalRef(value) for value in reports or [report(4)] * num]
        self.priorities = [LocalRef(f"priorities {i}") for i in range(num)]
        self.published = LocalRef(LoadParams(3, 8, 80)), LocalRef("params 3")
        self.batches = [(f"header {i}", f"columns {i}") for i in range(num)]
        self.replay = Noted(sample=(1, self.batches), update_priorities=LocalRef())
        self.replay.shards = ["shard 0", "shard 1"]
        self.asked, self.answers = [], {}
        names = ["trainer"] if num == 1 else [f"trainer {i}" for i in range(num)]
        self.trainers = {name: Trainer(self, i) for i, name in enumerate(names)}
        self.server, self.limiter = NotedHandle(call=LocalRef(())), Noted()
        edges = Edges(None, self.replay, self.trainers, self.server, None, None, share=lambda ref: ("shared", ref))
        self.progress, self.calls = Progress(config, time.time()), Calls(60.0)
        self.progress.env_steps = 77
        self.told = []
        told = lambda *args: self.told.append(args)  # noqa: E731
        self.learning = Learning(config, edges, self.limiter, self.progress, self.calls, told)
        self.learning.params_header = LoadParams(2, 0, 20)

    def react(self):
        while self.calls.pending:
            self.calls.react((), 0.0, ())

    @property
    def trace(self):
        return {route: count for route, count in self.progress.trace.counts.items() if count}


def test_a_train_call_asks_one_shard_for_all_trainers():
    made = Made("replay=prioritized", num=2)
    assert made.learning.is_idle
    made.learning.train(5)
    assert made.replay.calls == [("sample", SampleBatch(5, 16, 2, 2, 77))]
    assert made.asked == [(i, "train", f"header {i}", f"columns {i}") for i in range(2)]
    assert made.limiter.calls == [("issue_sample", 5)]
    assert made.trace == {3: 1, 4: 2}
    assert (made.learning.training, made.learning.is_idle) == (1, False)
    assert [role for role, *_ in made.calls.pending.values()] == ["trainer 0", "trainer 1"]
    made.react()
    assert made.replay.calls[1:] == [("update_priorities", 1, ref) for ref in made.priorities]
    assert made.trace == {3: 1, 4: 2, 5: 2}
    assert made.limiter.calls[1:] == [("served", 5, 4, 0, 0)]  # four of the five were there
    assert (made.learning.training, made.learning.is_idle) == (0, True)
    assert (made.progress.opt_steps, made.progress.samples) == (4, 4)


def test_the_limiter_learns_the_state_of_the_queue_and_uniform_replay_gets_no_priorities():
    made = Made(reports=[report(3, num_updates=2, skipped=1, num_batches=3, waiting=6, repeats=2)])
    made.learning.publish()
    made.learning.train(4)
    assert made.replay.calls == [("sample", SampleBatch(4, 16, 3, 1, 77))]  # with the version in flight
    made.react()
    assert len(made.replay.calls) == 1
    assert 5 not in made.trace
    assert made.limiter.calls[1:] == [("served", 4, 3, 6, 2)]


def test_a_report_counts_once_all_trainers_have_answered():
    made = Made(num=2)
    made.learning.train(4)
    first = next(iter(made.calls.pending))
    made.calls.pending.pop(first)[1](first)
    assert (made.learning.training, made.progress.opt_steps) == (1, 0)
    made.react()
    assert (made.learning.training, made.progress.opt_steps) == (0, 4)


def test_the_error_of_the_trainer_with_bad_data_is_raised():
    made = Made(num=2)
    error = Diverged("loss is NaN")
    made.reports[0].error, made.reports[1].error = error, Diverged("reward of worker 2", {}, is_data=True)
    made.learning.train(4)
    with pytest.raises(Diverged, match="reward of worker 2") as caught:
        made.react()
    assert caught.value.__cause__ is error


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
        clock.now += 1.0
        ready = [(silent[i], answer) for i, answer in enumerate(left.pop(0))]
        for ref, answer in ready:
            ref.error = answer
        return [ref for ref, _ in ready]

    refs, left[:] = refs[: max(1, sum(map(len, answers)) + ([] in answers))], [list(part) for part in answers]
    clock = Clock().install(monkeypatch, wait)
    assert module.at_fault(refs, error) is expected
    assert asked == [GRACE_S, GRACE_S - 1.0][: len(answers)]  # all have GRACE_S together


def test_the_trainer_is_idle_without_a_train_call(clock):
    made = Made()
    idle = made.progress.trainer_idle
    for seconds, expected in ((1.0, 0.0), (4.0, 3.0)):
        clock.now += seconds - 1.0
        made.learning.train(4)
        clock.now += 0.5
        made.answers["train"] = LocalRef(report(4)), LocalRef()
        made.learning.train(4)
        assert idle.seconds(clock.now) == expected
        clock.now += 0.5
        made.react()
        assert idle.seconds(clock.now) == expected
    assert made.progress.train_started == 100.0


@pytest.mark.parametrize(
    ("mode", "opt_steps", "publishing", "publishes"),
    [("async", 8, False, True), ("async", 7, False, False), ("sync", 8, False, False), ("async", 100, True, False)],
)
def test_in_async_a_version_is_due_after_sample_load_ratio_updates(mode, opt_steps, publishing, publishes):
    made = Made(mode=mode, reports=[report(opt_steps)])
    made.learning.publishing = publishing
    made.learning.train(4)
    made.calls.react((), 0.0, ())
    assert made.learning.publishing == (publishes or publishing)
    assert [call for call in made.asked if call[1] == "publish"] == [(0, "publish", 3, 77)] * publishes
    assert made.learning.is_idle == (not made.learning.publishing)


def test_a_version_goes_to_the_server_and_the_callback():
    made = Made()
    made.learning.publish()
    assert made.asked == [(0, "publish", 3, 77)]
    assert [role for role, *_ in made.calls.pending.values()] == ["trainer"]
    made.react()
    header, params = made.published[0].value, made.published[1]
    assert (made.learning.params_header, made.learning.params) == (header, ("shared", params))
    assert made.server.calls == [("call", "push", header, params)]
    assert (made.told, (made.progress.loads, made.trace)) == ([(header, ("shared", params))], (1, {6: 1}))
    assert not made.learning.publishing


ON_POLICY = ("algo=ppo", "algo.minibatch_size=8", "orchestrator.sample_load_ratio=null")


@pytest.mark.parametrize(("is_due", "num"), [(True, 1), (True, 2), (False, 1)])
def test_on_policy_the_first_trainers_call_returns_the_next_version(is_due, num):
    made, version = Made(*ON_POLICY, num=num), (LocalRef(LoadParams(3, 4, 77) if is_due else None), LocalRef("new"))
    made.answers["train_and_publish"] = made.reports[0], made.priorities[0], *version
    made.learning.train(1)
    assert made.asked[0] == (0, "train_and_publish", "header 0", "columns 0", LoadParams(2, 0, 20))
    assert made.asked[1:] == [(1, "train", "header 1", "columns 1")] * (num - 1)
    assert not made.learning.publishing
    made.react()
    assert len(made.asked) == num  # no publish call
    header, params = version[0].value, version[1]
    assert made.told == [(header, ("shared", params))] * is_due
    assert made.server.calls == [("call", "push", header, params)] * is_due
    assert made.learning.params_header == (header or LoadParams(2, 0, 20))
    assert made.learning.is_idle


@pytest.mark.parametrize("overrides", [("mode=sync",), ("orchestrator.sample_load_ratio=2",), ()])
def test_other_train_calls_return_no_version(overrides):
    made = Made(*ON_POLICY, *overrides)
    made.learning.publishing = not overrides  # a publish call is in flight, so the header of the newest is not known
    made.learning.train(1)
    assert made.asked == [(0, "train", "header 0", "columns 0")]


def test_the_server_gets_few_versions_and_the_newest_before_it_is_read(clock):
    made = Made()
    for version in (3, 4, 5):
        made.published = LocalRef(LoadParams(version, 8, 80)), LocalRef(f"params {version}")
        made.learning.publish()
        made.react()
        clock.now += 0.75 * module.PUSH_S
    pushed = [call[2].version for call in made.server.calls]
    assert pushed == [3, 5]
    made.learning.publish()
    made.react()
    assert [call[2].version for call in made.server.calls] == [3, 5]
    made.server.answers["call"] = LocalRef(), LocalRef("theirs")
    made.calls.expect = lambda *args, **options: None
    made.learning.pull()
    assert [call[1] for call in made.server.calls[2:]] == ["push", "pull"]
    made.learning.pull()
    assert [call[1] for call in made.server.calls[4:]] == ["pull"]


def test_pull_and_connect_expect_the_answers_of_their_roles():
    made, header, params = Made(), LocalRef(LoadParams(2, 0, 0)), LocalRef("theirs")
    made.server.answers["call"] = header, params
    assert made.learning.pull() is params
    assert (made.server.calls, made.calls.pending[header][0]) == ([("call", "pull", 2)], "parameter server")
    made, alone = Made(num=2), Made()
    made.answers |= {"listen": "address", "join": (joined := LocalRef())}
    made.learning.connect()  # the first trainer joins itself, too
    assert made.asked == [(0, "listen"), (0, "join", "address"), (1, "join", "address")]
    assert made.calls.pending[joined][0] == "trainer 1"
    alone.learning.connect()
    assert (alone.asked, alone.calls.pending) == ([], {})


def test_blame_asks_every_shard_and_trainer(monkeypatch):
    made, asked, error = Made(num=2), [], KeyError("peer")
    monkeypatch.setattr(module, "blame", lambda *args: asked.append(args))
    made.learning.blame(error)
    assert asked == [({"replay 0": "shard 0", "replay 1": "shard 1", **made.trainers}, error)]


@pytest.mark.parametrize(
    ("overrides", "report_s", "updates"),
    [
        ((), CALL_S * 2, 8),  # sixteen took twice as long as they may
        ((), CALL_S / 10, 32),  # never more than the default
        *[((), CALL_S * 100, 1), ((), 0.0, 32), (("trainer.updates_per_call=5",), CALL_S * 100, 5)],
        (("debug.in_process=true",), CALL_S * 100, 32),
    ],
)
def test_the_updates_of_a_call_follow_from_their_time(overrides, report_s, updates):
    ratio = ("orchestrator.sample_insert_ratio=1", "worker.block_rows=64", "debug.in_process=false")
    made = Made(*ratio, *overrides, reports=[report(16, seconds=report_s, num_batches=16)])
    assert made.learning.config.updates_per_call == (5 if "trainer.updates_per_call=5" in overrides else 32)
    assert made.learning.call_updates == (made.learning.config.updates_per_call if overrides else 1)
    made.learning.train(16)
    made.react()
    assert made.learning.call_updates == updates
    made.reports[0].value = report(16, num_updates=0, seconds=9.0, num_batches=0)
    made.learning.train(16)
    made.react()
    assert made.learning.call_updates == updates  # a call without batches does not count


@pytest.mark.parametrize(
    ("ratio", "mode", "rows", "updates"),
    [
        *[(0.01, "sync", 512, 5), (0.01, "async", 1024, 10)],  # the updates due for the largest block
        *[(0.1, "single", 320, 16), (0.1, "async", 640, 32)],
        *[(1.0, "sync", 32, 16), (1.0, "async", 64, 32)],
        *[(8.0, "single", 16, 16), (8.0, "async", 16, 32)],  # one step of every environment
    ],
)
def test_a_block_is_due_for_two_train_calls_up_to_a_limit(ratio, mode, rows, updates):
    config = make_config(f"orchestrator.sample_insert_ratio={ratio}", f"mode={mode}", "worker.envs=16")
    assert (config.block_rows, config.updates_per_call) == (rows, updates)
    given = make_config(f"mode={mode}", "worker.block_rows=48", "trainer.updates_per_call=7", "worker.envs=16")
    assert (given.block_rows, given.updates_per_call) == (48, 7)

"""Where the time of a worker, a proxy and a trainer goes, as their headers say it, by clocks that the tests set."""

from types import SimpleNamespace

import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.messages import BatchTrainingData, LoadParams, ProcessUse
from drl_cli.runtime.place.handles import LocalRuntime
from drl_cli.runtime.program import make_proxy
from drl_cli.runtime.roles import trainer as trainer_module
from drl_cli.runtime.roles import worker as worker_module
from drl_cli.runtime.roles.worker import Worker
from drl_cli.runtime.trial import random_batch

RANDOM = LoadParams(-1, 0, 0, random_actions=True)


class Clock:
    """Stands still but for what `takes` time."""

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
    monkeypatch.setattr(trainer_module, "time", clock)
    return clock


def slow(worker, clock):
    """Its policy takes 1 s for all environments together, these 3 s, and rows 0.5 s, at each of its 8 steps."""
    worker.policy.random = clock.takes(1.0, worker.policy.random)
    worker.envs.step = clock.takes(3.0, worker.envs.step)
    worker.builder.append = clock.takes(0.5, worker.builder.append)


def test_a_worker_tells_environments_from_policy_in_each_block(clock):
    config = make_config(COUNTER, *TINY, "mode=async", "worker.num=1")
    worker = Worker(config, read_spec(config.env), 0, 0)
    slow(worker, clock)
    for _ in range(2):
        header, _ = worker.collect(RANDOM)
        assert (header.collect_s, header.work_s, header.env_s, header.policy_s) == (36.0, 36.0, 24.0, 8.0)


def test_a_proxy_adds_up_what_its_workers_say(clock):
    config = make_config(COUNTER, *TINY, "mode=sync", "worker.num=2", "worker.proxies=1")
    proxy = make_proxy(config, read_spec(config.env), LocalRuntime(), 0, 0)
    uses = [(ProcessUse(f"worker {i}", "here", i, 0.0, 1.0, 1),) for i in range(2)]
    for member, use in zip(proxy.pool.members, uses, strict=True):
        slow(member.handle.role, clock)
        member.handle.role.use = SimpleNamespace(take=lambda use=use: use)
    proxy.use = SimpleNamespace(take=lambda: ("the proxy's own",))
    header, _ = proxy.collect(RANDOM)
    assert (header.work_s, header.env_s, header.policy_s) == (72.0, 48.0, 16.0)
    assert header.uses == ("the proxy's own", *uses[0], *uses[1])


def test_a_trainer_tells_batches_from_updates_and_passes_on_what_replay_has_used(clock):
    config = make_config("env=Pendulum-v1", *TINY, "mode=async", "worker.num=1", "trainer.threads=1")
    spec = read_spec(config.env)
    trainer = make_trainer(config, spec, "cpu", 0)
    _, columns = random_batch(config, spec, trainer.publish(0, 0)[1])
    trainer._to_device = clock.takes(1.0, trainer._to_device)
    trainer._learn = clock.takes(5.0, trainer._learn)
    trainer.use = SimpleNamespace(take=lambda: ("the trainer's",))
    header = BatchTrainingData(0, 1, 16, 99, uses=("the shard's",))
    report, _ = trainer.train(header, columns)
    num_columns = len(columns) - 1  # all but the source
    assert (report.seconds, report.batch_s) == (num_columns + 5.0, float(num_columns))
    assert report.uses == ("the shard's", "the trainer's")

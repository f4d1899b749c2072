import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from graphs import TINY, make_config

from drl_cli.algos.base import Algorithm, Update
from drl_cli.api import Context
from drl_cli.chains.process_group import PeerLost, ProcessGroup
from drl_cli.envs.make import read_spec
from drl_cli.errors import AlgorithmFailed, AlgorithmRefused, Diverged, Refused
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.runtime import factories
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.process_graph import make_trainers
from drl_cli.runtime.roles import trainer as module
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.runtime.trial_update import random_batch
from drl_cli.types import LoadParams
from drl_cli.utils import lazy, machine
from drl_cli.utils.outside import raised

CPU = Context(torch.device("cpu"))
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
HEADER = BatchTrainingData(2)


class Fake(Algorithm):
    """Returns the rewards as priorities and notes its batches; its two parameters never change."""

    policy_parts = ("values",)

    def __init__(self, context, has_priorities=True):
        self.params = Params(context, values=2)
        self.optimizer = Optimizer(self.params, {"values": 0.5}, context)
        self.has_priorities, self.batches = has_priorities, []

    def update(self, batch, counts):
        self.batches.append(batch)
        return Update({"loss": batch["reward"].mean()}, batch["reward"] if self.has_priorities else None)


class FakeGroup(ProcessGroup):
    """Notes its calls; the mean over the group is twice the value of this trainer."""

    def __init__(self):
        super().__init__(size=2)
        self.calls = []

    def mean_(self, tensor):
        tensor *= 2

    def spread(self, tensor):
        return 0 * tensor

    def listen(self, host):
        self.calls.append(("listen", host))
        return 5005

    def join(self, *args):
        self.calls.append(("join", *args))


class Recorder:
    """A runtime with this many GPUs; notes each role, its device, its rank and its GPUs."""

    def __init__(self, num_gpus):
        self.num_gpus, self.spawned = num_gpus, []

    def gpus(self):
        return self.num_gpus

    def spawn(self, role, factory, config, spec, device, rank, weights, gpus, modules):
        self.spawned.append((role, device, rank, gpus))


def make(context=CPU, **options):
    trainer = Trainer(lambda context: Fake(context, **options), context)
    return trainer.algorithm, trainer


def columns(**more):
    return {"reward": np.arange(6, dtype=np.float32).reshape(2, 3)} | more


@pytest.mark.parametrize(
    ("repeats", "opt_steps", "publishes"),
    [(0, 0, True), (1, 0, False), (0, 2, False)],  # the batch is served again; the version has all updates
)
def test_a_train_call_publishes_the_version_that_is_due(repeats, opt_steps, publishes):
    _, trainer = make()
    _, other = make()
    header, newest = replace(HEADER, repeats=repeats, env_steps=77), LoadParams(4, opt_steps, 50)
    report, priorities, params_header, params = trainer.train_and_publish(header, columns(), newest)
    assert replace(report, seconds=0.0, batch_s=0.0) == replace(
        other.train(header, columns())[0], seconds=0.0, batch_s=0.0
    )
    assert (report.opt_steps, priorities) == (2, None)
    assert params_header == (LoadParams(5, 2, 77) if publishes else None)
    if publishes:
        assert np.array_equal(params, other.publish(5, 77)[1])
    else:
        assert params is None


@pytest.mark.parametrize(
    ("device", "num", "num_gpus", "expected"),
    [
        *[("auto", 1, 4, ("auto", 0)), ("cuda", 1, 4, ("cuda", 1)), ("cuda", 2, 1, ("cuda", 0))],
        *[("cuda", 2, 2, ("cuda", 1)), ("cuda:1", 1, 4, ("cuda:1", 0)), ("cpu", 2, 2, ("cpu", 0))],
    ],
)
def test_either_every_trainer_has_its_own_gpu_or_none_has(device, num, num_gpus, expected):
    runtime = Recorder(num_gpus)
    trainers = make_trainers(make_config(f"device={device}", f"trainer.num={num}"), None, runtime)
    names = ["trainer"] if num == 1 else ["trainer 0", "trainer 1"]
    assert runtime.spawned == [(name, expected[0], rank, expected[1]) for rank, name in enumerate(names)]
    assert [*trainers] == names


@pytest.mark.parametrize(("device", "expected"), [("auto", "cpu"), ("cpu", "cpu"), ("meta", "meta")])
def test_a_trainer_takes_no_gpu_that_was_not_chosen(monkeypatch, device, expected):
    contexts = []
    monkeypatch.setattr(factories, "Trainer", lambda build, context, *args: contexts.append(context))
    config = make_config("env=Pendulum-v1", *TINY)
    make_trainer(config, read_spec(config.env), device, 0)
    assert contexts[0].device == torch.device(expected)


@pytest.mark.parametrize(
    ("env", "algo", "compiles"),
    [("Pendulum-v1", "sac", False), ("CartPole-v1", "ppo", True), ("CartPole-v1", "ppo", False)],
)
def test_several_trainers_compile_only_the_gradients_of_on_policy_algorithms(monkeypatch, env, algo, compiles):
    compiled = []

    def note(function, **options):
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(lazy.torch, "compile", note)
    choice = f"trainer.compile={str(compiles or algo == 'sac').lower()}"
    config = make_config(f"env={env}", f"algo={algo}", *TINY, "mode=async", "trainer.num=2", choice)
    spec = read_spec(config.env)
    trainer = make_trainer(config, spec, "cpu", 0)
    assert {*compiled} == ({"_one_graph"} if compiles else set())
    monkeypatch.setattr(ProcessGroup, "_all_reduce", lambda self, tensor, operation: None)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiles)
    report, _ = trainer.train(*random_batch(config, spec, trainer.publish(0, 0)[1]))
    assert report.num_updates


@pytest.mark.parametrize(
    ("device", "compiles", "is_cpp"), [("cpu", True, True), ("cpu", False, False), ("cuda", True, False)]
)
def test_compiled_code_on_a_cpu_uses_the_cpp_wrapper(device, compiles, is_cpp):
    config = pytest.importorskip("torch._inductor.config")
    with config.patch(cpp_wrapper=False):
        Trainer(lambda context: None, Context(torch.device(device), compiles=compiles))
        assert config.cpp_wrapper is is_cpp


def test_a_trainer_keeps_freed_memory_and_accepts_read_only_batches(monkeypatch):
    kept = []
    monkeypatch.setattr(module, "keep_freed_memory", lambda: kept.append(True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fake, trainer = make()
        batch = columns()
        batch["reward"].flags.writeable = False  # as in shared memory
        trainer.train(HEADER, batch)
        assert fake.batches[0]["reward"].tolist() == [0, 1, 2]
    assert kept == [True]


def test_tiny_numbers_count_as_0_only_while_the_trainer_trains(monkeypatch):
    (fake, trainer), seen = make(), []
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot treat them as 0")
    torch.set_flush_denormal(False)
    learn, tiny = fake.learn, torch.tensor([1e-39])

    def watched(batch, counts):
        seen.append(float(tiny * 1.0))
        if len(seen) > 2:
            raise MemoryError
        return learn(batch, counts)

    fake.learn = watched
    trainer.train(HEADER, columns())
    assert seen == [0.0] * 2
    assert float(tiny * 1.0) > 0.0
    with pytest.raises(MemoryError):
        trainer.train(HEADER, columns())
    assert float(tiny * 1.0) > 0.0


def test_trainers_meet_at_the_address_of_the_first(monkeypatch):
    monkeypatch.setattr(module, "node_address", lambda: "10.0.0.3")
    group = FakeGroup()
    _, trainer = make(Context(torch.device("cpu"), group))
    assert trainer.listen() == ("10.0.0.3", 5005)
    trainer.join(("10.0.0.9", 77))
    assert group.calls == [("listen", "10.0.0.3"), ("join", "10.0.0.9", 77, torch.device("cpu"))]


def test_a_report_has_the_time_of_the_call_and_of_its_batches(monkeypatch):
    moments = iter([100.0, 101.0, 103.5])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(moments))
    _, trainer = make()
    report, _ = trainer.train(HEADER, columns())
    assert (report.seconds, report.batch_s, report.opt_steps, report.num_updates) == (3.5, 1.0, 2, 2)


def test_metrics_are_means_over_the_group():
    _, trainer = make(Context(torch.device("cpu"), FakeGroup()))
    report, _ = trainer.train(HEADER, columns())
    assert report.metrics == {"loss": 5.0, "lr": 0.5, "grad_norm": 0.0}


def test_parameters_that_are_not_finite_are_neither_published_nor_saved():
    fake, trainer = make()
    trainer.train(HEADER, columns())
    fake.params.flat.copy_(torch.tensor([1.0, -torch.inf]))
    with pytest.raises(Diverged, match=r"^training diverged at update 2: a parameter of the policy is infinite$"):
        trainer.publish(1, 10)
    fake.params.flat[1] = torch.nan
    with pytest.raises(Diverged, match=r"^training diverged at update 2: algorithm\.params is NaN$"):
        trainer.state()


def test_priorities_come_with_their_row_ids():
    fake, trainer = make()
    row_ids, weight = np.array([[5, 6, 7], [9, 9, 2**40]]), np.full((2, 3), 0.5, np.float32)
    source = np.zeros((2, 3), np.int32)  # the origin of rows is not for the algorithm
    report, update = trainer.train(BatchTrainingData(2, row_ids), columns(weight=weight, source=source))
    assert (report.opt_steps, report.num_updates, report.metrics) == (2, 2, {"loss": 2.5, "lr": 0.5, "grad_norm": 0.0})
    assert update.row_ids.tolist() == row_ids.tolist()
    assert update.priorities.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not any("source" in batch for batch in fake.batches)
    assert all(torch.equal(batch["weight"], torch.full((3,), 0.5)) for batch in fake.batches)


@pytest.mark.parametrize("has_priorities", [False, True])
def test_uniform_replay_gets_no_priorities(has_priorities):
    _, trainer = make(has_priorities=has_priorities)
    assert trainer.train(HEADER, columns())[1] is None


def test_prioritized_replay_needs_an_algorithm_with_priorities():
    _, trainer = make(has_priorities=False)
    with pytest.raises(ValueError, match="replay=uniform"):
        trainer.train(BatchTrainingData(2, np.zeros((2, 3), np.int64)), columns())


@pytest.mark.parametrize(("mode", "rows"), [("async", 1), ("sync", 256)])
def test_a_run_records_how_its_trainer_computes(run_graph, monkeypatch, mode, rows):
    """On a Zen 5, or what looks like one: only sync has to give the weights that earlier versions gave."""
    monkeypatch.setattr(machine, "describe_processor", lambda: "vendor_id : AuthenticAMD\ncpu family : 26\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    args = ("env=Pendulum-v1", f"mode={mode}", "network.hidden=[64,64]", "trainer.batch_size=16")
    facts = run_graph(*args, "debug.in_process=false").trainer_facts
    assert (facts["device"], facts["threads"], facts["products"]["library"]) == ("cpu", 1, "onednn")
    assert facts["products"]["from_rows"] == rows


@pytest.mark.parametrize("name", ["drl_cli.algos.off_policy.sac", "their.algo"])
@pytest.mark.parametrize("error", [Refused("no, thanks"), PeerLost("gone"), MemoryError("full"), FULL, KeyError("x")])
def test_errors_of_an_update_name_the_users_algorithm(monkeypatch, error, name):
    """Refused goes to the user, an error of a user's algorithm names the algorithm, other errors pass unchanged."""
    fake, trainer = make()

    def update(batch, counts):
        raise error

    fake.update = update
    monkeypatch.setattr(Fake, "__module__", name)
    is_users = name == "their.algo" and isinstance(error, KeyError)
    expected = AlgorithmRefused if isinstance(error, Refused) else AlgorithmFailed if is_users else type(error)
    with pytest.raises(expected) as caught:
        trainer.train(HEADER, columns())
    failed = f"algo=their.algo: update {raised(error)}"
    texts = {AlgorithmRefused: "algo: no, thanks", AlgorithmFailed: failed}
    if expected in texts:
        assert str(caught.value) == texts[expected]
    else:
        assert caught.value is error

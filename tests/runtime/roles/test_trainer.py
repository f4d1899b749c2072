"""Trainer: what it answers with uniform and with prioritized replay."""

import numpy as np
import pytest
import torch
from graphs import TINY, make_config

from drl_cli.algos.base import Algorithm, Update
from drl_cli.envs.make import read_spec
from drl_cli.errors import AlgorithmFailed, AlgorithmRefused, Diverged
from drl_cli.optim import products
from drl_cli.optim.group import Context, PeerLost, ProcessGroup
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params, Refused
from drl_cli.runtime.edges.trainer_group import TrainerGroup
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.place.handles import LocalHandle, LocalRef, get
from drl_cli.runtime.program import make_trainers
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.utils import lazy

CPU = Context(torch.device("cpu"))


class Fake(Algorithm):
    """Its priorities are the rewards; it notes what it is given. Its two parameters are never changed."""

    policy_parts = ("values",)

    def __init__(self, context, has_priorities=True):
        self.params = Params(context, values=2)
        self.optimizer = Optimizer(self.params, {"values": 0.5}, context)
        self.has_priorities, self.batches = has_priorities, []

    def update(self, batch, counts):
        self.batches.append(batch)
        return Update({"loss": batch["reward"].mean()}, batch["reward"] if self.has_priorities else None)


def make(context=CPU, **options):
    trainer = Trainer(lambda context: Fake(context, **options), context)
    return trainer.algorithm, trainer


class Recorder:
    """A runtime with this many GPUs; notes each role, its device, its rank and what it asks for."""

    def __init__(self, num_gpus):
        self.num_gpus, self.spawned = num_gpus, []

    def gpus(self):
        return self.num_gpus

    def spawn(self, role, factory, config, spec, device, rank, weights, gpus):
        self.spawned.append((role, device, rank, gpus))


@pytest.mark.parametrize(
    ("device", "num", "num_gpus", "expected"),
    [
        ("auto", 1, 0, ("auto", 0)),
        ("auto", 1, 4, ("auto", 1)),
        ("auto", 2, 1, ("cpu", 0)),  # one of them alone on the gpu would be no use
        ("auto", 2, 2, ("auto", 1)),
        ("cuda", 2, 2, ("cuda", 1)),
        ("cpu", 2, 2, ("cpu", 0)),
    ],
)
def test_each_trainer_has_a_gpu_of_its_own_or_none_has(device, num, num_gpus, expected):
    runtime = Recorder(num_gpus)
    group = make_trainers(make_config(f"device={device}", f"trainer.num={num}"), None, runtime)
    names = ["trainer"] if num == 1 else ["trainer 0", "trainer 1"]
    assert runtime.spawned == [(name, expected[0], rank, expected[1]) for rank, name in enumerate(names)]
    assert group.roles == names


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(("env", "algo"), [("Pendulum-v1", "sac"), ("CartPole-v1", "dqn"), ("CartPole-v1", "ppo")])
def test_gradients_are_compiled_where_the_run_wants_that(monkeypatch, env, algo, compiles):
    compiled = []

    def note(function, **options):
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(lazy.torch, "compile", note)
    config = make_config(f"env={env}", f"algo={algo}", *TINY, f"trainer.compile={str(compiles).lower()}")
    make_trainer(config, read_spec(config.env), "cpu", 0)
    assert compiled == (["gradients"] if compiles else [])


@pytest.mark.parametrize(
    ("device", "compiles", "is_cpp"), [("cpu", True, True), ("cpu", False, False), ("cuda", True, False)]
)
def test_on_a_processor_what_is_compiled_is_called_from_c_too(device, compiles, is_cpp):
    config = pytest.importorskip("torch._inductor.config")
    with config.patch(cpp_wrapper=False):
        Trainer(lambda context: None, Context(torch.device(device), compiles=compiles))
        assert config.cpp_wrapper is is_cpp


class Doubled(ProcessGroup):
    """Whatever the others have, the mean is twice what is here."""

    def mean_(self, tensor):
        tensor *= 2


def test_metrics_are_means_over_the_group():
    _, trainer = make(Context(torch.device("cpu"), Doubled()))
    report, _ = trainer.train(BatchTrainingData(0, 2, 3, 99), columns(False))
    assert report.metrics == {"loss": 5.0, "lr": 0.5, "grad_norm": 0.0}


def test_parameters_that_are_not_finite_are_neither_published_nor_saved():
    fake, trainer = make()
    trainer.train(BatchTrainingData(0, 2, 3, 99), columns(False))
    fake.params.flat.copy_(torch.tensor([1.0, -torch.inf]))
    with pytest.raises(Diverged, match=r"^training diverged at update 2: a parameter of the policy is infinite$"):
        trainer.publish(1, 10)
    fake.params.flat[1] = torch.nan
    with pytest.raises(Diverged, match=r"^training diverged at update 2: algorithm\.params is NaN$"):
        trainer.state()


def test_the_first_trainers_state_is_for_all():
    fakes, trainers = zip(*(make() for _ in range(3)), strict=True)
    fakes[0].params.flat[1] = 1.0
    group = TrainerGroup([LocalHandle(trainer) for trainer in trainers])
    trainers[0].opt_steps = 7
    for ref in group.load_state(group.state()):
        get(ref)
    assert [fake.params.flat.tolist() for fake in fakes] == [[0.0, 1.0]] * 3
    assert [trainer.opt_steps for trainer in trainers] == [7] * 3


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_of_several_trainers_the_one_whose_data_was_at_fault_says_so(order):
    errors = [Diverged("the batch was finite"), Diverged("reward from worker 2", {"reward": np.ones(1)}, True)]
    reports = [LocalRef(error=errors[i]) for i in order]
    group = TrainerGroup([None, None])
    assert group.at_fault(reports, reports[0].error) is errors[1]
    assert group.at_fault([reports[0], LocalRef(1)], reports[0].error) is reports[0].error


def test_who_made_a_row_is_not_for_the_algorithm():
    fake, trainer = make()
    trainer.train(BatchTrainingData(0, 2, 3, 99), columns(False) | {"source": np.zeros((2, 3), np.int32)})
    assert [set(batch) for batch in fake.batches] == [{"reward"}] * 2


def columns(weighted):
    plain = {"reward": np.arange(6, dtype=np.float32).reshape(2, 3)}
    return plain | {"weight": np.full((2, 3), 0.5, np.float32)} if weighted else plain


def test_priorities_come_with_the_numbers_of_their_rows():
    fake, trainer = make()
    row_ids = np.array([[5, 6, 7], [9, 9, 2**40]])
    report, update = trainer.train(BatchTrainingData(3, 2, 3, 99, row_ids), columns(True))
    assert (report.opt_steps, report.num_updates, report.metrics) == (2, 2, {"loss": 2.5, "lr": 0.5, "grad_norm": 0.0})
    assert update.trainer == 3
    assert update.row_ids.tolist() == row_ids.tolist()
    assert update.priorities.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert all(torch.equal(batch["weight"], torch.full((3,), 0.5)) for batch in fake.batches)


@pytest.mark.parametrize("has_priorities", [False, True])
def test_uniform_replay_gets_no_priorities(has_priorities):
    fake, trainer = make(has_priorities=has_priorities)
    _, update = trainer.train(BatchTrainingData(0, 2, 3, 99), columns(False))
    assert update is None
    assert all("weight" not in batch for batch in fake.batches)


def test_prioritized_replay_needs_an_algorithm_with_priorities():
    _, trainer = make(has_priorities=False)
    with pytest.raises(ValueError, match="replay=uniform"):
        trainer.train(BatchTrainingData(0, 2, 3, 99, np.zeros((2, 3), np.int64)), columns(True))


@pytest.mark.parametrize(
    ("overrides", "may"),
    [
        (["mode=async"], True),
        (["mode=sync"], False),
        (["mode=single"], False),
        (["mode=async", "trainer.num=2"], False),
        (["mode=async", "trainer.compile=true"], False),
        (["mode=async", "debug.in_process=true"], False),
    ],
)
def test_products_are_measured_only_where_equal_seeds_need_not_give_equal_weights(overrides, may):
    assert make_config(*overrides).measures_products is may


@pytest.mark.parametrize(("mode", "library"), [("async", "measured"), ("sync", "onednn")])
def test_a_run_knows_what_its_trainer_learned_on(run_graph, monkeypatch, mode, library):
    """On a Zen 5, or so it seems: what was measured comes from the shapes of the run itself."""
    monkeypatch.setattr(products, "_processor", lambda: "vendor_id : AuthenticAMD\ncpu family : 26\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    args = ("env=Pendulum-v1", f"mode={mode}", "network.hidden=[64,64]", "trainer.batch_size=16")
    graph = run_graph(*args, "debug.in_process=false")
    facts = graph.trainer_facts
    assert (facts["device"], facts["threads"], facts["products"]["library"]) == ("cpu", 1, library)
    if mode == "async":
        assert {"weight_gradient 16x64x64", "input_gradient 16x64x64"} <= set(facts["products"]["microseconds"])


def raising(monkeypatch, error, module):
    """A trainer whose algorithm, of this module, raises."""
    fake, trainer = make()

    def update(batch, counts):
        raise error

    monkeypatch.setattr(fake, "update", update)
    monkeypatch.setattr(Fake, "__module__", module)
    return trainer


@pytest.mark.parametrize("module", ["drl_cli.algos.sac", "their.algo"])
@pytest.mark.parametrize("error", [Refused("no, thanks"), PeerLost("gone"), MemoryError("full"), KeyError("x")])
def test_what_an_update_raises_says_whose_fault_it_is(monkeypatch, error, module):
    """Refused is for the user; what a user's algorithm raises is theirs; the rest goes on as it is."""
    is_theirs = module == "their.algo" and isinstance(error, KeyError)
    expected = AlgorithmRefused if isinstance(error, Refused) else AlgorithmFailed if is_theirs else type(error)
    with pytest.raises(expected) as caught:
        raising(monkeypatch, error, module).train(BatchTrainingData(0, 2, 3, 99), columns(False))
    if expected is AlgorithmRefused:
        assert str(caught.value) == "algo: no, thanks"
    elif expected is AlgorithmFailed:
        assert str(caught.value) == "algo=their.algo: update raised KeyError: 'x'"
    else:
        assert caught.value is error

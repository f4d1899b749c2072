"""NetworkAlgorithm: random streams, compilation, dropout masks, and the rows to learn from."""

import dataclasses
from itertools import combinations

import pytest
import torch
from learners import CASES, CPU, LOOKS, VECTOR, Learner

from drl_cli.algos.base import Counts
from drl_cli.optim.group import Context, ProcessGroup
from drl_cli.optim.optimizer import NotFinite
from drl_cli.optim.params import Params

ALL = pytest.mark.parametrize(("name", "kind"), CASES, ids=["-".join(case) for case in CASES])
ON_POLICY = ("impala", "ppo", "pqn", "vmpo")
STREAMS = {
    "sac": {"noise": 11, "dropout": 12},
    "c51": {"dropout": 12},
    "dqn": {"dropout": 12},
    "iqn": {"dropout": 12, "fractions": 13},
    "qr_dqn": {"dropout": 12},
    "sac_discrete": {"dropout": 12},
    "impala": {"shuffle": 11, "dropout": 12},
    "ppo": {"shuffle": 11, "dropout": 12},
    "pqn": {"shuffle": 11, "dropout": 12},
    "vmpo": {"shuffle": 11, "dropout": 12},
}


def make(name, kind, dropout=0.0, context=CPU, seed=10, **options):
    learner = Learner(name, kind, VECTOR, **options)
    learner.network = dataclasses.replace(learner.network, dropout=dropout)
    learner.context = context
    return learner.algorithm(seed), learner


@ALL
def test_each_random_stream_has_its_own_seed(name, kind):
    """The seeds must not change between versions, so that equal seeds keep giving equal runs."""
    algorithm, _ = make(name, kind, dropout=0.5)
    streams = algorithm.params.generators
    assert {stream: generator.initial_seed() for stream, generator in streams.items()} == STREAMS[name]
    assert algorithm.init.initial_seed() == 10
    plain, _ = make(name, kind)
    assert plain.params.generators.keys() == STREAMS[name].keys() - {"dropout"}


def test_shuffling_uses_the_cpu_and_noise_the_device(monkeypatch):
    made, generator = [], Params.generator

    def note(self, name, seed, on_cpu=False):
        made.append((name, on_cpu))
        return generator(self, name, seed, on_cpu)

    monkeypatch.setattr(Params, "generator", note)
    for name, kind in (("ppo", "box"), ("sac", "box")):
        make(name, kind, dropout=0.5)
    assert sorted(made) == [("dropout", False), ("noise", False), ("shuffle", True)]


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] not in ON_POLICY])
def test_gradients_are_compiled_only_without_modules(name, kind):
    compiled = []

    @dataclasses.dataclass(frozen=True)
    class Compiling(Context):
        def compiled(self, function):
            compiled.append(function.__name__)
            return function

    context = Compiling(torch.device("cpu"))
    make(name, kind, context=context)
    assert compiled == ["gradients"]
    learner = Learner(name, kind, *LOOKS["image"])
    learner.context = context
    learner.algorithm()
    assert compiled == ["gradients"]


@pytest.mark.parametrize(("name", "kind", "times"), [("dqn", "discrete", 1)])
def test_dropout_masks_cover_all_rows_of_a_head(name, kind, times):
    algorithm, learner = make(name, kind, dropout=0.25)
    head = algorithm.critic if name == "sac" else algorithm.online.mlp
    view, rows = algorithm.see(learner.batch(algorithm), head, times)
    assert [tuple(mask.shape) for mask in rows["drop"]] == [(head.ensemble, times * 8, width) for width in (16, 12)]
    assert {round(value, 6) for mask in rows["drop"] for value in mask.unique().tolist()} == {0.0, round(4 / 3, 6)}
    assert rows["obs"] is view.obs
    assert "drop" not in algorithm.see(learner.batch(algorithm))[1]
    plain, _ = make(name, kind)
    head = plain.critic if name == "sac" else plain.online.mlp
    assert plain.see(learner.batch(plain), head)[1]["drop"] == ()


def test_updates_are_made_without_autograd():
    algorithm, learner = make("dqn", "discrete")
    seen, update = [], algorithm.update
    algorithm.update = lambda *args: (seen.append(torch.is_grad_enabled()), update(*args))[1]
    given = algorithm.learn(learner.batch(algorithm), Counts())
    assert seen == [False]
    assert given.steps == 1
    assert torch.is_grad_enabled()


class Halves(ProcessGroup):
    """One of two trainers; the other trainer has zeros, so the mean is half of the value."""

    def mean_(self, tensor):
        tensor.div_(2)


@pytest.mark.parametrize(("group", "share"), [(ProcessGroup(), 1.0), (Halves(0, 2), 2.0)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_only_valid_steps_of_sequences_count(group, share, is_weighted):
    learner = Learner("dqn", "discrete", *LOOKS["memory"])
    learner.context = dataclasses.replace(learner.context, group=group)
    algorithm = learner.algorithm()
    batch = learner.batch(algorithm)
    if is_weighted:
        batch["weight"] = torch.linspace(0.5, 1.0, 8)
    real = batch["valid"][:, 2:].float().flatten()
    weight = real * batch["weight"].repeat_interleave(4) if is_weighted else real
    rows = algorithm.steps(batch)
    torch.testing.assert_close(rows["valid_weight"], share * real / real.mean())
    torch.testing.assert_close(rows["weight"], share * weight / real.mean())
    assert torch.equal(rows["reward"], batch["reward"][:, 2:].flatten())
    values = torch.arange(32.0)
    assert torch.equal(algorithm.by_step(values, batch), values.view(8, 4))
    plain, other = make("dqn", "discrete")
    batch = other.batch(plain)
    assert plain.by_step(values, batch) is values
    assert plain.steps(batch) == batch
    assert plain.steps(batch) is not batch


def test_a_step_uses_all_gradients_unless_a_loss_is_not_finite():
    learner = Learner("dqn", "discrete", *LOOKS["image"])
    learner.context = dataclasses.replace(learner.context, skips=True)
    algorithm = learner.algorithm()
    batch, before = learner.batch(algorithm), algorithm.params.flat.clone()
    view, rows = algorithm.see(batch)
    algorithm.params.grad.zero_()
    with pytest.raises(NotFinite):
        algorithm.step(view, torch.ones_like(rows["obs"]), torch.tensor(1.0), torch.tensor(float("nan")))
    assert torch.equal(algorithm.params.flat, before)
    view, rows = algorithm.see(batch)
    algorithm.step(view, torch.ones_like(rows["obs"]), torch.tensor(1.0))
    assert not torch.equal(algorithm.params["torso"].flat, before[algorithm.params.slices["torso"]])
    algorithm.params.grad.fill_(1.0)
    moved = algorithm.params["online"].flat.clone()
    algorithm.step(None, None, torch.tensor(1.0))
    assert not torch.equal(algorithm.params["online"].flat, moved)


def test_a_target_is_a_copy_with_its_own_encoder():
    algorithm = Learner("dqn", "discrete", *LOOKS["image"]).algorithm()
    assert algorithm.target_encoder is not algorithm.encoder
    assert torch.equal(algorithm.target.mlp.flat, algorithm.online.mlp.flat)
    pointers = [mlp.flat.data_ptr() for mlp in (algorithm.online.mlp, algorithm.target.mlp)]
    pointers += [next(e.torso.parameters()).data_ptr() for e in (algorithm.encoder, algorithm.target_encoder)]
    assert all(a != b for a, b in combinations(pointers, 2))
    plain, learner = make("dqn", "discrete")
    batch = learner.batch(plain)
    view, _ = plain.see(batch)
    assert plain.see_target(batch, view) is view

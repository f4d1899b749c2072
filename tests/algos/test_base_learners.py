import dataclasses

import pytest
import torch
from learners import CPU, LOOKS, VECTOR, Learner
from nets import layers

from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import load_algorithm
from drl_cli.optim.params import Params


def make(name, kind, dropout=0.0, context=CPU, seed=10, **options):
    learner = Learner(name, kind, VECTOR, **options)
    learner.network = dataclasses.replace(learner.network, dropout=dropout)
    learner.context = context
    return learner.algorithm(seed), learner


@pytest.mark.parametrize("name", ["c51", "dqn", "iqn", "qr_dqn", "impala", "ppo", "pqn", "reppo", "vmpo"])
def test_each_random_stream_has_its_own_seed(name):
    """The seeds must not change between versions, so that equal seeds keep giving equal runs."""
    kind = load_algorithm(name).ACTIONS[0]
    algorithm, plain = (make(name, kind, dropout)[0] for dropout in (0.5, 0.0))
    streams = algorithm.params.generators
    known = {"shuffle": 12 if name == "reppo" else 11, "noise": 11, "dropout": 12, "fractions": 13}
    assert {stream: generator.initial_seed() for stream, generator in streams.items()} == {
        stream: known[stream] for stream in streams
    }
    assert plain.params.generators.keys() == streams.keys() - {"dropout"}


def test_shuffling_uses_the_cpu_and_noise_the_device(monkeypatch):
    made, generator = [], Params.generator

    def note(self, name, seed, on_cpu=False):
        made.append((name, on_cpu))
        return generator(self, name, seed, on_cpu)

    monkeypatch.setattr(Params, "generator", note)
    for name, kind in (("ppo", "box"), ("sac", "box")):
        make(name, kind, dropout=0.5)
    assert sorted(made) == [("dropout", False), ("noise", False), ("shuffle", True)]


def test_a_loss_is_compiled_unless_the_encoder_has_a_memory():
    for obs, memory, is_compiled in ((VECTOR, "none", True), (*LOOKS["image"], True), (VECTOR, "lstm", False)):
        learner = Learner("dqn", "discrete", obs, memory)
        learner.context = dataclasses.replace(learner.context, compiles=True)
        assert learner.algorithm().context.compiles == is_compiled


@pytest.mark.parametrize(("name", "times"), [("dqn", 1), ("c51", 1), ("qr_dqn", 1), ("cql_discrete", 1), ("iqn", 8)])
def test_dropout_masks_cover_all_rows_of_a_head_and_reach_it(name, times):
    algorithm, learner = make(name, "discrete", dropout=0.25)
    seen, masks = [], algorithm.masks
    algorithm.masks = lambda *args: [torch.zeros_like(mask) for mask in seen.extend(masks(*args)) or seen]
    algorithm.learn(learner.batch(algorithm), Counts())
    widths = algorithm.network.hidden[-1:] if name == "iqn" else algorithm.network.hidden
    assert [tuple(mask.shape) for mask in seen] == [(1, times * 8, width) for width in widths]
    assert {round(value, 6) for mask in seen for value in mask.unique().tolist()} == {0.0, round(4 / 3, 6)}
    *hidden, bias = layers(algorithm.nets.online, algorithm.params["online"].grad)
    assert bias.any()
    assert not any(layer.any() for layer in hidden)
    assert make(name, "discrete")[0].masks("online", 8) == ()


def test_a_target_is_a_copy_with_its_own_encoder():
    live = Learner("dqn", "discrete", *LOOKS["image"]).algorithm().nets
    for name in ("online", "torso"):
        own, theirs = ([*getattr(one, name).parameters()] for one in (live, live.target))
        assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(own, theirs, strict=True))

"""Padding, importance weights and dropout in every loss of the actor-critic algorithms that learn from replay."""

import dataclasses

import pytest
import torch
from learners import CASES, LENGTH, VECTOR, Learner, mapped, networks

from drl_cli.algos.base import Counts
from drl_cli.api import Context

OFFLINE = ("awac", "cal_ql", "cql", "fql", "iql", "rebrac", "td3_bc")
NAMES = ("d4pg", "ddpg", "mpo", "redq", "sac", "sac_discrete", "td3", "tqc", *OFFLINE)
SOFT = ("redq", "sac", "sac_discrete", "tqc")
KINDS = [case for case in CASES if case[0] in NAMES]
ALL = pytest.mark.parametrize(("name", "kind"), KINDS, ids=["-".join(case) for case in KINDS])


def make(name, kind, memory="none", dropout=0.0, **options):
    learner = Learner(name, kind, VECTOR, memory, **options)
    learner.network = dataclasses.replace(learner.network, dropout=dropout)
    algorithm = learner.algorithm()
    for target in algorithm.params.targets.values():
        noise = torch.randn(target.flat.shape, generator=torch.Generator().manual_seed(7))
        target.flat.add_(0.1 * noise)
    return algorithm, learner


def gradients(algorithm, batch):
    update = algorithm.learn(batch, Counts())
    return {name: algorithm.params[name].grad.clone() for name in algorithm.params.slices}, update


def assert_equal(one, two):
    for name, grad in one.items():
        torch.testing.assert_close(grad, two[name], rtol=1e-3, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


@ALL
@pytest.mark.parametrize("is_weighted", [False, True])
def test_sequences_with_padding_equal_the_rows_that_are_valid(name, kind, is_weighted, monkeypatch):
    """Without a memory, each valid step counts as much as a transition."""
    monkeypatch.setattr(Context, "randn", lambda self, rows, size, generator: torch.full((rows, size), 0.3))
    monkeypatch.setattr(Context, "rand", lambda self, rows, size, generator: torch.full((rows, size), 0.3))
    monkeypatch.setattr("torch.rand", lambda *size, generator=None, device=None: torch.linspace(0, 1, *size))  # redq
    algorithm, learner = make(name, kind, n_step=1)
    rows, valid = learner.batch(algorithm, size=4 * LENGTH), torch.ones(4, LENGTH, dtype=torch.bool)
    valid[0, :2], valid[3, 4:] = False, False
    sequences = mapped(rows, lambda x: x.unflatten(0, (4, LENGTH))) | {"valid": valid}
    rows = mapped(rows, lambda x: x[valid.flatten()])
    if is_weighted:
        sequences["weight"] = torch.linspace(0.2, 1.0, 4)
        rows["weight"] = sequences["weight"].repeat_interleave(LENGTH)[valid.flatten()]
    expected, plain = gradients(algorithm, rows)
    found, update = gradients(make(name, kind, n_step=1)[0], sequences)
    assert_equal(found, expected)
    torch.testing.assert_close(dict(update.metrics), dict(plain.metrics), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(update.priorities[valid], plain.priorities, rtol=1e-4, atol=1e-5)


@ALL
@pytest.mark.parametrize("which", ["masks", "target_masks"])
def test_dropout_masks_reach_critics_and_target_critics(name, kind, which, monkeypatch):
    """Masks of zeros leave only the last biases; those of the target critics are 0 here. All rows have one obs."""
    algorithm, learner = make(name, kind, dropout=0.5, **({"initial_alpha": 1e-9} if name in SOFT else {}))
    drawn, other = (algorithm.masks("critic", 8) for _ in range(2))
    assert not torch.equal(drawn[0], other[0])
    assert drawn[0].unique().tolist() == [0.0, 2.0]
    zeros, names = [torch.zeros_like(mask) for mask in drawn], iter(["masks", "target_masks"])
    monkeypatch.setattr(algorithm, "masks", lambda *args: zeros if next(names, "") == which else ())
    critic, target = algorithm.params.modules["critic"], algorithm.params.targets["critic"].module
    for network in networks(target):
        network[-1].zero_()
    batch = learner.batch(algorithm)
    batch["obs"], batch["action"] = torch.zeros_like(batch["obs"]), torch.zeros_like(batch["action"])
    batch["reward"][:], batch["discount"][:] = 0.5, 0.9
    grads, update = gradients(algorithm, batch)
    layers = [layer for network in critic.on(grads["critic"]).networks for layer in network[:-1]]
    spread = float(update.priorities.max() - update.priorities.min())  # the targets differ by next_obs
    assert any(layer.any() for layer in layers) == (which == "target_masks")
    if name != "iql":  # its targets have a value without dropout
        assert spread > 1e-4 if which == "masks" else spread < 1e-6
    if name not in (*SOFT, *OFFLINE, "mpo"):  # these actors learn from nothing but the critics
        assert grads["actor"].any() == (which == "target_masks")

"""A model that is replayed or compiled gives the trees of the model itself."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from interpreted import without_compiler
from torch import Tensor

from drl_cli.chains.chain import Chain
from drl_cli.chains.replays import Replays
from drl_cli.chains.when import When
from drl_cli.search import run
from drl_cli.search.repeated import Repeated


class Net:
    """Linear dynamics; the embedding is one tensor or two."""

    def __init__(self, is_tuple: bool) -> None:
        random = torch.Generator().manual_seed(0)
        self.weights = [torch.randn(8, size, generator=random) / 3 for size in (8, 3, 1, 1)]
        self.actions, self.discount = torch.randn(3, 8, generator=random), torch.full((5,), 0.9)
        self.is_tuple, self.calls = is_tuple, 0

    def root(self, obs: Tensor) -> tuple[object, ...]:
        _, _, logits, value, embedding = self.recurrent(
            (obs, obs) if self.is_tuple else obs, torch.zeros(len(obs)).long()
        )
        self.calls = 0
        return embedding, logits, value

    def recurrent(self, embedding: Tensor | tuple[Tensor, ...], action: Tensor) -> tuple[object, ...]:
        self.calls += 1
        x = embedding[0] if isinstance(embedding, tuple) else embedding
        dynamics, policy, value, reward = self.weights
        x = (x @ dynamics + self.actions.index_select(0, action)).tanh()
        following = (x, x + 1) if self.is_tuple else x
        return (x @ reward).flatten(), self.discount[: len(x)], x @ policy, (x @ value).flatten(), following


@pytest.mark.parametrize("is_tuple", [False, True])
def test_a_replayed_model_gives_equal_trees(is_tuple: bool) -> None:
    check(is_tuple, lambda call: Replays(call, None))


@pytest.mark.parametrize("is_tuple", [False, True])
def test_a_compiled_model_gives_equal_trees(is_tuple: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    check(is_tuple, lambda call: Chain(call, None, When("before")))


def check(is_tuple: bool, repeat: Callable[..., Callable[..., object]]) -> None:
    model, obs = Net(is_tuple), torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    repeated, noise = Repeated(model, repeat), np.random.default_rng(2).gumbel(size=(5, 3))
    for step in range(2):
        plain = run.gumbel(model, obs, 12, noise)
        model.calls = 0
        found = run.gumbel(repeated, obs, 12, noise)
        assert found.visits.tolist() == plain.visits.tolist()
        np.testing.assert_allclose(found.value, plain.value, rtol=1e-5)
        assert model.calls == (2 if step == 0 else 0)  # the other calls were not Python
        model.weights[0] *= 0.5  # training changes the weights in place
        small = run.gumbel(repeated, obs[:2], 12, noise[:2])  # another batch size
        assert small.visits.tolist() == run.gumbel(model, obs[:2], 12, noise[:2]).visits.tolist()

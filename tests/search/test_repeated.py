"""A model that is replayed or compiled gives the trees of the model itself."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from interpreted import without_compiler
from torch import Tensor

from drl_cli.chains.chain import Bound, Chain
from drl_cli.chains.program import InPlace
from drl_cli.chains.replays import Replays
from drl_cli.chains.variants import builder, tensors_of
from drl_cli.chains.when import When
from drl_cli.search import compiled, run
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


class Native(Chain):
    """Stands for a chain with a program: a function of pointers, which calls the model."""

    def __init__(self, update: Callable[..., object], error: bytes | None = None) -> None:
        self.update, self.error, self.calls = update, error, 0

    def __call__(self, columns: dict[str, Tensor]) -> object:
        return self.update(columns, ())

    def bound(self, columns: dict[str, Tensor]) -> Bound:
        result, tensors = self.update(columns, ()), [*columns.values()]
        build = builder(result)
        sizes = [(x.shape, x.dtype) for x in tensors_of(result)]

        def native(num: int, inputs: Any, steps: Any, outputs: Any, output_steps: Any) -> int | None:
            self.calls += 1
            if self.error is not None and self.calls > 2:
                return ctypes.cast(self.error, ctypes.c_void_p).value
            given = {name: view(inputs[i], *like(x)) for i, (name, x) in enumerate(columns.items())}
            for i, x in enumerate(tensors_of(self.update(given, ()))):
                view(outputs[i], *like(x)).copy_(x)
            return None

        pointers = [ctypes.POINTER(ctypes.c_int64)] * 4
        call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, *pointers)(native)
        return Bound(InPlace(call, [], len(tensors), sizes), lambda outputs: build(iter(outputs)))


def like(x: Tensor) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


def view(address: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    size = shape.numel() * dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).view(shape)


@pytest.mark.skipif(compiled.load() is None, reason="no C++ compiler")
@pytest.mark.parametrize("simulations", [1, 2, 3, 12])
@pytest.mark.parametrize("is_tuple", [False, True])
@pytest.mark.parametrize("is_double", [False, True])
def test_the_kernel_calls_a_compiled_model_itself(
    simulations: int, is_tuple: bool, is_double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes all simulations after the first one, if the program writes float32. Trees and results are equal."""
    model, obs = Net(is_tuple), torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    if is_double:
        recurrent = model.recurrent

        def in_double(*args: Any) -> tuple[object, ...]:
            reward, discount, logits, value, embedding = recurrent(*args)
            return reward, discount, logits, value.double(), embedding

        monkeypatch.setattr(model, "recurrent", in_double)
    natives, loops = list[Native](), list[bool]()
    simulate = compiled.Compiled.simulate

    def noted(*args: Any) -> bool:
        loops.append(simulate(*args))
        return loops[-1]

    monkeypatch.setattr(compiled.Compiled, "simulate", noted)
    repeated = Repeated(model, lambda call: natives.append(Native(call)) or natives[-1])
    noise = np.random.default_rng(2).gumbel(size=(5, 3))
    for search in (
        lambda model: run.gumbel(model, obs, simulations, noise),
        lambda model: run.puct(model, obs, simulations),
    ):
        plain, found = search(model), search(repeated)
        assert np.array_equal(found.trees.buffer, plain.trees.buffer)
        assert np.array_equal(found.policy, plain.policy)
    assert loops == [not is_double] * 2
    assert natives[0].calls == 2 * simulations


@pytest.mark.skipif(compiled.load() is None, reason="no C++ compiler")
def test_what_goes_wrong_in_a_compiled_model_is_raised() -> None:
    model, obs = Net(False), torch.zeros(5, 8)
    with pytest.raises(RuntimeError, match="no memory"):
        run.puct(Repeated(model, lambda call: Native(call, b"no memory")), obs, 12)

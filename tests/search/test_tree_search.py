import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreted import without_compiler
from torch import Tensor
from tree_reference import Tables

from drl_cli.chains.chain import Bound, Chain
from drl_cli.chains.program import InPlace
from drl_cli.chains.replays import Replays
from drl_cli.chains.variants import builder, tensors_of
from drl_cli.chains.when import When
from drl_cli.search import compiled, run
from drl_cli.search.formulas import Gumbel, Puct
from drl_cli.search.model import Repeated
from drl_cli.search.run import Found
from drl_cli.search.trees import Plain


class Corridor:
    """States 0 to 6 with the goal at 6; the model is perfect, but its prior is wrong and its values are 0.

    Action 0 goes left. Action 1 goes right, which is best: the goal gives 10 and ends the episode. The prior prefers
    going left, 9 to 1.
    """

    gamma = 0.9

    def root(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return obs, self.logits(obs), torch.zeros(len(obs))

    def logits(self, state: Tensor) -> Tensor:
        return torch.tensor([0.9, 0.1]).log().expand(len(state), 2)

    def recurrent(self, embedding: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        following = (embedding + 2 * action - 1).clamp(0, 6)
        is_end = following == 6
        reward = torch.where(is_end, 10.0, 0.0)
        return reward, torch.where(is_end, 0.0, self.gamma), self.logits(following), torch.zeros(len(action)), following


START = torch.tensor([3, 4, 5])


def test_puct_finds_the_optimum_in_spite_of_a_wrong_prior() -> None:
    found = run.puct(Corridor(), START[1:], 600)
    assert found.action.tolist() == [1, 1]
    assert (found.policy[:, 1] > 0.8).all()
    np.testing.assert_allclose(found.q[1, 1], 10.0)  # the episode ends, so nothing follows
    np.testing.assert_allclose(found.q[:, 1], [9.0, 10.0], rtol=0.1)


def test_gumbel_finds_the_optimum_in_spite_of_a_wrong_prior() -> None:
    found = run.gumbel(Corridor(), START, 300, np.zeros((3, 2)), Gumbel(value_scale=1.0))
    assert found.action.tolist() == [1, 1, 1]
    assert (found.policy[:, 1] > 0.99).all()


@pytest.mark.parametrize("simulations", [2, 4, 8])
def test_gumbel_improves_the_policy_with_few_simulations(simulations: int) -> None:
    found = run.gumbel(Corridor(), torch.tensor([5]), simulations, np.zeros((1, 2)))
    assert found.action.tolist() == [1]
    assert found.policy[0, 1] > 0.8


def test_equal_scores_select_the_first_action() -> None:
    model = Tables(0)
    for table in (model.rewards, model.discounts, model.logits, model.values):
        table.zero_()
    found = run.puct(model, torch.tensor([0]), 5)
    assert (found.trees.action[0, 1:].tolist()[:4], found.action.tolist()) == ([0, 1, 2, 3], [0])
    assert run.gumbel(model, torch.tensor([0]), 2, np.zeros((1, 4))).trees.action[0, 1:].tolist() == [0, 1]


def test_noise_replaces_a_share_of_the_prior_of_legal_actions() -> None:
    noise, legal = np.array([[0.1, 0.2, 0.3, 0.4]]), np.array([[True, False, True, True]])
    found = run.puct(Tables(1), torch.tensor([2]), 0, Puct(noise_share=0.4), noise, legal)
    prior = torch.where(torch.from_numpy(legal), Tables(1).logits[2], -torch.inf).softmax(-1).double().numpy()
    expected = 0.6 * prior + 0.4 * noise * legal / 0.8
    np.testing.assert_allclose(found.policy, expected, atol=1e-6)


def test_without_simulations_the_prior_is_the_policy() -> None:
    model, obs = Tables(2), torch.tensor([0, 3])
    prior = model.logits[obs].softmax(-1).numpy()
    plain, gumbel = run.puct(model, obs, 0), run.gumbel(model, obs, 0, np.zeros((2, 4)))
    for found in (plain, gumbel):
        np.testing.assert_allclose(found.policy, prior, rtol=1e-5)
        assert found.action.tolist() == prior.argmax(-1).tolist()
        np.testing.assert_allclose(found.value, model.values[obs].numpy())
    noise = np.array([[0.0, 0.0, 0.0, 50.0]] * 2)
    assert run.gumbel(model, obs, 0, noise).action.tolist() == [3, 3]


def test_a_root_without_a_legal_action_is_refused() -> None:
    legal = np.array([[True, False, False, False], [False] * 4])
    with pytest.raises(ValueError, match="root 1 of the search has no legal action"):
        run.puct(Tables(0), torch.tensor([0, 0]), 2, legal=legal)


class Wrong(Tables):
    def recurrent(self, embedding: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        reward, *others = super().recurrent(embedding, action)
        return reward[:, None], *others


def test_an_output_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the model's reward has the shape \[2, 1\], but the search needs \[2\]"):
        run.puct(Wrong(0), torch.tensor([0, 1]), 2)


class Typed(Tables):
    """Returns float64, half of it as views with other strides, and a tuple of embeddings."""

    def root(self, obs: Tensor) -> tuple[object, ...]:
        embedding, logits, value = super().root(obs)
        return (torch.tensor([[0, 1, 2], [10, 11, 12]]).expand(len(obs), 2, 3), embedding), logits.double(), value

    def recurrent(self, embedding: tuple[Tensor, Tensor], action: Tensor) -> tuple[object, ...]:
        depth, state = embedding
        assert not torch.is_grad_enabled()
        assert (depth == depth[:, :1, :1] + torch.tensor([[0, 1, 2], [10, 11, 12]])).all()
        reward, discount, logits, value, following = super().recurrent(state, action)
        spread = torch.stack([logits, 0 * logits], -1)[..., 0]
        return reward.double(), discount, spread, value, ((depth + 1).mT.contiguous().mT, following)


def test_any_float_type_any_strides_and_tuples_of_embeddings() -> None:
    obs = torch.tensor([0, 5, 3])
    one, two = run.puct(Tables(4), obs, 20), run.puct(Typed(4), obs, 20)
    assert one.visits.tolist() == two.visits.tolist()
    assert one.value.tolist() == two.value.tolist()
    assert two.root[1].tolist() == obs.tolist()


def test_a_tree_does_not_depend_on_the_others_of_its_batch() -> None:
    obs, noise = torch.tensor([0, 5, 3]), np.random.default_rng(0).gumbel(size=(3, 4))
    together = run.gumbel(Tables(5), obs, 20, noise)
    for b in range(3):
        alone = run.gumbel(Tables(5), obs[b : b + 1], 20, noise[b : b + 1])
        assert alone.policy[0].tolist() == together.policy[b].tolist()
        assert alone.trees.q[0].tolist() == together.trees.q[b].tolist()


def test_visits_are_sampled_with_a_temperature() -> None:
    policy, uniform = np.array([[0.5, 0.3, 0.0, 0.2]]), (np.arange(1000) + 0.5) / 1000
    for temperature in (1.0, 0.5, 2.0):
        actions = [int(run.sample_visits(policy, temperature, np.array([x]))[0]) for x in uniform]
        weights = policy[0] ** (1 / temperature) * (policy[0] > 0)
        shares = np.bincount(actions, minlength=4) / 1000
        np.testing.assert_allclose(shares, weights / weights.sum(), atol=2e-3)
    assert run.sample_visits(policy, 0.0, np.array([0.99])).tolist() == [0]
    assert run.sample_visits(np.array([[0.0, 1.0, 0.0]]), 1.0, np.array([1 - 2**-53])).tolist() == [1]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """No library is compiled or loaded yet."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled.load.cache_clear()
    yield
    compiled.load.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_the_search_runs_in_numpy_and_a_warning_tells(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found: Found = run.puct(Tables(0), torch.tensor([1]), 10)
    assert isinstance(compiled.make_steps(found.trees, found.root)[0], Plain)
    assert "search runs in numpy" in caplog.text
    assert "no-such-compiler" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("fresh")
def test_an_error_of_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiled, "FLAGS", ("--no-such-flag",))
    assert compiled.load() is None
    assert "no-such-flag" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(compiled.load() is None, reason="no C++ compiler")
@pytest.mark.usefixtures("fresh")
def test_the_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.load() is not None
    compiled.load.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiled.load() is not None


@pytest.mark.usefixtures("fresh")
def test_a_library_that_another_user_may_have_written_is_not_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    assert compiled.load() is None
    assert f"other users can change the folder {tmp_path}" in caplog.text


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

"""The trees of a search equal those of a slow reference, one tree at a time, and those of the other implementation."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tree_reference import GumbelSearch, Node, PuctSearch, SampledSearch, Search, Tables, softmax

from drl_cli.search import compiled, run
from drl_cli.search.formulas import Gumbel
from drl_cli.search.model import Sampled
from drl_cli.search.run import Found
from drl_cli.search.trees import LAYOUT, Trees


@pytest.fixture(params=["compiled", "plain"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(compiled, "load", lambda: None)
    elif compiled.load() is None:
        pytest.skip("no C++ compiler")


def masks(num: int, actions: int) -> np.ndarray:
    legal = np.random.default_rng(5).uniform(size=(num, actions)) < 0.7
    legal[:, -1] |= ~legal.any(-1)
    return legal


def masked(model: Tables, legal: np.ndarray) -> Callable[[int, int], list[float]]:
    """The prior of a node: only the root has illegal actions."""

    def prior(state: int, node: int) -> list[float]:
        logits = model.logits[state].tolist()
        allowed = legal if node == 0 else np.ones(len(logits), bool)
        return softmax([x if ok else -np.inf for x, ok in zip(logits, allowed, strict=True)])

    return prior


def assert_equal(trees: Trees, b: int, search: Search) -> None:
    """Compare tree b with the reference: nodes, visits, Q, values, priors."""

    def compare(node: Node) -> None:
        i, actions = node.number, range(len(node.prior))
        assert trees.visits[b, i].tolist() == [node.visits(action) for action in actions]
        assert trees.node_visits[b, i] == node.count == 1 + trees.visits[b, i].sum()
        np.testing.assert_allclose(trees.prior[b, i], node.prior, atol=2e-7, rtol=0)
        np.testing.assert_allclose(trees.total[b, i] / node.count, node.total / node.count, rtol=1e-12)
        for action in actions:
            assert (trees.child[b, i, action] > 0) == (action in node.children)
        for action, child in node.children.items():
            np.testing.assert_allclose(trees.q[b, i, action], node.q(action), rtol=1e-12)
            assert trees.child[b, i, action] == child.number
            assert (trees.parent[b, child.number], trees.action[b, child.number]) == (i, action)
            compare(child)

    compare(search.root)


def starts(num: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(num).integers(7, size=num))


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize(("num", "seed"), [(1, 0), (64, 1)])
def test_puct_equals_the_reference(num: int, seed: int, with_mask: bool) -> None:
    model, obs = Tables(seed), starts(num)
    legal = masks(num, 4) if with_mask else np.ones((num, 4), bool)
    noise = np.random.default_rng(2).dirichlet([0.3] * 4, num)
    found = run.puct(model, obs, 30, noise=noise, legal=legal if with_mask else None)
    for b in range(num):
        search = PuctSearch(model, int(obs[b]), masked(model, legal[b]))
        allowed = noise[b] * legal[b]
        root = search.root
        root.prior = [0.75 * p + 0.25 * n for p, n in zip(root.prior, allowed / allowed.sum(), strict=True)]
        search.run(30)
        assert_equal(found.trees, b, search)
        visits = [search.root.visits(action) for action in range(4)]
        assert found.action[b] == visits.index(max(visits))
        assert found.policy[b].tolist() == [x / 30 for x in visits]
        np.testing.assert_allclose(found.value[b], search.root.total / 31, rtol=1e-12)
    assert found.visits[~legal].sum() == 0


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize(
    ("num", "actions", "simulations", "considered"), [(1, 4, 30, 16), (64, 4, 30, 16), (9, 9, 50, 5), (9, 9, 4, 16)]
)
def test_gumbel_equals_the_reference(
    num: int, actions: int, simulations: int, considered: int, with_mask: bool
) -> None:
    model, obs = Tables(3, actions=actions), starts(num)
    legal = masks(num, actions) if with_mask else np.ones((num, actions), bool)
    noise, rule = np.random.default_rng(4).gumbel(size=(num, actions)), Gumbel(considered, value_scale=0.3)
    found = run.gumbel(model, obs, simulations, noise, rule, legal if with_mask else None)
    for b in range(num):
        search = GumbelSearch(model, int(obs[b]), masked(model, legal[b]))
        search.noise, search.simulations, search.considered = noise[b].tolist(), simulations, considered
        search.c_scale = 0.3
        search.run(simulations)
        assert_equal(found.trees, b, search)
        assert found.action[b] == search.action()
        np.testing.assert_allclose(found.policy[b], search.improved(search.root), rtol=1e-9, atol=1e-12)
    assert found.visits[~legal].sum() == 0
    assert (found.visits.sum(-1) == simulations).all()


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(("num", "temperature"), [(1, 1.0), (64, 2.0)])
def test_sampled_equals_the_reference(num: int, temperature: float) -> None:
    model, obs = Tables(6, actions=30), starts(num)
    noise = np.random.default_rng(7).uniform(size=(num, 21, 6)).astype(np.float32)

    def draw(policy: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_beta = (policy / temperature).log_softmax(-1)
        sums = log_beta.double().exp().cumsum(-1)
        choices = torch.searchsorted(sums, uniform.double() * sums[:, -1:], right=True)
        return choices, (policy.log_softmax(-1) - log_beta).gather(-1, choices)

    sampled = Sampled(model, draw, torch.from_numpy(noise))
    found = run.puct(sampled, obs, 20)
    for b in range(num):
        SampledSearch.temperature = temperature
        search = SampledSearch(model, int(obs[b]), noise[b])
        search.run(20)
        assert_equal(found.trees, b, search)
        assert found.root[0][b].tolist() == search.candidates[0]
    again = run.puct(sampled, obs, 20)
    assert equal_bits(found, again)


def equal_bits(one: Found, two: Found) -> bool:
    arrays = [(getattr(one.trees, name), getattr(two.trees, name)) for name in LAYOUT]
    arrays += [(one.action, two.action), (one.policy, two.policy), (one.value, two.value)]
    return all(np.array_equal(x, y) for x, y in arrays)


@pytest.mark.skipif(compiled.load() is None, reason="no C++ compiler")
@pytest.mark.parametrize("actions", [2, 5, 18])
def test_numpy_and_c_make_equal_trees_bit_by_bit(actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, obs, legal = Tables(8, 40, actions), starts(64), masks(64, actions)
    random = np.random.default_rng(9)
    dirichlet, noise = random.dirichlet([0.3] * actions, 64), random.gumbel(size=(64, actions))
    model.logits[3] *= 400.0  # probabilities of 0

    def search() -> list[Found]:
        return [
            run.puct(model, obs, 60, noise=dirichlet, legal=legal),
            run.gumbel(model, obs, 60, noise, Gumbel(value_scale=1.0), legal),
        ]

    ours = search()
    monkeypatch.setattr(compiled, "load", lambda: None)
    assert all(map(equal_bits, ours, search()))


NOISE = [
    [0.097374, 0.511079, -0.406933, -0.552646],
    [2.07133, 0.563654, -0.824535, -0.974343],
    [0.137245, 1.884796, 0.93525, 4.924594],
]
PARENTS = {
    16: [
        [0, 0, 0, 0, 1, 2, 4, 3, 1, 6, 9, 6, 9, 6, 13, 14, 1, 14, 17, 14],
        [0, 0, 0, 2, 1, 3, 5, 2, 6, 5, 2, 5, 11, 12, 11, 12, 11, 12, 17, 18],
        [0, 0, 0, 0, 1, 3, 4, 2, 8, 1, 9, 10, 8, 10, 13, 14, 13, 1, 17, 18],
    ],
    3: [
        [0, 0, 0, 1, 2, 3, 1, 5, 6, 7, 5, 7, 5, 12, 13, 1, 13, 16, 13, 19],
        [0, 0, 0, 2, 1, 3, 5, 2, 6, 5, 2, 5, 11, 12, 11, 12, 11, 12, 17, 18],
        [0, 0, 0, 1, 3, 2, 6, 1, 3, 7, 8, 6, 8, 12, 13, 12, 1, 16, 17, 12],
    ],
}
POLICY = {
    16: [
        [0.398502, 0.596751, 0.000637, 0.00411],
        [0.818433, 0.0, 0.000895, 0.180673],
        [0.043187, 0.619033, 0.326641, 0.011139],
    ],
    3: [
        [0.438131, 0.522475, 0.000505, 0.038889],
        [0.818433, 0.0, 0.000895, 0.180673],
        [0.012992, 0.671426, 0.30465, 0.010932],
    ],
}
VISITS = {16: [[8, 8, 2, 2], [9, 0, 3, 8], [2, 8, 2, 8]], 3: [[8, 9, 3, 0], [9, 0, 3, 8], [0, 9, 3, 8]]}
VALUE = {16: [0.71788, 0.929896, -0.039275], 3: [0.616151, 0.929896, 0.00311]}


@pytest.mark.parametrize("considered", [16, 3])
def test_gumbel_equals_mctx(considered: int) -> None:
    model = Tables(0)
    s, a = np.arange(7)[:, None], np.arange(4)[None]
    model.next_state = torch.from_numpy((3 * s + 2 * a + 1) % 7)
    model.rewards = torch.from_numpy(np.sin(1.0 + 2.3 * s + 1.7 * a).astype(np.float32))
    model.discounts = torch.from_numpy(np.where((s + a) % 5 == 0, 0.0, 0.95).astype(np.float32))
    model.logits = torch.from_numpy(np.cos(0.5 * s + 1.1 * a).astype(np.float32))
    model.values = torch.from_numpy((2 * np.sin(1.3 * np.arange(7))).astype(np.float32))
    legal = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]], bool)
    found = run.gumbel(model, torch.tensor([0, 3, 5]), 20, np.array(NOISE), Gumbel(considered), legal)
    assert found.trees.parent[:, 1:].tolist() == PARENTS[considered]
    assert found.visits.tolist() == VISITS[considered]
    assert found.action.tolist() == [1, 0, 1]
    np.testing.assert_allclose(found.policy, POLICY[considered], atol=1e-5)
    np.testing.assert_allclose(found.value, VALUE[considered], atol=1e-5)

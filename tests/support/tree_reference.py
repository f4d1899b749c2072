"""Searches as the papers describe them: one tree, recursive Python, no arrays. And random models to search in."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


class Tables:
    """A model with S states and A actions, all random; some transitions have discount 0. Embeddings are states."""

    def __init__(self, seed: int, states: int = 7, actions: int = 4) -> None:
        random = np.random.default_rng(seed)
        shape = (states, actions)
        self.next_state = torch.from_numpy(random.integers(states, size=shape))
        self.rewards = torch.from_numpy(random.normal(size=shape).astype(np.float32))
        discounts = np.where(random.uniform(size=shape) < 0.2, 0.0, random.uniform(0.8, 1.0, shape))
        self.discounts = torch.from_numpy(discounts.astype(np.float32))
        self.logits = torch.from_numpy(random.normal(size=shape).astype(np.float32))
        self.values = torch.from_numpy(random.normal(0.0, 3.0, states).astype(np.float32))

    def root(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return obs, self.logits[obs], self.values[obs]

    def recurrent(self, embedding: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        following = self.next_state[embedding, action]
        reward, discount = self.rewards[embedding, action], self.discounts[embedding, action]
        return reward, discount, self.logits[following], self.values[following], following


@dataclass
class Node:
    """A state, and what the search knows about it."""

    number: int
    state: int
    prior: list[float]
    raw_value: float
    reward: float = 0.0
    discount: float = 0.0
    count: int = 1
    total: float = 0.0
    children: dict[int, "Node"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total = self.raw_value

    def visits(self, action: int) -> int:
        return self.children[action].count if action in self.children else 0

    def q(self, action: int) -> float:
        child = self.children[action]
        return child.reward + child.discount * child.total / child.count

    @property
    def actions(self) -> list[int]:
        """The actions that may be taken."""
        return [action for action, prior in enumerate(self.prior) if prior > 0]


def softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(x - max(logits)) for x in logits]
    return [weight / sum(weights) for weight in weights]


def first_best(actions: Sequence[int], score: Callable[[int], float]) -> int:
    """Return the first action whose score is the largest, apart from rounding."""
    scores = [score(action) for action in actions]
    return next(action for action, x in zip(actions, scores, strict=True) if x >= max(scores) - 1e-6)


class Search:
    """One tree. `expand(state, node)` returns the prior of the state, as the `node`-th node of the tree."""

    def __init__(self, model: Tables, state: int, expand: Callable[[int, int], list[float]] | None = None) -> None:
        self.model = model
        self.expand = expand or (lambda state, node: softmax(model.logits[state].tolist()))
        self.root = Node(0, state, self.expand(state, 0), float(model.values[state]))
        self.nodes = 1
        self.seen: list[float] = []

    def run(self, simulations: int) -> None:
        for self.simulation in range(simulations):
            self.simulate(self.root)

    def simulate(self, node: Node) -> float:
        """Make a simulation from a node, and return the return."""
        action = self.select(node)
        if action in node.children:
            child = node.children[action]
            below = self.simulate(child)
        else:
            child = node.children[action] = self.step(node, action)
            below = child.raw_value
        result = child.reward + child.discount * below
        self.seen.append(node.q(action))
        node.total += result
        node.count += 1
        return result

    def step(self, node: Node, action: int) -> Node:
        at = node.state, self.choice(node, action)
        state = int(self.model.next_state[at])
        child = Node(self.nodes, state, self.expand(state, self.nodes), float(self.model.values[state]))
        child.reward, child.discount = float(self.model.rewards[at]), float(self.model.discounts[at])
        self.nodes += 1
        return child

    def choice(self, node: Node, action: int) -> int:
        return action

    def select(self, node: Node) -> int:
        raise NotImplementedError


class PuctSearch(Search):
    """MuZero, arXiv 1911.08265, appendix B."""

    def select(self, node: Node) -> int:
        low, high = min(self.seen, default=0.0), max(self.seen, default=0.0)

        def score(action: int) -> float:
            count = node.visits(action)
            c = 1.25 + math.log((node.count + 19652 + 1) / 19652)
            exploration = node.prior[action] * math.sqrt(node.count) / (1 + count) * c
            return exploration + ((node.q(action) - low) / (high - low) if count and high > low else 0.0)

        return first_best(node.actions, score)


class GumbelSearch(Search):
    """Danihelka et al. 2022."""

    noise: Sequence[float]
    simulations: int
    considered = 16
    c_visit, c_scale = 50.0, 0.1

    def mixed(self, node: Node) -> float:
        """Appendix D."""
        visited = [action for action in node.actions if node.visits(action)]
        if not visited:
            return node.raw_value
        num = sum(node.visits(action) for action in visited)
        weight = sum(node.prior[action] for action in visited)
        average = sum(node.prior[action] / weight * node.q(action) for action in visited)
        return (node.raw_value + num * average) / (1 + num)

    def sigma(self, node: Node) -> dict[int, float]:
        """Equations 8 and 10, with the completed values of the node between 0 and 1."""
        mixed = self.mixed(node)
        completed = {action: node.q(action) if node.visits(action) else mixed for action in node.actions}
        low, high = min(completed.values()), max(completed.values())
        scale = (self.c_visit + max(map(node.visits, node.actions))) * self.c_scale
        return {action: scale * (q - low) / max(high - low, 1e-8) for action, q in completed.items()}

    def improved(self, node: Node) -> list[float]:
        """Equation 11."""
        sigma = self.sigma(node)
        possible = softmax([math.log(node.prior[action]) + sigma[action] for action in node.actions])
        policy = dict(zip(node.actions, possible, strict=True))
        return [policy.get(action, 0.0) for action in range(len(node.prior))]

    def root_score(self, action: int) -> float:
        return self.noise[action] + math.log(self.root.prior[action]) + self.sigma(self.root)[action]

    def select(self, node: Node) -> int:
        if node is self.root:
            wanted = self.wanted_visits()
            return first_best([a for a in node.actions if node.visits(a) == wanted], self.root_score)
        policy = self.improved(node)
        num = sum(map(node.visits, node.actions))
        return first_best(node.actions, lambda a: policy[a] - node.visits(a) / (1 + num))  # equation 14

    def wanted_visits(self) -> int:
        """Sequential halving: m actions, then half of them, ..., at least 2; each round has an equal share."""
        left = most = min(self.considered, len(self.root.actions))
        if most == 1:
            return self.simulation
        begin = before = 0
        while True:
            times = max(1, self.simulations // (math.ceil(math.log2(most)) * left))
            if self.simulation < begin + times * left:
                return before + (self.simulation - begin) // left
            begin, before, left = begin + times * left, before + times, max(2, left // 2)

    def action(self) -> int:
        most = max(map(self.root.visits, self.root.actions))
        return first_best([a for a in self.root.actions if self.root.visits(a) == most], self.root_score)


class SampledSearch(PuctSearch):
    """Hubert et al. 2021, arXiv 2104.06303: candidates from beta, with priors in proportion to pi / beta."""

    temperature = 1.0

    def __init__(self, model: Tables, state: int, noise: np.ndarray) -> None:
        self.noise, self.candidates = noise, list[list[int]]()
        super().__init__(model, state, self.draw)

    def draw(self, state: int, node: int) -> list[float]:
        logits = self.model.logits[state].tolist()
        pi, beta = softmax(logits), softmax([x / self.temperature for x in logits])
        drawn = []
        for uniform in self.noise[node]:
            left = float(uniform)
            for choice, probability in enumerate(beta):
                if left < probability or choice == len(beta) - 1:
                    drawn.append(choice)
                    break
                left -= probability
        self.candidates.append(drawn)
        weights = [pi[c] / beta[c] for c in drawn]
        return [weight / sum(weights) for weight in weights]

    def choice(self, node: Node, action: int) -> int:
        return self.candidates[node.number][action]

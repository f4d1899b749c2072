"""The tree searches of MuZero (`puct`) and Gumbel MuZero (`gumbel`), for B environments at once.

Each simulation calls the model once for all B trees. Both searches are pure functions: their random numbers are
arguments, and equal arguments give equal results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drl_cli.search import formulas
from drl_cli.search.compiled import Steps, make_steps
from drl_cli.search.formulas import GUMBEL, PUCT, Gumbel, Puct
from drl_cli.search.model import Embedding, Memory, Model, Repeated, check_shape
from drl_cli.search.trees import Trees
from drl_cli.types import Array


class Found(NamedTuple):
    """The results of a search at the roots of B trees, with A actions."""

    action: Array
    """The best action, int64 `[B]`.

    PUCT chooses the most visited action. Gumbel MuZero chooses, among the most visited actions, the action with the
    largest noise + logit + sigma(Q).
    """
    policy: Array
    """The policy to learn, float64 `[B, A]`.

    For PUCT, it is the number of visits of each action divided by the number of simulations, or the prior with 0
    simulations. For Gumbel MuZero, it is the improved policy.
    """
    value: Array
    """The mean of the model's value and of the returns of all simulations, float64 `[B]`, in the reward's unit."""
    visits: Array
    """The number of simulations that began with each action, int32 `[B, A]`."""
    q: Array
    """Q(s, a) of each action, float64 `[B, A]`; 0 if the action was never visited."""
    root: Embedding
    """The model's embedding of the roots."""
    trees: Trees
    """The whole search trees."""


def puct(
    model: Model,
    obs: Any,
    simulations: int,
    rule: Puct = PUCT,
    noise: Array | None = None,
    legal: Array | None = None,
) -> Found:
    """Search with MuZero's PUCT from B observations (Schrittwieser et al. 2020, arXiv 1911.08265, appendix B).

    `noise` `[B, A]` are samples of a Dirichlet distribution, for exploration. They make up the fraction
    `rule.noise_share` of the root's prior. `legal`, bool `[B, A]`, is False for actions that the roots must not take.
    With 0 simulations, the results are the prior and the model's value. Raise ValueError if a root has no legal action.

    In the PUCT formula, N(s) counts the evaluation of s as one visit. The first simulation therefore follows the prior.
    """
    trees, steps, memory, root = _plant(model, obs, simulations, legal)
    prior = trees.prior[:, 0]
    if noise is not None:
        legal_noise = np.where(prior > 0.0, noise, 0.0)
        sums = legal_noise.sum(-1, keepdims=True)
        prior[:] = (1.0 - rule.noise_share) * prior + rule.noise_share * legal_noise / sums  # in the trees
    steps.puct(formulas.exploration(rule, trees.nodes))
    _simulate(model, trees, steps, memory)
    visits = trees.visits[:, 0]
    policy = visits / simulations if simulations else prior.copy()
    return Found(policy.argmax(-1), policy, trees.value, visits, trees.q[:, 0], root, trees)


def gumbel(
    model: Model, obs: Any, simulations: int, noise: Array, rule: Gumbel = GUMBEL, legal: Array | None = None
) -> Found:
    """Search with Gumbel MuZero's sequential halving at the root, from B observations (Danihelka et al., ICLR 2022).

    `noise` `[B, A]` are samples of the standard Gumbel distribution for exploration, or zeros. `legal`, bool `[B, A]`,
    is False for actions that the roots must not take. With 0 simulations, the policy is the prior, and the action is a
    sample of the prior (its mode, if `noise` is 0). Raise ValueError if a root has no legal action.
    """
    trees, steps, memory, root = _plant(model, obs, simulations, legal)
    prior = trees.prior[:, 0]
    with np.errstate(divide="ignore"):  # log(0) of an illegal action
        noisy_logits = np.where(prior > 0.0, noise + np.log(prior), -np.inf)
    table = formulas.halving_table(min(rule.considered, trees.actions), simulations)
    num_considered = np.minimum((prior > 0.0).sum(-1), len(table) - 1)  # at most all legal actions of each root
    needed_visits = np.ascontiguousarray(table[num_considered].T)  # [simulations, B]
    steps.gumbel(rule, noisy_logits, needed_visits)
    _simulate(model, trees, steps, memory)
    action, policy = steps.finish_gumbel()
    return Found(action, policy, trees.value, trees.visits[:, 0], trees.q[:, 0], root, trees)


def sample_visits(policy: Array, temperature: float, uniform: Array) -> Array:
    """Draw actions int64 `[B]` with probabilities proportional to policy^(1 / temperature).

    `policy` `[B, A]` are probabilities, such as the policy of a search. `uniform` `[B]` are random numbers, uniform in
    [0, 1). With temperature 0, return the most likely action.
    """
    if temperature > 0.0:  # divide by the largest probability, so that its power is 1 and not rounded to 0
        weights = (policy / policy.max(-1, keepdims=True)) ** (1.0 / temperature)
    else:
        weights = np.eye(policy.shape[-1])[policy.argmax(-1)]  # one-hot
    sums = weights.cumsum(-1)
    threshold = uniform[:, None] * sums[:, -1:]
    action: Array = (sums <= threshold).sum(-1)  # the first action whose cumulative weight exceeds the threshold
    return action


def _plant(model: Model, obs: Any, simulations: int, legal: Array | None) -> tuple[Trees, Steps, Memory, Embedding]:
    """Evaluate B observations with the model, and make B trees that have only a root.

    Return the trees, the object that grows them (`make_steps`), the memory of the embeddings, and the embedding of the
    roots. Raise ValueError if a root has no legal action.
    """
    with torch.no_grad():
        root, logits, value = model.root(obs)
    trees = Trees(roots=value.shape[0], nodes=simulations + 1, actions=logits.shape[-1])
    logits = _on_host("logits", logits, (trees.roots, trees.actions))
    value = _on_host("value", value, (trees.roots,))
    if legal is not None:
        has_legal = legal.any(-1)
        if not has_legal.all():
            raise ValueError(f"root {int(has_legal.argmin())} of the search has no legal action")
        logits = logits.masked_fill(~torch.from_numpy(legal), -torch.inf)
    steps, memory = make_steps(trees, root)
    steps.plant(logits, value)
    return trees, steps, memory, root


@torch.no_grad()
def _simulate(model: Model, trees: Trees, steps: Steps, memory: Memory) -> None:
    """Make all simulations: each adds one node to every tree."""
    if trees.nodes == 1:  # no simulations
        return
    rows, actions = torch.from_numpy(trees.row), torch.from_numpy(trees.chosen)  # `steps` writes the selected action
    by_tree, by_action = (trees.roots,), (trees.roots, trees.actions)  # the shapes of the model's results
    steps.choose(0)
    for node in range(1, trees.nodes):
        reward, discount, logits, value, embedding = model.recurrent(*memory.take(rows, actions))
        memory.put(node, embedding)
        results = (
            _on_host("reward", reward, by_tree),
            _on_host("discount", discount, by_tree),
            _on_host("logits", logits, by_action),
            _on_host("value", value, by_tree),
        )
        steps.advance(node, *results)
        # Ask once for compiled code, after the first simulation. If there is none yet, Python makes all simulations.
        program = model.program if node == 1 and isinstance(model, Repeated) else None
        if program is not None and steps.simulate(node + 1, program, results):
            return  # the C++ code has made all remaining simulations


def _on_host(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the model's result `x` as a contiguous float32 tensor on the CPU.

    Raise ValueError, with `name`, if the result has another shape than `shape`.
    """
    if x.shape == shape and x.dtype == torch.float32 and x.is_contiguous() and x.is_cpu:
        return x
    check_shape(name, x, shape)
    return x.to("cpu", torch.float32).contiguous()

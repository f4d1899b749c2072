"""Searches in B trees at once, with one call of the model for each simulation: MuZero's and Gumbel MuZero's.

Both are pure functions: their random numbers are arguments, and equal arguments give equal results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drl_cli.search import formulas
from drl_cli.search.compiled import Steps, make_steps
from drl_cli.search.formulas import GUMBEL, PUCT, Gumbel, Puct
from drl_cli.search.model import Embedding, Memory, Model, check_shape
from drl_cli.search.repeated import Repeated
from drl_cli.search.trees import Trees
from drl_cli.types import Array


class Found(NamedTuple):
    """What a search found at the roots of B trees."""

    action: Array
    """The best action, int64 `[B]`: of PUCT, the most visited; of Gumbel, the one that its noise and values choose."""
    policy: Array
    """The policy to learn, float64 `[B, A]`: the shares of visits, or Gumbel's improved policy."""
    value: Array
    """The mean of the model's value and of the returns of all simulations, float64 `[B]`, in the reward's unit."""
    visits: Array
    """Simulations by action, int32 `[B, A]`."""
    q: Array
    """Q of visited actions, 0 for others, float64 `[B, A]`."""
    root: Embedding
    """The model's embedding of the roots."""
    trees: Trees


def puct(
    model: Model,
    obs: Any,
    simulations: int,
    rule: Puct = PUCT,
    noise: Array | None = None,
    legal: Array | None = None,
) -> Found:
    """Search with MuZero's PUCT (Schrittwieser et al. 2020, arXiv 1911.08265, appendix B).

    `noise` `[B, A]` are samples of a Dirichlet distribution, for exploration; they replace `rule.noise_share` of the
    root's prior. `legal`, bool `[B, A]`, is False for actions that the roots must not take. Without simulations, the
    results are the prior and the model's value. Raise ValueError if a root has no legal action.

    N(s) includes the evaluation of s itself, also at the root, so that the first simulation follows the prior.
    """
    trees, steps, memory, root = _plant(model, obs, simulations, legal)
    prior = trees.prior[:, 0]
    if noise is not None:
        allowed = np.where(prior > 0.0, noise, 0.0)
        prior[:] = (1.0 - rule.noise_share) * prior + rule.noise_share * allowed / allowed.sum(-1, keepdims=True)
    steps.puct(formulas.exploration(rule, trees.nodes))
    _simulate(model, trees, steps, memory)
    visits = trees.visits[:, 0]
    policy = visits / simulations if simulations else prior.copy()
    return Found(policy.argmax(-1), policy, trees.value, visits, trees.q[:, 0], root, trees)


def gumbel(
    model: Model, obs: Any, simulations: int, noise: Array, rule: Gumbel = GUMBEL, legal: Array | None = None
) -> Found:
    """Search with sequential halving at the root (Danihelka et al., ICLR 2022), also with few simulations.

    `noise` `[B, A]` are samples of the standard Gumbel distribution, or 0 for evaluations. `legal` is as for `puct`.
    Without simulations, the action is a sample of the prior (or its mode, with 0), and the policy is the prior.
    """
    trees, steps, memory, root = _plant(model, obs, simulations, legal)
    prior = trees.prior[:, 0]
    with np.errstate(divide="ignore"):
        base = np.where(prior > 0.0, noise + np.log(prior), -np.inf)
    table = formulas.halving_table(min(rule.considered, trees.actions), simulations)
    considered = table[np.minimum((prior > 0.0).sum(-1), len(table) - 1)]
    steps.gumbel(rule, base, np.ascontiguousarray(considered.T))
    _simulate(model, trees, steps, memory)
    action, policy = steps.finish_gumbel()
    return Found(action, policy, trees.value, trees.visits[:, 0], trees.q[:, 0], root, trees)


def sample_visits(policy: Array, temperature: float, uniform: Array) -> Array:
    """Return actions int64 `[B]` with probabilities proportional to policy^(1 / temperature).

    `policy` is `[B, A]`, such as shares of visits, and `uniform` `[B]` are uniform random numbers in [0, 1). With a
    temperature of 0, return the most likely action.
    """
    if temperature > 0.0:
        policy = (policy / policy.max(-1, keepdims=True)) ** (1.0 / temperature)
    else:
        policy = np.eye(policy.shape[-1])[policy.argmax(-1)]
    sums = policy.cumsum(-1)
    action: Array = (sums <= uniform[:, None] * sums[:, -1:]).sum(-1)
    return action


def _plant(model: Model, obs: Any, simulations: int, legal: Array | None) -> tuple[Trees, Steps, Memory, Embedding]:
    """Return trees with only their roots, their steps, the memory of the embeddings, and the roots' embedding."""
    with torch.no_grad():
        root, logits, value = model.root(obs)
    trees = Trees(value.shape[0], simulations + 1, logits.shape[-1])
    logits, value = _on_host("logits", logits, (trees.roots, trees.actions)), _on_host("value", value, (trees.roots,))
    if legal is not None:
        if not legal.any(-1).all():
            raise ValueError(f"root {int(legal.any(-1).argmin())} of the search has no legal action")
        logits = logits.masked_fill(~torch.from_numpy(legal), -torch.inf)
    steps, memory = make_steps(trees, root)
    steps.plant(logits, value)
    return trees, steps, memory, root


@torch.no_grad()
def _simulate(model: Model, trees: Trees, steps: Steps, memory: Memory) -> None:
    """Grow all trees by one node for each simulation."""
    if trees.nodes == 1:
        return
    rows, actions = torch.from_numpy(trees.row), torch.from_numpy(trees.chosen)
    roots, edges = (trees.roots,), (trees.roots, trees.actions)
    steps.choose(0)
    for node in range(1, trees.nodes):
        reward, discount, logits, value, embedding = model.recurrent(*memory.take(rows, actions))
        memory.put(node, embedding)
        results = (
            _on_host("reward", reward, roots),
            _on_host("discount", discount, roots),
            _on_host("logits", logits, edges),
            _on_host("value", value, roots),
        )
        steps.advance(node, *results)
        program = model.program if node == 1 and isinstance(model, Repeated) else None
        if program is not None and steps.simulate(node + 1, program, results):
            return


def _on_host(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return what a model returned as contiguous float32 on the CPU. Raise ValueError if the shape is wrong."""
    if x.shape == shape and x.dtype == torch.float32 and x.is_contiguous() and x.is_cpu:
        return x
    check_shape(name, x, shape)
    return x.to("cpu", torch.float32).contiguous()

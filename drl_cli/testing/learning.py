"""check_learning and check_gradients: what an algorithm learns, and the slopes of its loss."""

import dataclasses
from collections.abc import Callable

import numpy as np

from drl_cli.algos.base import Counts, Policy
from drl_cli.config.exploration import worker_values
from drl_cli.config.rows import row_schema
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.optim.params import Params
from drl_cli.runtime.roles.worker import make_builder
from drl_cli.testing.case import PROBES, Case, module_of, tensors
from drl_cli.types import Columns, PreviousStep, flat_columns, gathered, map_parts, num_rows, sources
from drl_cli.utils.lazy import Tensor, torch


def check_gradients(
    params: Params,
    loss: Callable[[], Tensor],
    write: Callable[[], object] | None = None,
    directions: int = 4,
    eps: float = 1e-3,
    tolerance: float = 0.02,
) -> None:
    """Raise AssertionError if `params.grad` is not the slope of `loss()`; the message names the part of `params`.

    `write` writes the gradients; by default, `loss().backward()` does. For each part, central differences measure the
    slope in `directions` directions. Each direction is a random vector plus the gradient, scaled to length 1. Because
    of float32 rounding, a slope may differ by up to `tolerance` times the norm of the part's gradient.
    """
    params.grad.zero_()
    if write is None:
        loss().backward()  # type: ignore[no-untyped-call]
    else:
        write()
    params.collect()
    generator, norm = torch.Generator().manual_seed(11), float(params.grad.norm())
    assert norm > 0.0, "the gradient is 0"
    for name in [name for name in params.slices for _ in range(directions)]:
        part, grad = params[name].flat, params[name].grad
        flat, length = part.clone(), max(float(grad.norm()), 1e-2 * norm)
        step = torch.nn.functional.normalize(torch.randn(len(flat), generator=generator), dim=0) + grad / length
        step /= step.norm()
        ends = []
        for sign in (1.0, -1.0):
            part.copy_(flat + sign * eps * step)
            ends.append(float(loss().detach()))
        part.copy_(flat)
        slope, written = (ends[0] - ends[1]) / (2 * eps), float(grad @ step)
        is_close = abs(slope - written) <= tolerance * length
        assert is_close, f"{name}: the slope is {slope:.6g}, the gradient says {written:.6g}"


CAPACITY = 10_000
"""Capacity of replay, in transitions."""


def check_learning(name: str, *overrides: str, updates: int = 600) -> None:
    """Raise AssertionError if an algorithm does not solve a probe environment after `updates` updates.

    The probe is Reach (box actions) or Choose (discrete actions) of drl_cli.envs.probes. For each update, each of 8
    environments makes one step, or 32 steps if the algorithm is on-policy.
    """
    case = Case(name, "env=" + PROBES[module_of(name).ACTIONS[0]], "network.hidden=[32,32]", *overrides)
    policy = learned(case, updates)
    if case.spec.action.kind == "box":
        goals = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
        error = float(np.square(policy.greedy(goals, PreviousStep.none(case.spec, 33)) - goals).mean())
        assert error < 0.02, f"{name} misses the goals of Reach by {error:.3g} (mean square) after {updates} updates"
    else:
        chosen = policy.greedy(np.eye(3, dtype=np.float32), PreviousStep.none(case.spec, 3)).tolist()
        assert chosen == [0, 1, 2], f"{name} chooses {chosen} in Choose after {updates} updates, best are [0, 1, 2]"


def learned(case: Case, updates: int, num_envs: int = 8, batch_size: int = 64) -> Policy:
    """Make `updates` updates in a plain loop of environments, replay and algorithm; return the trained policy.

    Rows, initial priorities and exploration are as in a run with one worker and without normalisation. On-policy
    algorithms get a rollout of 32 steps for each update.
    """
    config = case.config
    algorithm, envs = case.algorithm(), EnvBatch(config.env, case.spec, range(num_envs))
    policy = case.policy(0, algorithm)
    builder = make_builder(config, case.spec, policy, 0, 0)
    replay = dataclasses.replace(config.replay, capacity=CAPACITY)
    table = replay.make_table(row_schema(config, case.spec), np.random.default_rng(0), updates, None, config.algo.gamma)
    steps, random_steps = (32, 0) if case.is_on_policy else (1, 20)
    last, source = PreviousStep.none(case.spec, num_envs), sources(0, num_envs)
    for i in range(random_steps + updates):
        counts = Counts(max(0, i - random_steps), i * steps * num_envs)
        policy.load(algorithm.policy_params())
        values = algorithm.exploration(counts.env_steps)
        policy.explore(worker_values(config.worker.exploration, values, 0, 1, num_envs))
        for _ in range(steps):
            obs = map_parts(np.ndarray.copy, envs.obs)
            columns = policy.random(obs, last) if i < random_steps else policy.act(obs, last)
            step = envs.step(columns["action"])
            builder.append({**flat_columns("obs", obs), **columns, **step.columns(), "source": source})
            last = PreviousStep.of(columns["action"], step.reward, envs.begun)
        rows = builder.take()
        if case.is_on_policy:
            algorithm.learn(batch_of(rows), counts)
            continue
        table.insert(rows, np.zeros(num_rows(rows), np.int64))
        if i >= random_steps:
            drawn = table.sample(1, batch_size, 0)
            update = algorithm.learn(batch_of({name: column[0] for name, column in drawn.columns.items()}), counts)
            if drawn.row_ids is not None and update.priorities is not None:
                table.update_priorities(drawn.row_ids, update.priorities.unsqueeze(0).numpy())
    policy.load(algorithm.policy_params())
    return policy


def batch_of(rows: Columns) -> dict[str, Tensor]:
    """Convert rows of replay to the batch that a trainer passes to its algorithm."""
    return tensors(gathered({name: column for name, column in rows.items() if name != "source"}))

"""Convert a user's TorchPolicy to a numpy program: record what it computes, write it in numpy, and compare both."""

from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from drl_cli.algos.function_policy import FunctionPolicy
from drl_cli.algos.torch_policy import TorchPolicy, random_actions
from drl_cli.convert.program import Program, inputs, numpy_policy
from drl_cli.convert.rules import RESHAPES
from drl_cli.convert.source import write
from drl_cli.convert.trace import Draws, NotConverted, Trace, merged, needed, record, without_reshapes, without_writes
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import MASK, Array, Columns, EnvSpec, Obs, PreviousStep, map_parts, random_obs
from drl_cli.utils.lazy import torch
from drl_cli.utils.torch_ops import one_thread

ROWS = 3, 5
"""The numbers of rows of the two traces: a number that differs is a multiple of the number of rows."""
CHECKED_ROWS = 1, 2, 7
TOLERANCE = 1e-5
"""The largest difference between torch and numpy, relative to the largest value of a column (or to 1)."""
OWN = ("build", "check", "extra_columns", "choose", "prior", "explored", "distribution", "sample", "warm_up", "explore")
"""The methods of TorchPolicy that a policy may define. Other methods might call the modules, which a program lacks."""

Make = Callable[[int, type[TorchPolicy]], TorchPolicy]
"""Makes a policy of this class from a seed: all that may differ between two policies of a run differs."""


def convert(
    kind: type[TorchPolicy],
    config: Any,
    network: NetworkConfig,
    spec: EnvSpec,
    exploration: Sequence[str] = (),
    refused: Collection[str] = (),
) -> Program:
    """Return the program of the policies of a class. Raise NotConverted, with the reason, if there is none.

    `exploration` has the names of the exploration values of a class with its own methods. A program does not depend on
    them. Those of a file's function `explore` are inputs. `refused` names operations that are to stay in torch.
    """
    if own := defined(kind) - {*OWN}:
        raise NotConverted(f"it defines {', '.join(sorted(own))}")

    def make(seed: int, of: type[TorchPolicy] = kind) -> TorchPolicy:
        policy, rng = of(config, network, spec, seed), np.random.default_rng(seed)
        # not the initial weights, some of which are 0 and would not be compared
        policy.load(
            vector * rng.uniform(0.9, 1.1, size).astype(np.float32) + rng.uniform(0, 0.02, size).astype(np.float32)
        )
        policy.explore({name: rng.uniform(0.2, 0.8) for name in (*exploration, *given)})
        return policy

    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(0)
        first = kind(config, network, spec, 0)
        given = [*first.first] if isinstance(first, FunctionPolicy) else []
        vector = first.params.vector(list(first.modules))
        size = vector.shape
        methods = ["greedy"] + ["act"] * first.is_stochastic
        if first.declared_columns or first.memory_size:
            methods = ["greedy", "act", "random"]
        sources, constants, columns = list[str](), list[Array](), dict[str, list[str]]()
        for method in methods:
            trace = general(*(traced(make(rows), method, spec, rows, given) for rows in ROWS))
            if slow := {call.op for call in trace.calls}.intersection(refused):
                raise NotConverted(f"aten.{slow.pop()} is faster in torch")
            sources.append(write(method, trace, constants))
            columns[method] = [*trace.outputs]
        program = Program("\n\n".join(sources), constants, len(vector), columns, given)
        for rows in CHECKED_ROWS:
            compare(make(rows), make(rows, numpy_policy(kind, program)), spec, rows)
    return program


def general(one: Trace, two: Trace) -> Trace:
    """Return the trace for any number of rows, given the traces for ROWS. It has no side effects."""
    return needed(without_reshapes(without_writes(merged(one, two, ROWS)), RESHAPES))


def defined(kind: type[TorchPolicy]) -> set[str]:
    """Return the names of the methods of TorchPolicy that a class or its bases define again."""
    ours = FunctionPolicy if issubclass(kind, FunctionPolicy) else TorchPolicy
    bases = kind.__mro__[: kind.__mro__.index(ours)]
    methods = (FunctionType, staticmethod, classmethod, property)
    names = {name for base in bases for name, value in vars(base).items() if isinstance(value, methods)}
    return {name for name in names if hasattr(TorchPolicy, name)}


def traced(policy: TorchPolicy, method: str, spec: EnvSpec, rows: int, exploration: Sequence[str] = ()) -> Trace:
    """Return the trace of a method of the policy for random inputs and the exploration values of these names."""
    rng = np.random.default_rng(rows)
    policy.rng = draws = Draws(np.random.PCG64(rows))
    obs, last = example(spec, rows, rng)
    tensors, previous = map_parts(torch.from_numpy, obs), PreviousStep(*map(torch.from_numpy, last))  # type: ignore[arg-type]
    memory = torch.from_numpy(rng.standard_normal((rows, policy.memory_size), np.float32))

    explored = {name: torch.tensor(policy.exploration[name], dtype=torch.float64) for name in exploration}
    policy.explore({**policy.exploration, **explored})

    def compute() -> dict[str, Any]:  # Any: tensors
        if policy.memory_size:
            policy.memory = memory
        columns = getattr(policy, f"_{method}_columns")(tensors, previous)
        return {**columns, "memory": policy.memory} if policy.memory_size else columns

    with torch.no_grad():
        compute()  # modules may prepare views of their parameters in the first call
    named = inputs(tensors, previous, memory, explored)
    return record(compute, named, [*policy.params._pieces([*policy.modules])], draws)


def compare(policy: TorchPolicy, converted: TorchPolicy, spec: EnvSpec, rows: int) -> None:
    """Raise NotConverted if the results of two policies differ over a few steps."""
    rng, last = np.random.default_rng(rows), PreviousStep.none(spec, rows)
    for _ in range(3):
        obs, next_last = example(spec, rows, rng)
        for method in ("random", "act", "greedy"):
            results = [getattr(each, method)(obs, last) for each in (policy, converted)]
            same(*({"action": each} if method == "greedy" else each for each in results))
        last = next_last


def same(expected: Columns, found: Columns) -> None:
    if expected.keys() != found.keys():
        raise NotConverted("the program has other columns")
    for name, a in expected.items():
        b = found[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise NotConverted(f"{name} is {b.dtype} {b.shape} in numpy, {a.dtype} {a.shape} in torch")
        scale = max(1.0, float(np.abs(a).max())) if a.dtype.kind == "f" else 0.0
        if not np.allclose(a, b, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
            raise NotConverted(f"{name} differs by {np.abs(a.astype(float) - b).max():.2g} in numpy")


def example(spec: EnvSpec, rows: int, rng: np.random.Generator) -> tuple[Obs, PreviousStep]:
    """Return random observations with some illegal actions, and random previous steps of which some begin episodes."""
    obs = random_obs(spec.obs, rows, rng)
    if isinstance(obs, dict) and MASK in obs:
        mask = np.asarray(rng.random(obs[MASK].shape) < 0.7)
        mask[:, 0] = True
        obs[MASK] = mask
    action, reward = random_actions(spec.action, obs, rng), rng.standard_normal(rows, np.float32)
    return obs, PreviousStep(action, reward, rng.random(rows) < 0.3)

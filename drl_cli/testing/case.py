"""Case: an algorithm with its config, spaces and batches, for checks. Together: two trainers in threads."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from drl_cli.algos.base import Algorithm, Batch, Counts, Policy, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.lookup import AlgoModule, algorithms, load_algorithm
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.config.rows import has_step_states
from drl_cli.envs.make import read_spec
from drl_cli.settings.compose import compose
from drl_cli.settings.conf import option_file
from drl_cli.types import Obs, PreviousStep, Schema, map_parts, random_obs
from drl_cli.utils.lazy import Tensor, torch

ROWS = 16
PROBES = {"box": "drl_cli.envs.probes:Reach-v0", "discrete": "drl_cli.envs.probes:Choose-v0"}
"""For each kind of action space, an environment whose best action is known from the observation."""


class Case:
    """An algorithm in one environment, and random batches for it. Write name and overrides as on the command line."""

    def __init__(self, name: str, *overrides: str) -> None:
        self.module = module_of(name)
        env = [] if any(one.startswith("env=") for one in overrides) else [f"env={PROBES[self.module.ACTIONS[0]]}"]
        self.config = compose([f"algo={name}", "mode=single", *env, *overrides])
        self.spec = read_spec(self.config.env)
        self.is_on_policy = self.config.is_on_policy
        self.sequences = self.config.replay.steps
        options = (self.config.algo, self.config.network, self.spec)
        self.extra: Schema = self.module.Policy.extra_columns(*options)

    def algorithm(self, seed: int = 0, context: AlgoContext | None = None) -> Algorithm:
        """Return a new algorithm, made as in a trainer. Also seed torch's default generator."""
        torch.manual_seed(seed)
        context = context or self.context()
        return self.module.Algorithm(self.config.algo, self.config.network, self.spec, seed, context)

    def context(self, group: ProcessGroup | None = None, skips: bool = False, replays: bool = False) -> AlgoContext:
        burn_in = self.sequences.burn_in if self.sequences else 0
        optimizer, reward, group = self.config.optimizer, self.config.reward, group or ProcessGroup()
        options: dict[str, Any] = {"optimizer": optimizer, "burn_in": burn_in, "reward": reward, "replays": replays}
        return AlgoContext(torch.device("cpu"), group, skips, **options)

    def policy(self, seed: int = 0, algorithm: Algorithm | None = None) -> Policy:
        """Return a new policy, made as in a worker, with the parameters of `algorithm`, by default a new algorithm."""
        policy = self.module.Policy(self.config.algo, self.config.network, self.spec, seed)
        torch.manual_seed(0)
        algorithm = algorithm or self._first
        policy.load(algorithm.policy_params())
        policy.explore(algorithm.exploration(0))
        return policy

    @cached_property
    def _first(self) -> Algorithm:
        """An algorithm that nobody trains: most of the time of a check is to make algorithms."""
        return self.algorithm()

    def obs(self, rows: int, seed: int = 5) -> Obs:
        """Return random observations `[rows, ...]`; a legal-action mask allows every action."""
        return random_obs(self.spec.obs, rows, np.random.default_rng(seed))

    def batch(self, seed: int = 0, rows: int = ROWS) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return a random batch in the format of replay. If it contains sequences, the first two have padding."""
        if self.sequences is None:
            return self._steps(seed, rows)
        length = self.sequences.length
        steps = self._steps(seed, rows * length)
        state = None if has_step_states(self.config) else steps.pop("state", None)
        valid = torch.ones(rows, length, dtype=torch.bool)
        if self.sequences.burn_in:
            valid[0, 0] = False
        if self.sequences.seq_len > 1:
            valid[1, -1] = False

        def padded(column: Tensor) -> Tensor:
            """Reshape `[rows * length, ...]` to `[rows, length, ...]`, and set padding to 0."""
            column = column.view(rows, length, *column.shape[1:])
            return column * like(valid, column).to(column.dtype)

        batch: dict[str, Any] = map_parts(padded, steps) | {"valid": valid}
        return batch if state is None else batch | {"state": state.view(rows, length, -1)[:, 0].contiguous()}

    def _steps(self, seed: int, rows: int) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        rng, obs = np.random.default_rng(seed), self.obs(rows, seed + 1)
        policy, last = self.policy(seed), PreviousStep.none(self.spec, rows)
        columns: dict[str, Any] = dict(policy.act(obs, last) if self.is_on_policy else policy.random(obs, last))
        columns |= {
            "obs": obs,
            "next_obs": self.obs(rows, seed + 2),
            "reward": rng.standard_normal(rows, np.float32),
            "terminated": rng.random(rows) < 0.2,
            "truncated": rng.random(rows) < 0.2,
        }
        columns["discount"] = np.where(columns["terminated"], 0, 0.99).astype(np.float32)
        if self.is_on_policy:
            columns["cut"] = columns["terminated"] | columns["truncated"]
            columns["cut"][ROWS - 1 :: ROWS] = True  # rollouts of ROWS rows, so each trainer gets whole rollouts
        return tensors(columns)

    def learn(self, algorithm: Algorithm, first: int, last: int, rows: int = ROWS) -> list[Update]:
        """Make the updates with the numbers `first` to `last - 1`; the number of an update seeds its batch."""
        return [algorithm.learn(self.batch(i, rows), Counts(i, 10 * i)) for i in range(first, last)]


def module_of(name: str) -> AlgoModule:
    """Return the module of the algorithm `name`; `name` may also be a yaml file that sets options of an algorithm."""
    is_yaml = name not in algorithms() and option_file("algo", name) is not None
    return load_algorithm(compose([f"algo={name}"]).algo.name if is_yaml else name)


def like(mask: Tensor, column: Tensor) -> Tensor:
    """Return a mask `[rows, length]` with trailing axes of size 1, so that it broadcasts over the column's axes."""
    return mask.view(*mask.shape, *[1] * (column.ndim - 2))


def tensors(columns: Mapping[str, Any]) -> dict[str, Any]:  # Any: an array, or a dict of arrays
    """Return copies of the columns as tensors."""
    copies: dict[str, Any] = map_parts(lambda column: torch.from_numpy(column.copy()), columns)
    return copies


def equal(ours: Batch, theirs: Batch) -> bool:
    """Return whether two batches or states are bit-equal."""
    return ours.keys() == theirs.keys() and all(
        equal(ours[n], theirs[n]) if isinstance(ours[n], Mapping) else torch.equal(ours[n], theirs[n]) for n in ours
    )


def close(ours: Batch, theirs: Batch) -> bool:
    """Return whether two states are equal up to rounding."""
    return all(torch.allclose(ours[name].float(), theirs[name].float(), rtol=1e-4, atol=1e-6) for name in ours)


class Together(ProcessGroup):
    """A group of two trainers that run in threads and average tensors in memory."""

    def __init__(self, rank: int, members: "list[Together]", barrier: threading.Barrier) -> None:
        super().__init__(rank, 2)
        self.members, self.barrier = members, barrier
        self.given: Tensor | None = None

    @classmethod
    def pair(cls) -> "list[Together]":
        members: list[Together] = []
        barrier = threading.Barrier(2, timeout=60.0)
        members += [cls(rank, members, barrier) for rank in range(2)]
        return members

    def run(self, learn: Callable[[int], None]) -> None:
        """Call `learn(rank)` for both ranks at once; raise the error of a rank that failed."""

        def member(rank: int) -> None:
            try:
                learn(rank)
            except BaseException:
                self.barrier.abort()  # else the other trainer would wait 60 s
                raise

        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(member, rank) for rank in range(2)]
        errors = [error for call in calls if (error := call.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error

    def _all_reduce(self, tensor: Tensor, operation: Any) -> None:
        self.given = tensor.detach().clone()
        self.barrier.wait()
        both = torch.stack([member.given for member in self.members if member.given is not None])
        self.barrier.wait()
        if operation == torch.distributed.ReduceOp.SUM:
            tensor.copy_(both.sum(0))
        elif operation == torch.distributed.ReduceOp.MAX:
            tensor.copy_(both.max(0).values)
        else:
            raise NotImplementedError(f"{operation} of two trainers")

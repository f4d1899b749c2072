"""FunctionPolicy: the policy of an algorithm's file that has the functions `networks` and `policy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from drl_cli.algos.noise import Noise
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.losses.distributions import Distribution, TanhGaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder, memory_columns
from drl_cli.optim.gradients import Nets
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State, map_parts, num_rows, tree
from drl_cli.utils.lazy import torch
from drl_cli.utils.torch_ops import one_thread

if TYPE_CHECKING:
    from torch import Tensor, nn

RATED = ("action", "reward", "discount")
"""The columns of new transitions, besides observations, that `priorities` gets."""


def function_policy(algorithm: type[Any]) -> type[FunctionPolicy]:
    file = algorithm.file

    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        own = file["columns"](config, network, spec) if "columns" in file else {}
        return {**memory_columns(network), **own} if has_memory(algorithm, config, network, spec) else own

    names: dict[str, Any] = {"__module__": algorithm.__module__, "algorithm": algorithm}
    names["extra_columns"] = staticmethod(extra_columns)
    if "check" in file:
        names["check"] = staticmethod(file["check"])
    if "priorities" in file:
        names["priorities"] = FunctionPolicy.rated
    return type("Policy", (FunctionPolicy,), names)


def has_memory(algorithm: type[Any], config: Any, network: NetworkConfig, spec: EnvSpec) -> bool:
    """Return whether the policy has a memory: `network.memory`, in an encoder that the policy calls."""
    if network.memory == "none":
        return False
    parts = algorithm.file["networks"](config, network, spec)
    return any(isinstance(parts[name], Encoder) for name in algorithm.policy_parts)


def with_options(policy: Callable[..., Any], config: Any, spec: EnvSpec) -> Callable[..., Any]:
    """Return a file's `policy`, which may have the parameters `config` and `spec`, as a function of the other three."""
    options = {"config": config, "spec": spec}
    return partial(policy, **{name: options[name] for name in signature(policy).parameters if name in options})


class FunctionPolicy(TorchPolicy):
    """Acts by the functions `networks(config, network, spec)` and `policy(nets, obs, explore)` of an algorithm's file.

    `policy` returns the distribution of the actions, or the distribution and extra columns. It may have two more
    parameters, `config` and `spec`. `explore` has the exploration values by name. Before the first parameters arrive,
    they are the result of the file's function `explore(config)`. While `act` samples actions, `explore["rng"]` is the
    generator of random numbers, for networks with noisy weights. More functions of the file:

    - `noise(config, spec)` returns None, or the Noise with which actions are sampled.
    - `columns(config, network, spec)` returns the schema of the extra columns.
    - `priorities(config, nets, rows)` returns the initial priorities of new transitions, as `Policy.priorities` does.
    """

    algorithm: ClassVar[type[Any]]
    drawn: Any = None
    """What `noise` has drawn for the next call of `sample`: an array, a tensor, or Repeats."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        self.function = with_options(self.algorithm.file["policy"], config, spec)
        super().__init__(config, network, spec, seed)
        self.prepare(config, network, spec)

    def prepare(self, config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
        """Set what a policy needs besides networks."""
        file = self.algorithm.file
        self.first: dict[str, Any] = file["explore"](config) if "explore" in file else {}
        self.noise: Noise | None = file["noise"](config, spec) if "noise" in file else None
        self.memory_size = network.state_size if "state" in self.declared_columns else 0

    @staticmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> Mapping[str, nn.Module]:
        raise NotImplementedError  # `_made` makes the modules

    def _made(self, config: Any, network: NetworkConfig, spec: EnvSpec) -> dict[str, nn.Module]:
        parts = self.algorithm.file["networks"](config, network, spec)
        parts = {name: parts[name] for name in self.algorithm.policy_parts}
        self.nets, modules = Nets(parts), dict[str, Any]()
        for name, part in parts.items():
            if isinstance(part, Encoder):
                setattr(self.nets, name, partial(self._encode, part))
            modules |= {name: part} if isinstance(part, torch.nn.Module) else part.parts
        return modules

    def distribution(self, obs: Any, last: PreviousStep | None, **more: Any) -> tuple[Distribution, dict[str, Any]]:
        result = self.function(self.nets, obs, {**self.first, **self.exploration, **more})
        return result if isinstance(result, tuple) else (result, {})

    def sample(self, obs: Any, last: PreviousStep | None) -> tuple[Any, dict[str, Any]]:
        distribution, columns = self.distribution(obs, last, rng=self.rng)
        random = self.rng if self.noise is None else self.drawn
        random = torch.from_numpy(random) if isinstance(random, np.ndarray) else random
        if "log_prob" not in self.declared_columns:
            return distribution.sample(random), columns
        if type(distribution) is TanhGaussian:  # of the rounded action (tanh may give 1), which the trainer sees
            action = distribution.sample(random)
            return action, {**columns, "log_prob": distribution.log_prob(action)}
        action, log_prob = distribution.sample_log_prob(random)
        return action, {**columns, "log_prob": log_prob}

    def warm_up(self, obs: Any, last: PreviousStep | None) -> dict[str, Any]:
        return self.distribution(obs, last)[1]  # also makes a step of the memory

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if self.noise is not None:
            self.drawn = self.noise.draw(num_rows(obs), last, self.rng)
        return super().act(obs, last)

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        action = super().greedy(obs, last)
        return action if self.action.kind != "box" or self.action.is_free else np.clip(action, -1.0, 1.0)

    def rated(self, rows: Columns) -> Array:
        """Return what the file's function `priorities` returns: it is the method `priorities` of such a file."""
        trees = {name: tree(rows, name) for name in ("obs", "next_obs")}
        given = {name: rows[name] for name in RATED}
        return self._run_rating({**trees, **given})

    def _run_rating(self, rows: Mapping[str, Any]) -> Array:
        with torch.no_grad(), one_thread():
            tensors = {name: map_parts(torch.from_numpy, part) for name, part in rows.items()}
            priorities: Array = self._rating(tensors).numpy()
        return priorities

    def _rating(self, rows: Mapping[str, Any]) -> Tensor:
        priorities: Tensor = self.algorithm.file["priorities"](self.config, self.nets, rows)
        return priorities

    def _encode(self, encoder: Encoder, obs: Any) -> Any:  # Any: tensors
        x = encoder.features(obs)
        if encoder.memory is not None:
            assert self.memory is not None  # TorchPolicy sets it before each step
            x, self.memory = encoder.memory.step(x, self.memory)
        return x

    def state(self) -> State:
        state = super().state()
        return state if self.noise is None else {**state, "noise": self.noise.parts.copy()}

    def load_state(self, state: State) -> None:
        if self.noise is not None and "noise" in state:  # not if the run began with another kind of noise
            self.noise.parts = state["noise"].copy()
        super().load_state(state)

"""FunctionPolicy: the policy of an algorithm's file that has the functions `networks` and `policy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from drl_cli.algos.noise import Noise
from drl_cli.algos.torch_policy import RANDOM, RandomActions, TorchPolicy
from drl_cli.losses.distributions import Distribution, TanhGaussian
from drl_cli.networks.acting import NUMPY_FORMS
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import ActingEncoder, Encoder, memory_columns
from drl_cli.optim.gradients import Nets
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State, num_rows, tree
from drl_cli.utils.deferred import NotInNumpy, building
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import nn


FORMS = (ActingEncoder, *NUMPY_FORMS.values())
Acting = dict[str, Any]  # Any: objects of FORMS. A `type[Any]` is the class Algorithm of such a file


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


def first_exploration(kind: type[Any], config: Any) -> dict[str, Any]:  # Any: a class of policies
    """Return the exploration values before the first parameters arrive: those of the file's function `explore`."""
    explore = kind.algorithm.file.get("explore") if issubclass(kind, FunctionPolicy) else None
    return {} if explore is None else explore(config)


def in_torch(kind: type[Any]) -> type[Any]:  # Any: a class of policies
    """Return the class of policies that act by their torch modules, also where these have numpy forms."""
    if not issubclass(kind, FunctionPolicy):
        return kind
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "may_use_numpy": False})


def acting_parts(algorithm: type[Any], config: Any, network: NetworkConfig, spec: EnvSpec) -> Acting | None:
    """Return the parts of the policy, which act in numpy, or None if one of them has no numpy form."""
    parts = _in_numpy(algorithm, config, network, spec)
    chosen = {name: parts[name] for name in algorithm.policy_parts} if parts else {}
    is_whole = all(isinstance(p, FORMS) and getattr(p, "is_plain", True) for p in chosen.values())
    return chosen if parts and is_whole else None


def _in_numpy(algorithm: type[Any], config: Any, network: NetworkConfig, spec: EnvSpec) -> dict[str, Any]:
    """Return the networks of the file, in numpy where they have numpy forms, or {} if that is not possible."""
    try:
        with building(in_numpy=True):
            parts: dict[str, Any] = algorithm.file["networks"](config, network, spec)
    except NotInNumpy:
        return {}
    return parts


def has_memory(algorithm: type[Any], config: Any, network: NetworkConfig, spec: EnvSpec) -> bool:
    """Return whether the policy has a memory: `network.memory`, in an encoder that the policy calls."""
    if network.memory == "none":
        return False
    parts = _in_numpy(algorithm, config, network, spec) or algorithm.file["networks"](config, network, spec)
    return any(isinstance(parts[name], ActingEncoder | Encoder) for name in algorithm.policy_parts)


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

    If all networks have numpy forms (drl_cli.networks.acting), `policy` gets arrays. Torch is then only imported for a
    torso or a memory. Otherwise, `policy` gets tensors.
    """

    algorithm: ClassVar[type[Any]]
    may_use_numpy: ClassVar[bool] = True
    """Whether networks with a numpy form act in numpy."""
    acting: Acting | None = None
    encoder: ActingEncoder | None = None

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        file = self.algorithm.file
        self.function, self.network = with_options(file["policy"], config, spec), network
        self.first = first_exploration(type(self), config)
        self.noise: Noise | None = file["noise"](config, spec) if "noise" in file else None
        self.last: PreviousStep | None = None
        self.stored: Columns = {}  # the columns that the encoder returned with the last features
        if self.may_use_numpy:
            self.acting = acting_parts(self.algorithm, config, network, spec)
        if self.acting is None:
            super().__init__(config, network, spec, seed)
            self.memory_size = network.state_size if "state" in self.declared_columns else 0
            return
        RandomActions.__init__(self, spec, seed)
        self.config, self.declared_columns, self.memory = config, self.extra_columns(config, network, spec), None
        self.nets = Nets(self.acting)
        for name, part in self.acting.items():
            if isinstance(part, ActingEncoder):
                self.encoder = part  # without a torso and a memory, features are the flat observations
                setattr(self.nets, name, part.inputs.array if part.torch_encoder is None else self._encode)

    @staticmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> Mapping[str, nn.Module]:
        raise NotImplementedError  # `_made` makes the modules

    def _made(self, config: Any, network: NetworkConfig, spec: EnvSpec) -> dict[str, nn.Module]:
        parts = self.algorithm.file["networks"](config, network, spec)
        parts = {name: parts[name] for name in self.algorithm.policy_parts}
        self.nets, modules = Nets(parts), dict[str, Any]()
        for name, part in parts.items():
            if isinstance(part, Encoder):
                setattr(self.nets, name, partial(self._encode_in_torch, part))
            modules |= {name: part} if isinstance(part, torch.nn.Module) else part.parts
        return modules

    def distribution(self, obs: Any, last: PreviousStep | None, **more: Any) -> tuple[Distribution, dict[str, Any]]:
        values = {**self.first, **self.exploration, **more} if self.first or self.exploration else more
        result = self.function(self.nets, obs, values)
        return result if isinstance(result, tuple) else (result, {})

    def sample(self, obs: Any, last: PreviousStep | None) -> tuple[Any, dict[str, Any]]:
        distribution, columns = self.distribution(obs, last, rng=self.rng)
        random = self.rng if self.noise is None else self.noise.draw(num_rows(obs), self.last, self.rng)
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
        if self.acting is None or RANDOM in self.declared_columns:
            return super().act(obs, last)
        self.last = last
        action, columns = self.sample(obs, last)
        return {"action": action, **columns, **self.stored}

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        action = super().greedy(obs, last)
        return action if self.action.kind != "box" or self.action.is_free else np.clip(action, -1.0, 1.0)

    def rated(self, rows: Columns) -> Array:
        """Return what the file's function `priorities` returns: it is the method `priorities` of such a file."""
        trees = {name: tree(rows, name) for name in ("obs", "next_obs")}
        priorities: Array = self.algorithm.file["priorities"](self.config, self.nets, {**rows, **trees})
        return priorities

    def load(self, params: Array) -> None:
        if self.acting is None:
            super().load(params)
            return
        rest = params
        for part in self.acting.values():
            rest = part.load(rest)
        if len(rest):
            needed = len(params) - len(rest)
            raise ValueError(f"parameter vector has shape {params.shape}, the network needs ({needed},)")

    def _run(self, method: str, obs: Obs, last: PreviousStep | None) -> Columns:
        self.last = last
        if self.acting is None:
            return super()._run(method, obs, last)
        columns: Columns = getattr(self, f"_{method}_columns")(obs, last)
        return columns if method == "greedy" else {**columns, **self.stored}

    def _encode_in_torch(self, encoder: Encoder, obs: Any) -> Any:  # Any: tensors
        x = encoder.features(obs)
        if encoder.memory is not None:
            assert self.memory is not None  # TorchPolicy sets it before each step
            x, self.memory = encoder.memory.step(x, self.memory)
        return x

    def _encode(self, obs: Obs) -> Array:
        assert self.encoder is not None
        features, self.stored = self.encoder(obs, self.last)
        return features

    def state(self) -> State:
        state = RandomActions.state(self) if self.acting is not None else super().state()
        if self.encoder is not None and self.encoder.states is not None:
            state["memory"] = self.encoder.states.copy()
        return state if self.noise is None else {**state, "noise": self.noise.parts.copy()}

    def load_state(self, state: State) -> None:
        if self.noise is not None and "noise" in state:  # not if the run began with another kind of noise
            self.noise.parts = state["noise"].copy()
        if self.acting is None:
            super().load_state(state)
            return
        RandomActions.load_state(self, state)
        if self.encoder is not None:
            self.encoder.states = state["memory"].copy() if "memory" in state else None

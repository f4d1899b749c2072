"""Algorithm: the base class of algorithms whose file has the functions `networks` and `policy`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

from drl_cli.algos import base
from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.function_policy import function_policy
from drl_cli.algos.reward_stream import PART as REWARD
from drl_cli.algos.reward_stream import RewardStream
from drl_cli.algos.rollout import n_step_sequences, steps
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder, NetEncoder
from drl_cli.optim.gradients import Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import Part
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec
from drl_cli.utils.deferred import building
from drl_cli.utils.lazy import Tensor, torch


class Algorithm(base.Algorithm):
    """Learns from batches in a trainer process. A subclass defines `update`, and describes its networks.

    The constructor makes `params`, `optimizer` and `nets` from the file's function `networks(config, network, spec)`:

    - `policy_parts` has the names of the networks that the policy needs.
    - `targets` has the names of the networks that get a target network.
    - `rates` has the option of Config that is a network's learning rate, by its name. The others learn with `lr`.

    `nets.critic(x)` calls a network, `nets.target.critic` its target network, and `nets.frozen.critic` the network
    without a gradient of its parameters. An algorithm with other networks defines its own constructor, which makes
    `params` and `optimizer`.
    """

    targets: ClassVar[tuple[str, ...]] = ()
    rates: ClassVar[Mapping[str, str]] = {}
    has_own_weights: ClassVar[bool] = True
    """Whether a generator with the trainer's seed draws the initial weights of MLPs, or torch's default generator."""
    has_noise: ClassVar[bool] = True
    """Whether updates draw noise. If False, there is no `generator`."""
    file: ClassVar[Mapping[str, Any]]  # Any: the functions, classes and constants of the algorithm's file
    nets: Nets
    encoder: Encoder
    """The encoder among the networks, if there is one."""
    stream: RewardStream | None = None
    """The intrinsic rewards, if the file has REWARDS = True and a reward module is chosen (`reward=`)."""

    def __init_subclass__(cls) -> None:
        """Make the class Policy of a file that has the functions `networks` and `policy`."""
        file = vars(sys.modules.get(cls.__module__, cls))  # a class that was made by exec has no module
        if "networks" in file and "policy" in file:
            cls.file, cls.makes_n_steps = file, True
            file.setdefault("Policy", function_policy(cls))

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        if network.memory != "none":
            context = replace(context, compiles=False)  # torch.compile cannot compile an LSTM or a GRU
        self.config, self.network, self.spec, self.seed, self.context = config, network, spec, seed, context
        weights = torch.Generator().manual_seed(seed)
        with building(encoder=weights, heads=weights if self.has_own_weights else None):
            parts = self.file["networks"](config, network, spec)
            if self.file.get("REWARDS"):
                self.stream = RewardStream.build(context, network, spec, seed + 3)
            if self.stream is not None:
                parts |= self.stream.networks(parts.get("encoder"), network, spec)
        self.params = Params(context, **parts)
        self.policy_parts = self.params.names(self.policy_parts)
        for name in self.params.names(self.targets):
            self.params.target(name)
        rates = {name: self.part(name) for name in parts}
        inner = {each: rate for name, rate in rates.items() for each in self.params.names((name,))}
        self.optimizer = Optimizer(self.params, inner, context)
        if self.has_noise:
            self.generator = self.params.generator("noise", seed + 1)
        if self.stream is not None:
            self.params.generator(REWARD, seed + 4, on_cpu=True)  # shuffles the minibatches of the reward module
        self.nets = self._nets(parts)

    def _nets(self, parts: Mapping[str, Any]) -> Nets:
        """Return the parts as modules, and an encoder as a NetEncoder, also those of `frozen` and `target`."""
        own = Nets(self.params.modules)
        frozen = Nets({name: self.params.frozen(name) for name in self.params.modules})
        target = Nets({name: each.module for name, each in self.params.targets.items()})
        groups = {name: part for name, part in parts.items() if name in self.params.groups}
        for (name, part), nets in product(groups.items(), (own, frozen, target)):
            has_all = all(inner in vars(nets) for inner in part.parts)
            if isinstance(part, Encoder):
                self.encoder = part
                encoder = part.on(nets if has_all else own)
                setattr(nets, name, NetEncoder(encoder, self.context.burn_in, learns=nets is own))
            elif has_all:
                setattr(nets, name, part.on(nets))
        own.frozen, own.target = frozen, target
        return own

    def part(self, name: str) -> Part:
        """Return the learning rate of a network. Override this method to add other options, such as `max_norm`."""
        if self.stream is not None and name == REWARD:
            return Part(self.stream.lr)
        return Part(getattr(self.config, self.rates.get(name, "lr")))

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        """Return the result of the file's function `explore(config, env_steps)`; {} if it has no such argument."""
        explore = getattr(self, "file", {}).get("explore")  # a file with a class Policy of its own has no functions
        if explore is None or "env_steps" not in inspect.signature(explore).parameters:
            return {}
        values: Mapping[str, float] = explore(self.config, env_steps)
        return values

    def learn(self, batch: Batch, counts: Counts) -> Update:
        if self.makes_n_steps and "valid" in batch and self.config.n_step > 1:
            batch = n_step_sequences(batch, self.config.n_step)
        return super().learn(batch, counts)

    def rows(self, batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the columns `[N, ...]` of a batch, with one row for each step to learn from.

        Transitions are returned unchanged. The steps of sequences after the burn-in become rows, with n-step rewards.
        Then `weight` is 0 for padding, and `valid_weight` is the same without the importance weights.
        """
        return steps(batch, self.context)

    def per_sequence(self, values: Tensor, batch: Batch) -> Tensor:
        """Return values of `rows` `[N]` in the shape of priorities: `[B]`, or `[B, seq_len]` for sequences."""
        return values.view(len(batch["valid"]), -1) if "valid" in batch else values

    def randn(self, rows: int, *sizes: int) -> Sequence[Tensor]:
        """Draw standard normal noise for the rows of this trainer: one tensor `[rows, size]` for each size."""
        return torch.split(self.context.randn(rows, sum(sizes), self.generator), list(sizes), -1)

    def masks(self, name: str, rows: int) -> Sequence[Tensor]:
        """Draw the masks of `network.dropout` for a call of the MLP `name` with `rows` rows; () without dropout."""
        if not self.network.dropout:
            return ()
        mlp: Any = self.params.modules[name]
        masks: Sequence[Tensor] = mlp.masks(
            self.context.rand(rows, mlp.dropout_size, self.generator), self.network.dropout
        )
        return masks

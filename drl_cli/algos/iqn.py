"""IQN (Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", arXiv 1806.06923).

The network predicts the quantile of the return at any fraction in (0, 1). For each row, QR-DQN's loss compares
`quantiles` predicted quantiles with `target_quantiles` quantiles of the target. To draw K fractions, (0, 1) is split
into K equal intervals, and one fraction is drawn uniformly from each interval. The policy chooses the action with the
largest mean of the quantiles at the midpoints of `policy_quantiles` equal intervals. All options of DQN apply, except
`loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drl_cli.algos import dqn, qr_dqn
from drl_cli.algos.learner import Head
from drl_cli.losses.distributional import midpoints, risky_fraction
from drl_cli.networks import implicit
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.implicit import ActingNetwork, ImplicitNetwork, ValueNetwork
from drl_cli.networks.mlp import num_params
from drl_cli.networks.q_network import QNetwork
from drl_cli.optim.params import FlatPart
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION


@dataclass(frozen=True)
class Config(qr_dqn.Config):
    """Options of IQN, in addition to those of DQN."""

    quantiles: Count = 8
    target_quantiles: Count = 8
    policy_quantiles: Count = 32


class Policy(dqn.Policy):
    """Chooses the action with the largest mean of its quantiles; `risk` changes the fractions of these quantiles."""

    config: Config

    def acting(self, config: dqn.Config, network: NetworkConfig) -> ActingNetwork:
        assert isinstance(config, Config)
        fraction = risky_fraction(midpoints(config.policy_quantiles), config.risk, config.risk_level)
        width, actions = self.encoder.width, self.action.size
        shapes = implicit.implicit_shapes(network, width, actions, config.dueling, config.noisy)
        return implicit.ActingImplicitNetwork(shapes, fraction)

    def forward(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        features, memory = self.encoder(obs, last)
        return self.expected(self.q(features, None)), memory

    def expected(self, out: Array) -> Array:
        mean: Array = out.reshape(len(out), self.action.size, self.config.policy_quantiles).mean(-1)
        return mean


class Algorithm(qr_dqn.Algorithm):
    """Learns the quantiles of IQN in a trainer."""

    config: Config

    def setup(self, config: dqn.Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.mean_fraction = torch.from_numpy(midpoints(self.config.policy_quantiles)).to(self.context.device)
        self.uniform = self.params.generator("fractions", self.seed + 3)

    def networks(self, config: dqn.Config, spec: EnvSpec) -> tuple[ValueNetwork, ValueNetwork, ValueNetwork]:
        assert isinstance(config, Config)
        width, actions = self.encoder.size, spec.action.size
        shapes = implicit.implicit_shapes(self.network, width, actions, config.dueling, config.noisy)
        heads = {name: Head(shape.shapes, last=2**0.5 if shape.dueling else 1.0) for name, shape in shapes.items()}
        sigmas: dict[str, Head | int] = {
            f"{name}_sigma": num_params(shape.shapes) for name, shape in shapes.items() if shape.noisy
        }
        mlps = self.build({**heads, **sigmas}, policy=(*heads, *sigmas), lr=config.lr)

        def made(part: Callable[[str], FlatPart]) -> ImplicitNetwork:
            networks = {
                name: QNetwork(shape, mlps[name].on(part(name)), part(f"{name}_sigma") if shape.noisy else None)
                for name, shape in shapes.items()
            }
            return ImplicitNetwork(networks, config.quantiles)

        online = made(self.params.__getitem__)
        online.init()  # has to precede the next lines, which copy the parameters to the target network
        self.target_encoder = self.encoder.target(self.params)
        target = made(lambda name: self.params.target(name).part)
        return online, target, made(self.params.__getitem__)

    def draw(self, rows: dict[str, Any]) -> None:  # Any: a tensor, or a dict of tensors
        super().draw(rows)
        sizes = [self.config.quantiles, self.config.target_quantiles]
        drawn = self.context.rand(len(rows["obs"]), sum(sizes), self.uniform)
        steps = [torch.arange(size, device=drawn.device) for size in sizes]
        parts = zip(torch.split(drawn, sizes, 1), steps, sizes, strict=True)
        rows["fraction"], rows["target_fraction"] = ((part + step) / size for part, step, size in parts)

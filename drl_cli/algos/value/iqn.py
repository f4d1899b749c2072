"""IQN (Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", arXiv 1806.06923).

The network predicts the quantile of the return at any fraction in (0, 1). For each row, QR-DQN's loss compares
`quantiles` predicted quantiles with `target_quantiles` quantiles of the target. To draw K fractions, (0, 1) is split
into K equal intervals, and one fraction is drawn uniformly from each interval. The policy chooses the action with the
largest mean of the quantiles at the midpoints of `policy_quantiles` equal intervals. All options of DQN apply, except
`loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from drl_cli.algos.value import dqn, qr_dqn
from drl_cli.algos.value._q_learner import NOT_RANDOM, Draws, Random
from drl_cli.losses.distributional import midpoints, risky_fraction
from drl_cli.networks import implicit
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.head import Head
from drl_cli.networks.implicit import ActingImplicitNetwork, ActingNetwork
from drl_cli.networks.q_network import QShape
from drl_cli.optim.gradients import Nets
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION


@dataclass(frozen=True, kw_only=True)
class Config(qr_dqn.Config):
    """Options of IQN, in addition to those of DQN."""

    target_quantiles: Count
    policy_quantiles: Count


class Policy(dqn.Policy):
    """Chooses the action with the largest mean of its quantiles. `risk` changes the fractions of these quantiles."""

    config: Config

    def acting(self, config: dqn.Config, network: NetworkConfig) -> ActingNetwork:
        assert isinstance(config, Config)
        fraction = risky_fraction(midpoints(config.policy_quantiles), config.risk, config.risk_level)
        width, actions = self.encoder.width, self.action.size
        shapes = implicit.implicit_shapes(network, width, actions, config.dueling, config.noisy)
        return ActingImplicitNetwork(shapes, fraction)

    def forward(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        features, memory = self.encoder(obs, last)
        return self.expected(self.q(features, None)), memory

    def exported_head(self) -> Head:
        assert isinstance(self.q, ActingImplicitNetwork)
        return replace(
            super().exported_head(),
            layers=self.q.means["online"],
            trunk=self.q.means.get("trunk", ()),
            trunk_activation=self.network.activation,
            embedded=self.q.embedded,
        )

    def expected(self, out: Array) -> Array:
        mean: Array = out.reshape(len(out), self.action.size, self.config.policy_quantiles).mean(-1)
        return mean


class Algorithm(qr_dqn.Algorithm):
    """Trains the network that predicts the quantile of the return at any fraction."""

    sigma_name = "{}_sigma"

    def setup(self, config: qr_dqn.Config, spec: EnvSpec) -> None:
        assert isinstance(config, Config)
        super().setup(config, spec)
        self.inputs_per_row = config.quantiles
        self.mean_fraction = torch.from_numpy(midpoints(config.policy_quantiles)).to(self.context.device)
        self.uniform = self.params.generator("fractions", self.seed + 3)

    def network_shapes(self, spec: EnvSpec) -> Mapping[str, QShape]:
        width, config = self.encoder.size, self.config
        return implicit.implicit_shapes(self.network, width, spec.action.size, config.dueling, config.noisy)

    def read(self, nets: Nets, x: Tensor, random: Random) -> Tensor:
        """Return the quantiles `[N, A, K]` at `random.fraction`, which is `[N, K]`, or `[K]` for all rows (eq. 4)."""
        assert random.fraction is not None
        cosines = implicit.cosines(random.fraction)
        embedded = nets.embedding(cosines.flatten(0, -2)).relu().view(*cosines.shape[:-1], -1)
        state = x
        if "trunk" in self.shapes:
            activation = getattr(torch.nn.functional, self.network.activation)
            state = activation(self.part(nets, "trunk", x, random))
        product = state.unsqueeze(1) * embedded  # [N, K, W]
        quantiles = self.part(nets, "online", product.flatten(0, 1), random)
        return quantiles.view(len(x), -1, self.num_actions).mT

    def means(self, nets: Nets, x: Tensor, random: Random = NOT_RANDOM) -> Tensor:
        return super().means(nets, x, random._replace(fraction=self.mean_fraction))

    def draw(self, rows: int) -> Draws:
        """Also draw one fraction from each of K equal intervals of (0, 1), `[rows, K]` for each network."""
        draws, sizes = super().draw(rows), [self.config.quantiles, self.config.target_quantiles]
        uniform = torch.split(self.context.rand(rows, sum(sizes), self.uniform), sizes, 1)
        online, target = (
            (part + torch.arange(size, device=self.context.device)) / size
            for part, size in zip(uniform, sizes, strict=True)
        )
        return draws._replace(
            online=draws.online._replace(fraction=online), target=draws.target._replace(fraction=target)
        )

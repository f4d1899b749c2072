"""IQN (Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", arXiv 1806.06923).

IQN is DQN whose network predicts the quantile of the return at any fraction in (0, 1). The loss is the loss of QR-DQN:
for each transition, it compares `quantiles` predicted quantiles with `target_quantiles` quantiles of the target. Their
fractions are drawn uniformly, one from each of equal intervals of (0, 1), so that the loss has less variance than with
the paper's independent fractions. The policy compares actions by the mean of `policy_quantiles` quantiles, at the
midpoints of equal intervals, which `risk` changes. All options of DQN except `loss` apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from drl_cli.algos.value import dqn, qr_dqn
from drl_cli.algos.value._q_learner import NOT_RANDOM, Draws, Random
from drl_cli.losses.distributional import distorted_fraction, midpoints
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
    """The options of IQN, in addition to the options of QR-DQN."""

    target_quantiles: Count
    policy_quantiles: Count


class Policy(dqn.Policy):
    """Chooses the action whose quantiles have the largest mean. `risk` changes the fractions of these quantiles."""

    config: Config

    def make_network(self, config: dqn.Config, network: NetworkConfig) -> ActingNetwork:
        assert isinstance(config, Config)
        fraction = distorted_fraction(midpoints(config.policy_quantiles), config.risk, config.risk_level)
        width, actions = self.encoder.size, self.action.size
        shapes = implicit.implicit_shapes(network, width, actions, dueling=config.dueling, noisy=config.noisy)
        return ActingImplicitNetwork(shapes, fraction)

    def forward(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        assert isinstance(self.q, ActingImplicitNetwork)
        features, memory = self.encoder(obs, last)
        return self.expected(self.q(features)), memory  # without noise

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
    """Learns the implicit quantile network from batches."""

    sigma_name = "{}_sigma"

    def setup(self, config: qr_dqn.Config, spec: EnvSpec) -> None:
        assert isinstance(config, Config)
        super().setup(config, spec)
        self.inputs_per_row = config.quantiles
        self.midpoints = torch.from_numpy(midpoints(config.policy_quantiles)).to(self.context.device)
        self.fraction_generator = self.params.generator("fractions", self.seed + 3)

    def network_shapes(self, spec: EnvSpec) -> Mapping[str, QShape]:
        config, width, actions = self.config, self.encoder.size, spec.action.size
        return implicit.implicit_shapes(self.network, width, actions, dueling=config.dueling, noisy=config.noisy)

    def evaluate(self, nets: Nets, x: Tensor, random: Random) -> Tensor:
        """Return the quantiles `[N, A, K]` of all actions' returns, given features `x` `[N, F]` (eq. 4).

        The K quantiles are at the fractions `random.fraction`, `[N, K]`, or `[K]` if all rows have the same fractions.
        """
        assert random.fraction is not None
        cosines = implicit.cosines(random.fraction)  # [N, K, cosines] or [K, cosines]
        embedded = nets.embedding(cosines.flatten(0, -2)).relu()
        embedded = embedded.view(*cosines.shape[:-1], -1)  # [N, K, W] or [K, W], with W features
        hidden = x
        if "trunk" in self.shapes:
            activation = getattr(torch.nn.functional, self.network.activation)
            hidden = activation(self.evaluate_part(nets, "trunk", x, random))  # [N, W]
        product = hidden.unsqueeze(1) * embedded  # [N, K, W]
        quantiles = self.evaluate_part(nets, "online", product.flatten(0, 1), random)  # [N K, A]
        return quantiles.view(len(x), -1, self.num_actions).mT  # [N, K, A] -> [N, A, K]

    def means(self, nets: Nets, x: Tensor, random: Random = NOT_RANDOM) -> Tensor:
        """Return the mean `[N, A]` of the quantiles at `policy_quantiles` midpoints, given features `x` `[N, F]`."""
        return super().means(nets, x, random._replace(fraction=self.midpoints))

    def draw(self, rows: int) -> Draws:
        """Draw the random numbers of an update, with fractions `[rows, K]` for the online and the target network.

        K is `quantiles` for the online network and `target_quantiles` for the target network. Each row gets one random
        fraction from each of K equal intervals of (0, 1). `means` sets the fractions of double DQN's chooser.
        """
        draws, sizes = super().draw(rows), [self.config.quantiles, self.config.target_quantiles]
        uniform = self.context.rand(rows, sum(sizes), self.fraction_generator)
        fractions = []
        # `place`, from 0 to 1, is the place of a fraction in its interval.
        for place, size in zip(torch.split(uniform, sizes, 1), sizes, strict=True):
            interval = torch.arange(size, device=self.context.device)
            fractions.append((place + interval) / size)
        online = draws.online._replace(fraction=fractions[0])
        target = draws.target._replace(fraction=fractions[1])
        return draws._replace(online=online, target=target)

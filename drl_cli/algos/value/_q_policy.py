"""The policy of DQN and of the algorithms that derive from DQN."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.algos.policy import NetworkPolicy, sample_choices
from drl_cli.losses.policy import permitted
from drl_cli.losses.value import backed_up
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.networks.implicit import ActingNetwork
from drl_cli.networks.q_network import ActingQNetwork, QShape
from drl_cli.types import ActionSpec, Array, Columns, EnvSpec, Obs, PreviousStep, tree


class QPolicy(NetworkPolicy):
    """Chooses actions by their values, with up to three kinds of exploration.

    With probability epsilon, an action is random. Other actions are sampled from softmax(values / temperature) if the
    temperature is not 0. Noisy layers get new noise in every call.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.config = config
        self.explore({"epsilon": config.epsilon_start, "temperature": config.temperature})
        self.q = self.acting(config, network)
        self.shapes = self.q.shapes

    def acting(self, config: Any, network: NetworkConfig) -> ActingNetwork:
        """Return the numpy network that the policy evaluates."""
        return ActingQNetwork(q_shape(config, network, self.action, self.encoder.width))

    def load(self, params: Array) -> None:
        super().load(params)
        self.params = self.q.load(self.params)

    def explore(self, values: Mapping[str, Any]) -> None:
        self.epsilon, temperature = values["epsilon"], values.get("temperature", 0.0)
        self.is_boltzmann = bool(np.all(temperature))
        self.temperature = temperature[:, None] if isinstance(temperature, np.ndarray) else temperature

    def expected(self, out: Array) -> Array:
        """Return the values of the actions `[E, A]`, given the network's outputs."""
        return out

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if self.config.noisy:  # draw new noise in every call
            features, memory = self.encoder(obs, last)
            values = self.expected(self.q(features, self.rng))
        else:
            values, memory = self.forward(obs, last)
        values = permitted(values, action_mask(obs))
        is_random = self.rng.random(len(values)) < self.epsilon
        best = values.argmax(-1)
        if self.is_boltzmann:
            best = sample_choices(values / self.temperature, self.action.choices, self.rng)
        return {"action": np.where(is_random, self.draw(obs), best), **memory}

    def priorities(self, rows: Columns) -> Array:
        next_obs = tree(rows, "next_obs")
        next_value = permitted(self.forward(next_obs, None)[0], action_mask(next_obs)).max(-1)
        q = np.take_along_axis(self.forward(tree(rows, "obs"), None)[0], rows["action"][:, None], 1)[:, 0]
        error: Array = np.abs(backed_up(rows["reward"], rows["discount"], next_value, self.config.rescale) - q)
        return error


def q_shape(config: Any, network: NetworkConfig, action: ActionSpec, features: int) -> QShape:
    """Return the shape of the Q network for these options."""
    return QShape(network, features, action.size, config.outputs, config.dueling, config.noisy)

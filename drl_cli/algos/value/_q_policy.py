"""QPolicy: the policy of DQN and of the algorithms derived from DQN."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.algos.policy import NetworkPolicy, sample_choices
from drl_cli.algos.value._repeats import Repeats
from drl_cli.losses.policy import permitted
from drl_cli.losses.value import backed_up
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.networks.implicit import ActingNetwork
from drl_cli.networks.q_network import ActingQNetwork, QShape
from drl_cli.types import ActionSpec, Array, Columns, EnvSpec, Obs, PreviousStep, State, tree


class QPolicy(NetworkPolicy):
    """Chooses the action with the largest Q value, and explores in up to three ways.

    - With probability epsilon, the action is uniformly random, and is repeated for up to `epsilon_repeat` steps.
    - If the temperature is not 0, all other actions are sampled from softmax(values / temperature).
    - If the network has noisy layers, every call of `act` draws new noise for their weights.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.config = config
        self.explore({"epsilon": config.epsilon_start, "temperature": config.temperature})
        self.repeats = Repeats(config.epsilon_repeat) if config.epsilon_repeat > 1 else None
        self.q = self.make_network(config, network)
        self.shapes = self.q.shapes  # by which the base class's `load` splits the parameters

    def make_network(self, config: Any, network: NetworkConfig) -> ActingNetwork:
        """Return a new Q network, which numpy evaluates."""
        return ActingQNetwork(q_shape(config, network, self.action, self.encoder.size))

    def load(self, params: Array) -> None:
        super().load(params)
        self.params = self.q.load(self.params)  # an MLP without noise and dueling streams, for `forward`

    def explore(self, values: Mapping[str, Any]) -> None:
        self.epsilon, temperature = values["epsilon"], values.get("temperature", 0.0)
        self.is_boltzmann = bool(np.all(temperature))  # 0: no Boltzmann exploration; in a ladder, all or none are 0
        has_ladder = isinstance(temperature, np.ndarray)  # one temperature for each environment
        self.temperature = temperature[:, None] if has_ladder else temperature

    def expected(self, out: Array) -> Array:
        """Convert the network's outputs `[E, outputs]` to the values `[E, A]`. DQN's outputs are the values."""
        return out

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if self.config.noisy:
            features, memory = self.encoder(obs, last)
            values = self.expected(self.q(features, self.rng))  # `rng` draws the noise of the weights
        else:
            values, memory = self.forward(obs, last)
        values = permitted(values, action_mask(obs))
        is_random = self.rng.random(len(values)) < self.epsilon
        if self.is_boltzmann:
            chosen = sample_choices(values / self.temperature, self.action.choices, self.rng)
        else:
            chosen = values.argmax(-1)
        drawn = self.draw(obs)
        if self.repeats is not None:
            is_random = self.repeats.start(is_random, drawn, last, self.rng)
            drawn = self.repeats.choice
        return {"action": np.where(is_random, drawn, chosen), **memory}

    def state(self) -> State:
        return super().state() | ({} if self.repeats is None else self.repeats.state())

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if self.repeats is not None:
            self.repeats.load_state(state)

    def priorities(self, rows: Columns) -> Array:
        """Return |TD error| `[N]`. The targets are greedy and use this network, as a policy has no target network."""
        obs, next_obs = tree(rows, "obs"), tree(rows, "next_obs")
        values, _ = self.forward(obs, None)
        q = np.take_along_axis(values, rows["action"][:, None], 1)[:, 0]  # the values of the actions taken
        next_values, _ = self.forward(next_obs, None)
        next_value = permitted(next_values, action_mask(next_obs)).max(-1)
        target = backed_up(rows["reward"], rows["discount"], next_value, self.config.rescale)
        error: Array = np.abs(target - q)
        return error


def q_shape(config: Any, network: NetworkConfig, action: ActionSpec, features: int) -> QShape:
    """Return the shape of the Q network of DQN, C51 and QR-DQN, whose input has `features` numbers."""
    return QShape(
        network=network,
        features=features,
        actions=action.size,
        atoms=config.outputs,
        dueling=config.dueling,
        noisy=config.noisy,
    )

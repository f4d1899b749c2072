"""Deep Q-Network (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518).

DQN has one Q network, a target network, and epsilon-greedy exploration. Batches contain n-step rewards, discounts and,
with prioritized replay, importance weights. These options change the algorithm:

- `double`: The online network chooses the next action, and the target network evaluates the action (van Hasselt et al.
  2016, arXiv 1509.06461).
- `dueling` and `noisy`: See `drl_cli.networks.q_network`.
- `soft_temperature`: The target is the value under a softmax policy, plus the policy's entropy times this temperature
  (Haarnoja et al. 2017, arXiv 1702.08165, eq. 3).
- `munchausen`: The softmax policy's scaled log-probability, times this factor, is added to the reward (Vieillard et al.
  2020, arXiv 2007.14430, eq. 1). This option needs `soft_temperature`.
- `rescale`: The network learns rescaled values h(Q), so rewards need no clipping (R2D2, Kapturowski et al. 2019,
  section 2.3). This option can't be combined with `soft_temperature`.
- `tau`: Target parameters move by this fraction of their distance to the online parameters; 1 copies the parameters.
- `temperature`: Actions are drawn from softmax(values / temperature), also called Boltzmann exploration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Head, LearnerConfig, NetworkAlgorithm
from drl_cli.algos.policy import NetworkPolicy, sample_choices
from drl_cli.losses.policy import permitted
from drl_cli.losses.value import backed_up, half_square, huber, scaled_log_policy, softmax_policy
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.networks.implicit import ActingNetwork, ValueNetwork
from drl_cli.networks.mlp import num_params
from drl_cli.networks.q_network import ActingQNetwork, QNetwork, QShape
from drl_cli.optim.group import Refused
from drl_cli.optim.schedules import linear
from drl_cli.types import ActionSpec, Array, Columns, EnvSpec, Obs, PreviousStep, tree
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Range

ACTIONS = ("discrete",)
TABLES = ("uniform", "prioritized", "sequences")
EXPLORATION = ("epsilon", "temperature")


@dataclass(frozen=True)
class Config(LearnerConfig):
    """Options of DQN."""

    double: bool
    loss: Literal["huber", "mse"]
    target_period: Count
    epsilon_start: Fraction
    epsilon_end: Fraction
    epsilon_steps: Count
    tau: Fraction = 1.0
    dueling: bool = False
    noisy: bool = False
    soft_temperature: NonNegative = 0.0
    munchausen: Fraction = 0.0
    munchausen_floor: Annotated[float, Range(most=0)] = -1.0
    temperature: NonNegative = 0.0
    rescale: NonNegative = 0.0

    def __post_init__(self) -> None:
        if self.munchausen and not self.soft_temperature:
            raise Refused("algo.munchausen needs a softmax policy; say algo.soft_temperature=0.03 (as in its paper)")
        if self.rescale and self.soft_temperature:
            raise Refused("algo.rescale: rescaled values don't fit the entropy of algo.soft_temperature; say 0 for one")

    @property
    def outputs(self) -> int:
        return 1


class Policy(NetworkPolicy):
    """Chooses actions by their values, with up to three kinds of exploration.

    With probability epsilon, an action is random. Other actions are sampled from softmax(values / temperature) if the
    temperature is not 0. Noisy layers get new noise in every call.
    """

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.config = config
        self.explore({"epsilon": config.epsilon_start, "temperature": config.temperature})
        self.q = self.acting(config, network)
        self.shapes = self.q.shapes

    def acting(self, config: Config, network: NetworkConfig) -> ActingNetwork:
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


class Algorithm(NetworkAlgorithm):
    """Learns Q values in a trainer; subclasses replace the network and the loss."""

    mean_fraction: Tensor | None = None
    """The fractions `[K]` at which IQN averages quantiles to get an action's value; None in other algorithms."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.config = config
        self.online, self.target, self.chooser = self.networks(config, spec)
        if config.noisy:
            self.noise = self.params.generator("noise", self.seed + 1)

    def networks(self, config: Config, spec: EnvSpec) -> tuple[ValueNetwork, ValueNetwork, ValueNetwork]:
        """Return the online network, the target network, and the network that chooses the next action in double DQN."""
        shape = q_shape(config, self.network, spec.action, self.encoder.size)
        # In a dueling network, half of the last layer's weights are 0, so the other weights start sqrt(2) times larger.
        head = Head(shape.shapes, last=2**0.5 if config.dueling else 1.0)
        sigma = {"sigma": num_params(shape.shapes)} if config.noisy else {}
        mean = self.build({"online": head, **sigma}, policy=("online", *sigma), lr=config.lr)["online"]
        online = QNetwork(shape, mean, self.params["sigma"] if config.noisy else None)
        online.init()  # has to precede target_of, which copies the parameters
        target = self.target_of("online", mean)
        if not config.noisy:
            return online, QNetwork(shape, target), online
        target_sigma = self.params.target("sigma").part
        return online, QNetwork(shape, target, target_sigma), QNetwork(shape, mean, self.params["sigma"])

    def update(self, batch: Batch, counts: Counts) -> Update:
        config = self.config
        view, rows = self.see(batch, self.online.mlp, self.online.times)
        target_view = self.see_target(batch, view)
        rows["target_next_obs"] = target_view.next_obs
        rows["target_obs"] = target_view.obs if config.munchausen else None
        rows["next_obs"] = view.next_obs if config.double else None
        self.draw(rows)
        metrics, error_size, d_obs = self.gradients(rows)
        self.step(view, d_obs, metrics["q_loss"])
        if (counts.opt_steps + 1) % config.target_period == 0:
            self.params.follow(config.tau)
        return Update(metrics, self.by_step(error_size, batch))

    def draw(self, rows: dict[str, Any]) -> None:  # Any: a tensor, or a dict of tensors
        """Add columns to `rows`: the random numbers for `gradients`."""
        if self.config.noisy:
            size, device = (3, self.online.noise_size), self.context.device
            rows["noise"] = torch.randn(size, generator=self.noise, device=device)  # equal in all trainers

    def gradients(self, rows: Batch) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Write the gradient of the loss; return metrics, |TD error| `[N]`, and d loss/d features `[N, F]` or None."""
        action = rows["action"].unsqueeze(-1)
        if self.config.noisy:
            for network, normals in zip((self.online, self.target, self.chooser), rows["noise"], strict=True):
                network.draw(normals)
        reward, next_q = self.next_values(rows)
        out, trace = self.online.forward(rows["obs"], rows["drop"], rows.get("fraction"))
        q = self.of_action(out, action)
        loss, slope, error_size = self.errors(q, reward, next_q, rows)
        if "weight" in rows:
            loss, slope = rows["weight"] * loss, (rows["weight"] * slope.t()).t()
        d_out = self.of_action_backward(out, action, slope / slope.shape[0])
        learns = self.encoder.is_trainable
        d_obs = self.online.backward(trace, d_out, to_inputs=learns)
        metrics = {"q_loss": loss.mean(), "q_mean": self.expected(self.distribution(q)).mean()}
        return metrics, error_size, d_obs if learns else None

    def next_values(self, rows: Batch) -> tuple[Tensor, Tensor]:
        """Return the rewards `[N]`, and the value of `next_obs` for each row.

        The value is the best action's value. With `soft_temperature`, it is the mean value under the softmax policy,
        and the rewards include the entropy of this policy in `next_obs` and Munchausen's bonus.
        """
        config, reward = self.config, rows["reward"]
        target = self.distribution(self.read(self.target, rows["target_next_obs"], rows.get("target_fraction")))
        means = self.means(self.chooser, rows["next_obs"]) if config.double else self.expected(target)
        next_q = permitted(means, rows["mask_next"])
        if not config.soft_temperature:
            return reward, self.of_action(target, next_q.argmax(-1, keepdim=True))
        probs, entropy = softmax_policy(next_q, config.soft_temperature)
        reward = reward + rows["discount"] * config.soft_temperature * entropy
        if config.munchausen:
            q = permitted(self.means(self.target, rows["target_obs"]), rows["mask_now"])
            bonus = scaled_log_policy(q, rows["action"], config.soft_temperature, config.munchausen_floor)
            reward = reward + config.munchausen * bonus
        return reward, self.mean_over(target, probs)

    def means(self, network: ValueNetwork, x: Tensor) -> Tensor:
        """Return the mean return of each action, `[N, A]`, for features `[N, F]`."""
        return self.expected(self.distribution(self.read(network, x, self.mean_fraction)))

    def read(self, network: ValueNetwork, x: Tensor, fraction: Tensor | None) -> Tensor:
        """Return a network's outputs `[N, A]` for features `[N, F]`; only IQN's network uses `fraction`."""
        out, _ = network.forward(x, fraction=fraction)
        return out

    def distribution(self, values: Tensor) -> Tensor:
        """Convert a network's outputs to a distribution of the return; DQN returns the outputs unchanged."""
        return values

    def expected(self, distribution: Tensor) -> Tensor:
        """Return the mean of a distribution of the return; DQN returns its argument unchanged."""
        return distribution

    def of_action(self, values: Tensor, action: Tensor) -> Tensor:
        """Select the values `[N]` of the actions `[N, 1]` from the values `[N, A]` of all actions."""
        return values.gather(-1, action).squeeze(-1)

    def of_action_backward(self, values: Tensor, action: Tensor, slope: Tensor) -> Tensor:
        """Return d loss/d values, given `slope`, the gradient of the loss with respect to the result of `of_action`."""
        return torch.zeros_like(values).scatter_(-1, action, slope.unsqueeze(-1))

    def mean_over(self, values: Tensor, probs: Tensor) -> Tensor:
        """Return the mean of the actions' values `[N, A]`, weighted by the probabilities `probs` `[N, A]`: `[N]`."""
        return (probs * values).sum(-1)

    def errors(self, q: Tensor, reward: Tensor, next_q: Tensor, rows: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss `[N]`, its derivative with respect to `q`, and |TD error| `[N]`."""
        error = q - backed_up(reward, rows["discount"], next_q, self.config.rescale)
        return *(huber if self.config.loss == "huber" else half_square)(error), error.abs()

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        config = self.config
        values = {"epsilon": linear(env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps)}
        if config.noisy:  # noisy layers explore, so epsilon is not needed
            values["epsilon"] = 0.0
        return values | ({"temperature": config.temperature} if config.temperature else {})


def q_shape(config: Config, network: NetworkConfig, action: ActionSpec, features: int) -> QShape:
    """Return the shape of the Q network for these options."""
    return QShape(network, features, action.size, config.outputs, config.dueling, config.noisy)

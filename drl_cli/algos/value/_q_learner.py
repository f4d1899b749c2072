"""QLearner: the base class of DQN and of the algorithms derived from DQN. A subclass defines the loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner
from drl_cli.algos.steps import per_sequence
from drl_cli.algos.value._q_policy import q_shape
from drl_cli.losses.value import backed_up
from drl_cli.networks.q_network import QShape
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.schedules import linear
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch


class Random(NamedTuple):
    """The random numbers that one forward pass of a Q network uses. The default is no randomness.

    - `noise`: The noise `[size]` of the weights of each noisy part of the network, by the name of the part.
    - `masks`: The dropout masks of the part `online`.
    - `fraction`: For IQN, the fractions in (0, 1) of the returned quantiles: `[N, K]`, or `[K]` for all rows.
    """

    noise: Mapping[str, Tensor] = {}
    masks: Sequence[Tensor] = ()
    fraction: Tensor | None = None


NOT_RANDOM = Random()
"""No noise and no dropout."""


class Draws(NamedTuple):
    """The random numbers that the networks use in one update.

    - `online`: The online network uses them to evaluate `obs`.
    - `target`: The target network uses them to evaluate `next_obs` and, for the Munchausen bonus, `obs`.
    - `chooser`: The online network uses them to evaluate `next_obs`, from which double DQN chooses the next action.
    """

    online: Random
    target: Random
    chooser: Random


class QLearner(Learner):
    """Learns a Q network with the loss function that a subclass defines.

    A Q network consists of named parts, and its target network has parts of the same names. In DQN, `online` is the
    whole network. In IQN, it is the last layers, after `embedding` and, with several hidden layers, `trunk`. `shapes`
    has the shape of each part. The weights of a noisy part are mean + sigma * noise. The sigmas are a separate part of
    the parameters, whose name is `self.sigmas[name]`.
    """

    sigma_name = "sigma"
    """The name of the part with the sigmas of a noisy part. `{}` stands for the name of the noisy part."""
    inputs_per_row = 1
    """How many rows the part `online` evaluates for each row of a batch: 1, or for IQN one for each quantile."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        from drl_cli.networks import q_module  # imports torch

        self.num_actions, self.shapes = spec.action.size, self.network_shapes(spec)
        self.sigmas = {name: self.sigma_name.format(name) for name, shape in self.shapes.items() if shape.noisy}
        self.networks = {name: q_module.QNetwork(shape, self.init) for name, shape in self.shapes.items()}
        sigma_sizes = {sigma: self.networks[name].flat.numel() for name, sigma in self.sigmas.items()}
        parts: dict[str, Any] = {**self.networks, **sigma_sizes}  # Any: modules, and sizes of parts without a module
        self.build(policy=tuple(parts), lr=config.lr, targets=tuple(parts), **parts)
        self.online = self.networks["online"]
        for name, sigma in self.sigmas.items():  # `build` has set all sigmas to 0
            self.params[sigma].flat.copy_(self.networks[name].first_sigma())
            self.params.targets[sigma].copy()
        if config.noisy:
            self.noise = self.params.generator("noise", self.seed + 1)
        if self.network.dropout:
            self.dropout_generator = self.params.generator("dropout", self.seed + 2)
        self.gradients = Gradients(self.params, self.loss, self.context)

    def network_shapes(self, spec: EnvSpec) -> Mapping[str, QShape]:
        """Return the shape of each part of the Q network, by name, in the order in which the policy loads the parts."""
        return {"online": q_shape(self.config, self.network, spec.action, self.encoder.size)}

    @abstractmethod
    def loss(self, nets: Nets, rows: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (a scalar), and a dict with the metrics `q_loss` and `q_mean` and the priorities `td_error`.

        `rows` has the columns `[N, ...]` of the batch. The priorities are `[N]`.
        """

    def evaluate(self, nets: Nets, x: Tensor, random: Random) -> Tensor:
        """Return the outputs of the Q network in `nets` for features `x` `[N, F]`, using the random numbers `random`.

        The outputs are values `[N, A]`, or `[N, A, K]` if a distributional network has K outputs for each action.
        """
        return self.evaluate_part(nets, "online", x, random)

    def distribution(self, out: Tensor) -> Tensor:
        """Convert outputs `[..., K]` of the network to distributions of the return: probabilities or quantiles.

        The default returns `out` unchanged, because DQN has no distribution and QR-DQN's outputs are quantiles.
        """
        return out

    def expected(self, distribution: Tensor) -> Tensor:
        """Return the means `[...]` of distributions of the return `[..., K]`. DQN returns its values unchanged."""
        return distribution

    def backed_up(self, reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
        """Return reward + discount * next_q, `[N]` or `[N, K]` like `next_q`. `reward` and `discount` are `[N]`.

        With the option `rescale`, `next_q` and the result are rescaled values, see `drl_cli.losses.value.backed_up`.
        """
        reward, discount = append_axes(reward, next_q), append_axes(discount, next_q)
        target: Tensor = backed_up(reward, discount, next_q, self.config.rescale)
        return target

    def means(self, nets: Nets, x: Tensor, random: Random = NOT_RANDOM) -> Tensor:
        """Return the mean return of each action, `[N, A]`, for features `x` `[N, F]`."""
        out = self.evaluate(nets, x, random)
        return self.expected(self.distribution(out))

    def chosen_values(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the values `[N, ...]` of the actions `[N]`, given the values `[N, A, ...]` of all actions."""
        index = append_axes(action.unsqueeze(1), values).expand(-1, -1, *values.shape[2:])  # [N, 1, ...], for gather
        return values.gather(1, index).squeeze(1)

    def evaluate_part(self, nets: Nets, name: str, x: Tensor, random: Random) -> Tensor:
        """Return the outputs `[N, outputs]` of the part `name`, such as `online`, for inputs `x` `[N, inputs]`."""
        noise = random.noise.get(name)
        masks = random.masks if name == "online" else ()  # only this part has dropout
        sigma = None if noise is None else getattr(nets, self.sigmas[name])
        out: Tensor = getattr(nets, name)(x, masks, sigma, noise)
        return out

    def draw(self, rows: int) -> Draws:
        """Draw the random numbers for one update with a batch of `rows` rows."""
        masks: Sequence[Tensor] = ()
        if self.network.dropout:
            masks = self.masks(self.online, self.inputs_per_row * rows, self.dropout_generator)
        online: dict[str, Tensor] = {}  # the noise of each part's weights, by name, in each of the three forward passes
        target: dict[str, Tensor] = {}
        chooser: dict[str, Tensor] = {}
        if self.sigmas:
            sizes = [self.shapes[name].noise_size for name in self.sigmas]
            # All trainers draw the same normals, because the noise belongs to the weights and not to a row.
            normals = torch.randn((3, sum(sizes)), generator=self.noise, device=self.context.device)
            for name, part_normals in zip(self.sigmas, torch.split(normals, sizes, 1), strict=True):
                part_noise = self.networks[name].draw_noise(part_normals)  # [3, size]
                online[name], target[name], chooser[name] = part_noise[0], part_noise[1], part_noise[2]
        return Draws(Random(online, masks), Random(target), Random(chooser))

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        draws = self.draw(len(rows["reward"]))
        loss, found = self.gradients(rows, draws)
        if self.config.dueling:  # weights between the streams of value and advantages have to stay 0
            self.online.zero_between_streams_(self.params["online"].grad)
        self.optimizer.step(loss)
        if (counts.opt_steps + 1) % self.config.target_period == 0:  # + 1 counts the step just made
            self.params.follow(self.config.tau)
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        return Update(metrics, priorities=per_sequence(td_error, batch))

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        config = self.config
        epsilon = linear(env_steps, start=config.epsilon_start, end=config.epsilon_end, length=config.epsilon_steps)
        values = {"epsilon": 0.0 if config.noisy else epsilon}  # noisy layers explore without epsilon
        if config.temperature:
            values["temperature"] = config.temperature
        return values


def append_axes(x: Tensor, values: Tensor) -> Tensor:
    """Return `x` with axes of size 1 appended to its shape, so that it has as many axes as `values`."""
    ones = [1] * (values.ndim - x.ndim)
    return x.view(*x.shape, *ones)

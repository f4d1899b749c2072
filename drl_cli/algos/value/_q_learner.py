"""QLearner: the networks, the random numbers and the update of DQN and of the algorithms that derive from DQN."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, by_step
from drl_cli.algos.value._q_policy import q_shape
from drl_cli.networks.q_network import QShape
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.schedules import linear
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch


class Random(NamedTuple):
    """The random numbers of one network in one update."""

    noise: Mapping[str, Tensor] = {}  # part -> noise `[size]` of the part's weights (noisy networks)
    masks: Sequence[Tensor] = ()  # dropout masks of the part `online`
    fraction: Tensor | None = None  # IQN: the fractions `[N, K]` or `[K]` whose quantiles the network returns


NOT_RANDOM = Random()
"""No noise and no dropout."""


class Draws(NamedTuple):
    """The random numbers of the three forward passes of one update.

    `online` is for the online network at `obs`, `target` for the target network at `next_obs`, and `chooser` for the
    online network at `next_obs`, where double DQN chooses the next action.
    """

    online: Random
    target: Random
    chooser: Random


class QLearner(Learner):
    """Learns a Q network with the loss of a subclass.

    `shapes` maps the names of the network's parts to their shapes. The sigmas of a noisy part are a separate part of
    Params; `sigmas` maps the name of a noisy part to the name of the part with its sigmas.
    """

    sigma_name = "sigma"
    """Template of the name of the part with sigmas; `{}` stands for the name of the noisy part."""
    inputs_per_row = 1
    """Number of inputs of the part `online` for each row of a batch. IQN has one input for each quantile."""

    def setup(self, config: Any, spec: EnvSpec) -> None:
        from drl_cli.networks import q_module  # imports torch

        self.num_actions, self.shapes = spec.action.size, self.network_shapes(spec)
        self.sigmas = {name: self.sigma_name.format(name) for name, shape in self.shapes.items() if shape.noisy}
        self.networks = {name: q_module.QNetwork(shape, self.init) for name, shape in self.shapes.items()}
        sigma_sizes = {sigma: self.networks[name].flat.numel() for name, sigma in self.sigmas.items()}
        parts: dict[str, Any] = {**self.networks, **sigma_sizes}  # Any: modules, and sizes of parts without a module
        self.build(tuple(parts), config.lr, targets=tuple(parts), **parts)
        self.online = self.networks["online"]
        for name, sigma in self.sigmas.items():
            self.params[sigma].flat.copy_(self.networks[name].first_sigma())
            self.params.targets[sigma].copy()
        if config.noisy:
            self.noise = self.params.generator("noise", self.seed + 1)
        if self.network.dropout:
            self.dropout_generator = self.params.generator("dropout", self.seed + 2)
        self.gradients = Gradients(self.params, self.loss, self.context)

    def network_shapes(self, spec: EnvSpec) -> Mapping[str, QShape]:
        """Return the shapes of the parts of a Q network, in the order in which the policy reads them."""
        return {"online": q_shape(self.config, self.network, spec.action, self.encoder.size)}

    @abstractmethod
    def loss(self, nets: Nets, rows: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and a dict with the metrics `q_loss` and `q_mean` and the priorities `td_error` `[N]`."""

    def read(self, nets: Nets, x: Tensor, random: Random) -> Tensor:
        """Return a network's outputs for features `[N, F]`: `[N, A]`, or with K numbers for each action `[N, A, K]`."""
        return self.part(nets, "online", x, random)

    def distribution(self, out: Tensor) -> Tensor:
        """Convert a network's outputs to a distribution of the return. DQN returns the outputs unchanged."""
        return out

    def expected(self, distribution: Tensor) -> Tensor:
        """Return the mean of a distribution of the return. DQN returns the argument unchanged."""
        return distribution

    def means(self, nets: Nets, x: Tensor, random: Random = NOT_RANDOM) -> Tensor:
        """Return the mean return of each action, `[N, A]`, for features `[N, F]`."""
        return self.expected(self.distribution(self.read(nets, x, random)))

    def of_action(self, values: Tensor, action: Tensor) -> Tensor:
        """Select the values `[N, ...]` of the actions, int64 `[N]`, from the values `[N, A, ...]` of all actions."""
        index = like(action.unsqueeze(1), values).expand(-1, -1, *values.shape[2:])
        return values.gather(1, index).squeeze(1)

    def part(self, nets: Nets, name: str, x: Tensor, random: Random) -> Tensor:
        """Return the outputs of the part `name` of a Q network for inputs `x` `[N, inputs]`."""
        noise = random.noise.get(name)
        masks = random.masks if name == "online" else ()
        sigma = None if noise is None else getattr(nets, self.sigmas[name])
        out: Tensor = getattr(nets, name)(x, masks, sigma, noise)
        return out

    def draw(self, rows: int) -> Draws:
        """Return the random numbers of one update of `rows` rows."""
        masks: Sequence[Tensor] = ()
        if self.network.dropout:
            masks = self.masks(self.online, self.inputs_per_row * rows, self.dropout_generator)
        passes: list[dict[str, Tensor]] = [{}, {}, {}]  # one dict for each forward pass: part -> noise
        if self.sigmas:
            sizes = [self.shapes[name].noise_size for name in self.sigmas]
            # All trainers draw the same normals, because the noise belongs to the weights and not to a row.
            normals = torch.randn((3, sum(sizes)), generator=self.noise, device=self.context.device)
            for name, part_normals in zip(self.sigmas, torch.split(normals, sizes, 1), strict=True):
                part_noise = self.networks[name].draw_noise(part_normals)  # [3, size]
                for i, noise in enumerate(passes):
                    noise[name] = part_noise[i]
        online, target, chooser = passes
        return Draws(Random(online, masks), Random(target), Random(chooser))

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        loss, found = self.gradients(rows, self.draw(len(rows["reward"])))
        if self.config.dueling:
            self.online.zero_between_streams_(self.params["online"].grad)
        self.optimizer.step(loss)
        if (counts.opt_steps + 1) % self.config.target_period == 0:
            self.params.follow(self.config.tau)
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        return Update(metrics, by_step(td_error, batch))

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        config = self.config
        values = {"epsilon": linear(env_steps, config.epsilon_start, config.epsilon_end, config.epsilon_steps)}
        if config.noisy:  # noisy layers explore, so epsilon is not needed
            values["epsilon"] = 0.0
        return values | ({"temperature": config.temperature} if config.temperature else {})


def like(x: Tensor, values: Tensor) -> Tensor:
    """Append dimensions of size 1 to the shape of `x`, until `x` has as many dimensions as `values`."""
    return x.view(*x.shape, *[1] * (values.ndim - x.ndim))

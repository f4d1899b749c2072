"""BC: behavioural cloning. The actor maximises the likelihood of the data's actions (Pomerleau 1991).

The actor is a softmax for discrete actions, and a Gaussian for continuous actions. With `components` above 1, it is a
mixture of Gaussians, which can represent several ways to act in one state (Mandlekar et al. 2021, arXiv 2108.03298).
With `top` below 1, the actor learns only from this fraction of the episodes, those with the largest returns.
"""

from dataclasses import dataclass, replace

import numpy as np

from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.learner import Learner
from drl_cli.algos.offline._gaussian import LOG_STD_MAX, LOG_STD_MIN
from drl_cli.algos.on_policy._actor import distribution as actions
from drl_cli.algos.policy import NetworkPolicy, sample_choices
from drl_cli.losses.critics import mean
from drl_cli.losses.distributions import Gaussian
from drl_cli.losses.policy import permitted
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.networks.head import Head
from drl_cli.networks.mlp import mlp_shapes
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import ActionSpec, Array, Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Fraction, Positive

ACTIONS = ("box", "discrete", "multidiscrete")
MODES = ("offline",)
TABLES = ("uniform", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(AlgoConfig):
    """Options of BC."""

    lr: Positive
    components: Count
    top: Fraction


def sizes(config: Config, action: ActionSpec) -> tuple[int, int]:
    """Return the number of the actor's outputs, and the number of log standard deviations.

    The outputs of a mixture of K Gaussians are the means `[K, A]`, followed by K logits.
    """
    if action.kind != "box":
        return action.size, 0
    means = config.components * action.size
    logits = config.components if config.components > 1 else 0
    return means + logits, means


class Policy(NetworkPolicy):
    """The actor. Its greedy action is the mean of the most likely Gaussian, or the most likely discrete action."""

    is_squashed = True

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        outputs, stds = sizes(config, spec.action)
        self.components = config.components if spec.action.kind == "box" else 1
        self.shapes = [*mlp_shapes(self.encoder.width, network.hidden, outputs, network.layer_norm), (stds,)]
        self.std = np.zeros((0, 0), np.float32)

    def load(self, params: Array) -> None:
        super().load(params)
        *self.params, log_std = self.params
        self.std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)).reshape(self.components, -1)

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        if self.action.kind != "box":
            return {"action": sample_choices(permitted(out, action_mask(obs)), self.action.choices, self.rng), **memory}
        chosen = sample_choices(self.logits(out), (self.components,), self.rng)
        mean, std = self.means(out, chosen), self.std[chosen]
        action = mean + std * self.rng.standard_normal(std.shape, np.float32)
        return {"action": np.clip(action, -1.0, 1.0), **memory}

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        if self.components == 1:
            return super().greedy(obs, last)
        out, _ = self.forward(obs, last)
        return self.means(out, self.logits(out).argmax(-1))

    def logits(self, out: Array) -> Array:
        """Return the logits `[n, K]` of the mixture, given the actor's outputs `[n, outputs]`."""
        return out[:, self.std.size :] if self.components > 1 else np.zeros((len(out), 1), np.float32)

    def means(self, out: Array, chosen: Array) -> Array:
        """Return the means `[n, A]` of the Gaussians with the indices `chosen`, int64 `[n]`."""
        means = out[:, : self.std.size].reshape(len(out), self.components, -1)
        return np.asarray(np.tanh(means[np.arange(len(out)), chosen]))

    def exported_head(self) -> Head:
        head = super().exported_head()
        return replace(head, layers=self.params, components=self.components) if self.components > 1 else head


class Algorithm(Learner):
    """Learns the actor and the encoder in a trainer."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.action = spec.action
        outputs, stds = sizes(config, spec.action)
        self.build(("actor", "log_std"), config.lr, actor=self.mlp(outputs), log_std=stds)
        self.gradients = Gradients(self.params, self.loss, self.context)

    def log_prob(self, nets: Nets, out: Tensor, rows: Batch) -> Tensor:
        """Return the log-probability `[B]` of the data's actions, given the actor's outputs `[B, outputs]`."""
        action, num = rows["action"], self.config.components
        log_stds = nets.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        if self.action.kind != "box":
            result: Tensor = actions(self.action, False, out, None, rows["mask_now"]).log_prob(action)
        elif num == 1:
            result = Gaussian(out.tanh(), log_stds).log_prob(action)
        else:
            means = out[:, : len(log_stds)].tanh().view(len(out), num, -1)  # [B, K, A]
            logits = out[:, len(log_stds) :]
            each = Gaussian(means, log_stds.view(num, -1)).log_prob(action.unsqueeze(1))  # [B, K]
            result = (logits.log_softmax(-1) + each).logsumexp(-1)
        return result

    def loss(self, nets: Nets, rows: Batch, random: None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the mean log-probability of the data's actions."""
        out = nets.actor(self.see(nets, rows).learned)
        loss = -mean(self.log_prob(nets, out, rows), rows.get("valid_weight"))
        return loss, {"actor_loss": loss}

    def update(self, batch: Batch, counts: Counts) -> Update:
        loss, metrics = self.gradients(self.rows(batch))
        self.optimizer.step(loss)
        return Update(metrics)

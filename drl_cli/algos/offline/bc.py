"""BC: behavioural cloning. The actor maximises the likelihood of the dataset's actions (Pomerleau 1991).

The actor is a softmax for discrete actions and a Gaussian for continuous actions. With `components` above 1, the actor
is a mixture of Gaussians, which can represent several ways to act in one state (Mandlekar et al. 2021, arXiv
2108.03298). `top` is the fraction of the episodes to learn from: 0.1 selects the tenth with the largest returns.
"""

from dataclasses import dataclass, replace

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.offline._gaussian import LOG_STD_MAX, LOG_STD_MIN
from drl_cli.algos.on_policy._actor import distribution
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
from drl_cli.utils.ranges import Count, Fraction

ACTIONS = ("box", "discrete", "multidiscrete")
MODES = ("offline",)
TABLES = ("uniform", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """The options of BC, which conf/algo/bc.yaml explains."""

    components: Count
    top: Fraction


def actor_sizes(config: Config, action: ActionSpec) -> tuple[int, int]:
    """Return the number of the actor's outputs, and the number of its log standard deviations.

    For discrete actions, the outputs are one logit for each action, and there are no standard deviations. For K
    Gaussians over actions with A dimensions, the outputs are the K A means `[K, A]`, followed by the K logits of the
    mixture if K > 1. Each mean has one log standard deviation, a parameter that does not depend on the state.
    """
    if action.kind != "box":
        return action.size, 0
    means = config.components * action.size
    logits = config.components if config.components > 1 else 0
    return means + logits, means


class Policy(NetworkPolicy):
    """The actor: a softmax, a Gaussian or a mixture of Gaussians.

    Its greedy action is the most likely discrete action, or the mean of the Gaussian with the largest logit. Sampled
    actions are clipped to [-1, 1]. `std` `[K, A]` has the standard deviations of K Gaussians.
    """

    is_squashed = True

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        outputs, stds = actor_sizes(config, spec.action)
        self.components = config.components if spec.action.kind == "box" else 1
        layers = mlp_shapes(self.encoder.size, network.hidden, outputs, layer_norm=network.layer_norm)
        self.shapes = [*layers, (stds,)]  # the layers, and then the log standard deviations
        self.std = np.zeros((0, 0), np.float32)

    def load(self, params: Array) -> None:
        super().load(params)
        *layers, log_std = self.params  # as in `shapes`
        self.params = layers
        self.std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)).reshape(self.components, -1)

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        if self.action.kind != "box":
            logits = permitted(out, action_mask(obs))
            return {"action": sample_choices(logits, self.action.choices, self.rng), **memory}
        component = sample_choices(self.mixture_logits(out), (self.components,), self.rng)  # one of the K Gaussians
        mean, std = self.mean_of(out, component), self.std[component]
        action = mean + std * self.rng.standard_normal(std.shape, np.float32)
        return {"action": np.clip(action, -1.0, 1.0), **memory}

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        if self.components == 1:
            return super().greedy(obs, last)
        out, _ = self.forward(obs, last)
        return self.mean_of(out, self.mixture_logits(out).argmax(-1))

    def mixture_logits(self, out: Array) -> Array:
        """Return the logits `[E, K]` of the K Gaussians from the actor's outputs `[E, outputs]`; return 0 if K is 1."""
        return out[:, self.std.size :] if self.components > 1 else np.zeros((len(out), 1), np.float32)

    def mean_of(self, out: Array, component: Array) -> Array:
        """Return the mean `[E, A]` of one Gaussian in each of E states, given the actor's outputs `[E, outputs]`.

        `component`, int64 `[E]`, is the index of the Gaussian in each state.
        """
        means = out[:, : self.std.size].reshape(len(out), self.components, -1)  # [E, K, A]
        chosen: Array = means[np.arange(len(out)), component]  # [E, A]
        return np.tanh(chosen)

    def exported_head(self) -> Head:
        head = super().exported_head()
        if self.components == 1:
            return head
        return replace(head, layers=self.params, components=self.components)


class Algorithm(Learner):
    """Trains the actor and the encoder of the observations."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.action = spec.action
        outputs, stds = actor_sizes(config, spec.action)
        self.build(policy=("actor", "log_std"), lr=config.lr, actor=self.mlp(outputs), log_std=stds)
        self.gradients = Gradients(self.params, self.loss, self.context)

    def log_prob(self, nets: Nets, out: Tensor, rows: Batch) -> Tensor:
        """Return the log-probabilities of the batch's discrete actions, or the log-densities of its box actions, `[B]`.

        `out` `[B, outputs]` are the actor's outputs.
        """
        action, components = rows["action"], self.config.components
        log_stds = nets.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        if self.action.kind != "box":
            policy = distribution(self.action, squash=False, out=out, log_std=None, mask=rows["mask_now"])
            log_prob: Tensor = policy.log_prob(action)
        elif components == 1:
            log_prob = Gaussian(out.tanh(), log_stds).log_prob(action)
        else:
            means = out[:, : len(log_stds)].tanh().view(len(out), components, -1)  # [B, K, A]
            logits = out[:, len(log_stds) :]  # [B, K]
            gaussians = Gaussian(means, log_stds.view(components, -1))
            log_probs = gaussians.log_prob(action.unsqueeze(1))  # [B, K]
            log_prob = (logits.log_softmax(-1) + log_probs).logsumexp(-1)
        return log_prob

    def loss(self, nets: Nets, rows: Batch, random: None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the mean log-probability of the batch's actions (a scalar), and metrics. `random` is unused."""
        out = nets.actor(self.see(nets, rows).learned)
        loss = -mean(self.log_prob(nets, out, rows), rows.get("valid_weight"))
        return loss, {"actor_loss": loss}

    def update(self, batch: Batch, counts: Counts) -> Update:
        loss, metrics = self.gradients(self.rows(batch))
        self.optimizer.step(loss)
        return Update(metrics)

"""FQL: Flow Q-Learning (Park et al. 2025, arXiv 2502.02538).

Two policies turn normal noise into an action. The flow policy imitates the data (flow matching): its network predicts a
velocity, which moves the noise to an action in several small steps. The flow policy can represent several ways to act
in one state. The actor needs only one step. Its loss has two terms: the distance from the flow policy's action for the
same noise, and minus Q. No gradient flows through the steps of the flow. Workers and evaluations use only the actor.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from drl_cli.algos.base import Batch, Counts, Update
from drl_cli.algos.learner import Learner, LearnerConfig
from drl_cli.algos.off_policy._actors import Random
from drl_cli.algos.offline._scale import mean_abs
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.losses.critics import mean, twin_critics
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp import mlp_numpy, mlp_shapes
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative

ACTIONS = ("box",)
TABLES = ("uniform", "prioritized", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """The options of FQL, which conf/algo/fql.yaml explains."""

    tau: Fraction
    alpha: NonNegative
    flow_steps: Count
    next_q: Literal["mean", "min"]
    normalize_q: bool


class Policy(NetworkPolicy):
    """The one-step actor, an MLP from features and noise to an action. Evaluations use noise 0.

    `all_params` has the parameters of this MLP. `params`, which the base class evaluates for greedy actions, lacks the
    weights that multiply the noise. This gives the actions for noise 0.
    """

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        size = spec.action.size
        self.shapes = mlp_shapes(self.encoder.size + size, network.hidden, size, layer_norm=network.layer_norm)
        self.all_params: list[Array] = []

    def load(self, params: Array) -> None:
        super().load(params)
        self.all_params = self.params
        first_weight, *others = self.params  # the first weight is [features + noise, units]
        self.params = [first_weight[: self.encoder.size], *others]

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        features, memory = self.encoder(obs, last)
        noise = self.rng.standard_normal((len(features), self.action.size), np.float32)
        inputs = np.concatenate([features, noise], 1)
        action = mlp_numpy(self.all_params, inputs, self.network.activation)
        return {"action": np.clip(action, -1.0, 1.0), **memory}


class Algorithm(Learner):
    """Trains the one-step actor, the flow policy and twin critics."""

    averages_in_loss = True

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.size = spec.action.size
        # `critics` makes MLPs of two inputs. Here, the second input is the actor's noise, or the flow's point and time.
        actor = self.critics(self.size, self.size)
        flow = self.critics(self.size, self.size + 1)
        self.critic = self.critics(1, self.size, ensemble=2, norms=True)
        self.build(policy=("actor",), lr=config.lr, targets=("critic",), actor=actor, flow=flow, critic=self.critic)
        self.noise = self.params.generator("noise", self.seed + 1)
        self.gradients = Gradients(self.params, self.loss, self.context)

    def loss(self, nets: Nets, rows: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses of critics, flow and actor (algorithm 1), and a dict.

        The dict has metrics and the priorities `td_error` `[B]`. `random` has dropout masks of the critics, normal
        noise `action` `[B, 3 A]`, and `time` `[B, 1]`, uniform in [0, 1).
        """
        config, view, valid = self.config, self.see(nets, rows), rows.get("valid_weight")  # `valid` is 0 for padding
        action, obs = rows["action"], view.obs
        next_noise, flow_start, noise = random["action"].chunk(3, -1)
        with torch.no_grad():
            next_action = nets.actor(view.next_obs, next_noise).clamp(-1.0, 1.0)
            next_obs = self.see_target(nets, rows, view).next_obs
            next_q = nets.target.critic(next_obs, next_action, random["target_masks"]).squeeze(-1)  # [2, B]
            next_q = next_q.mean(0) if config.next_q == "mean" else next_q.amin(0)
            target = rows["reward"] + rows["discount"] * next_q
        q = nets.critic(view.learned, action, random["masks"]).squeeze(-1)  # [2, B]
        critic_loss = twin_critics(q, target, rows.get("weight"))

        time = random["time"]
        point = (1.0 - time) * flow_start + time * action  # on the straight line from the noise to the batch's action
        velocity = nets.flow(obs, torch.cat([point, time], -1))
        flow_error = velocity - (action - flow_start)
        flow_loss = mean(flow_error.square().mean(-1), valid)

        own_action = nets.actor(obs, noise)
        difference = own_action - self.flow_action(nets, obs, noise)
        distance = mean(difference.square().mean(-1), valid)
        own_qs = nets.frozen.critic(obs, own_action.clamp(-1.0, 1.0), random["masks"]).squeeze(-1)  # [2, B]
        own_q = own_qs.mean(0)
        q_term = mean(own_q, valid)
        if config.normalize_q:
            q_term = q_term / mean_abs(own_q, valid, self.context)
        actor_loss = config.alpha * distance - q_term
        metrics = {"critic_loss": critic_loss, "flow_loss": flow_loss, "actor_loss": actor_loss}
        metrics |= {"distance": distance, "q_mean": mean(q, valid), "td_error": (q - target).abs().mean(0)}
        return critic_loss + flow_loss + actor_loss, metrics

    def flow_action(self, nets: Nets, obs: Tensor, noise: Tensor) -> Tensor:
        """Return the flow policy's actions `[B, A]` for the features `obs` `[B, F]` and normal noise `[B, A]`.

        `flow_steps` steps of Euler's method integrate the velocity from time 0 to time 1. No gradient is computed.
        """
        steps, action = self.config.flow_steps, noise
        with torch.no_grad():
            for i in range(steps):
                time = torch.full_like(action[:, :1], i / steps)  # [B, 1]
                velocity = nets.flow(obs, torch.cat([action, time], -1))
                action = action + velocity / steps
            return action.clamp(-1.0, 1.0)

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = self.rows(batch)
        num = len(rows["reward"])
        noise, time = self.context.randn(num, 3 * self.size, self.noise), self.context.rand(num, 1, self.noise)
        random: Random = {"action": noise, "time": time, **self.critic_masks(self.critic, num, self.noise)}
        loss, found = self.gradients(rows, random)
        return self.finish(loss, found, batch)

"""ModelLearner: learns the networks of MuZero from windows of steps with the results of stored searches.

Representation h maps observations to latent states, dynamics g predicts the next latent state and the reward, and
prediction f gives policy and value. Shapes: B windows of L steps, K unrolled steps, latent states of size Z.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drl_cli.algos.base import AlgoConfig, Algorithm, Batch, Counts, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.model_based._model import (
    SearchModel,
    Support,
    build_heads,
    build_networks,
    encoded,
    make_model,
    no_memory,
)
from drl_cli.algos.model_based._targets import unroll_targets
from drl_cli.losses.critics import mean
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import EnvSpec, map_parts
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Natural, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class ModelConfig(AlgoConfig):
    """Options of all algorithms that search with a learned model."""

    lr: Positive
    simulations: Natural
    unroll_steps: Count
    support: Count
    value_weight: NonNegative
    consistency: NonNegative
    value_prefix: bool
    fresh_values: bool
    reanalyze: Fraction
    target_period: Count

    def window_problems(self, seq_len: int) -> Iterator[str]:
        needed = self.unroll_steps + self.n_step + 1
        if seq_len < needed:
            yield (
                f"replay.seq_len={seq_len} is below {needed} = algo.unroll_steps {self.unroll_steps} + algo.n_step "
                f"{self.n_step} + 1, the steps of a window that {self.name} learns from; say replay.seq_len={needed}"
            )


class ModelLearner(Algorithm):
    """Learns a model for discrete actions. A subclass defines `search`, which re-analysis needs."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        self.config, self.context, self.action = config, context, spec.action
        networks = build_networks(config, network, spec, self.policy_size(spec))
        heads = build_heads(network) if config.consistency else {}
        self.params = Params(context, **networks, **heads)
        self.policy_parts = tuple(networks)
        self.optimizer = Optimizer(self.params, dict.fromkeys((*networks, *heads), config.lr), context)
        self.support = Support(config.support, context.device)
        self.random = self.params.generator("noise", seed + 1)
        self.gradients = Gradients(self.params, self.loss, context)
        self.is_one_step = not config.reanalyze  # an update with a search cannot be compiled
        self.has_targets = config.reanalyze > 0.0 or config.fresh_values
        if self.has_targets:
            targets = {name: self.params.target(name) for name in self.policy_parts}
            self.target_model = make_model(Nets(targets), config, self.support, spec.action)

    def policy_size(self, spec: EnvSpec) -> int:
        """Return the number of the policy's parameters in one state, such as the number of logits."""
        return spec.action.size

    @abstractmethod
    def search(self, model: SearchModel, obs: Any) -> dict[str, Tensor]:  # Any: a tensor, or a dict of tensors
        """Search without noise from observations `[N, ...]`, and return the columns that a policy stores in replay."""

    def policy_loss(self, out: Tensor, target: Tensor, rows: Batch) -> Tensor:
        """Return the cross-entropy `[B, K + 1]` of predicted logits and policies of searches, `[B, K + 1, A]` each."""
        return -(target * out.log_softmax(-1)).sum(-1)

    def loss(self, nets: Nets, rows: Batch, random: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return MuZero's loss (equation 1): the sum over K unrolled steps of the losses of reward, value and policy.

        The loss of each step after the first has the factor 1/K, and the gradient is halved in each step of the
        dynamics (appendix G). `random` `[B, K]` chooses the actions after the end of an episode. The dict has metrics
        and the priorities `td_error` `[B]`.

        With `value_prefix`, the target after k actions is the sum of the first k rewards in place of the k-th reward.
        """
        config = self.config
        targets = unroll_targets(rows, config.n_step, config.unroll_steps)
        policy, value, reward, latent = self.unroll(nets, rows, self.actions(rows, targets.is_past_end, random))
        steps = reward.shape[1]
        value_loss = masked(self.support.loss(value, targets.value), targets.has_value)
        policy_loss = masked(self.policy_loss(policy, targets.policy, rows), targets.has_policy)
        reward_target = targets.reward.cumsum(1) if config.value_prefix else targets.reward
        reward_loss = masked(self.support.loss(reward, reward_target), targets.has_reward).mean(1)
        value_loss = value_loss[:, 0] + value_loss[:, 1:].sum(1) / steps
        policy_loss = policy_loss[:, 0] + policy_loss[:, 1:].sum(1) / steps
        window_loss = reward_loss + config.value_weight * value_loss + policy_loss  # [B]
        consistency = {}
        if config.consistency:
            consistency_loss = self.consistency_loss(nets, rows, latent)
            window_loss = window_loss + config.consistency * consistency_loss
            consistency = {"consistency_loss": consistency_loss.mean()}
        loss = mean(window_loss, rows.get("weight"))
        with torch.no_grad():
            root_value = self.support.mean(value[:, 0])
            td_error = masked((root_value - targets.value[:, 0]).abs(), targets.has_value[:, 0])
        metrics = {"reward_loss": reward_loss.mean(), "value_loss": value_loss.mean()}
        metrics |= {"policy_loss": policy_loss.mean(), "value_mean": root_value.mean(), **consistency}
        return loss, {"model_loss": loss, **metrics, "td_error": td_error}

    def consistency_loss(self, nets: Nets, rows: Batch, latent: Tensor) -> Tensor:
        """Return EfficientZero's consistency loss, the mean over K steps, `[B]` (Ye et al. 2021, arXiv 2111.00210).

        The loss is the negative cosine similarity of two vectors, as in SimSiam. The first comes from the unrolled
        latent state `[B, K, Z]`, through projection and predictor. The second comes from the observation of the same
        step, through representation and projection, without a gradient (eq. 2). Steps after the window have no loss.
        """
        steps = min(latent.shape[1], rows["valid"].shape[1] - 1)
        obs = map_parts(lambda x: x[:, 1 : steps + 1], rows["obs"])
        target = nets.frozen.projection(nets.frozen.representation(obs))
        predicted = nets.predictor(nets.projection(latent[:, :steps]))
        similarity = torch.cosine_similarity(predicted, target, -1)
        return -masked(similarity, rows["valid"][:, 1 : steps + 1]).sum(1) / latent.shape[1]

    def unroll(self, nets: Nets, rows: Batch, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Encode the first observation of each window, and unroll the dynamics over K actions `[B, K, A]`.

        Return the policies' parameters `[B, K + 1, P]`, the logits of values `[B, K + 1, S]` and rewards `[B, K, S]`,
        and the latent states after each action `[B, K, Z]`.
        With `value_prefix`, the logits of rewards are those of the sums of the rewards so far.
        """
        latent = nets.representation(map_parts(lambda x: x[:, 0], rows["obs"]))
        predictions, rewards, latents = [nets.prediction(latent)], [], []
        memory = no_memory(latent) if self.config.value_prefix else None
        for action in actions.unbind(1):
            latent, reward = nets.dynamics(halved(latent), action)
            if memory is not None:
                reward, memory = nets.value_prefix(latent, memory)
            predictions.append(nets.prediction(latent))
            rewards.append(reward)
            latents.append(latent)
        policy, value = (torch.stack(each, 1) for each in zip(*predictions, strict=True))
        return policy, value, torch.stack(rewards, 1), torch.stack(latents, 1)

    def actions(self, rows: Batch, is_past_end: Tensor, random: Tensor) -> Tensor:
        """Return the encoded actions `[B, K, A]` of K unrolled steps. Actions after the end of an episode are random.

        `is_past_end`, bool with at least K columns, is True after the end. `random` `[B, K]` is uniform in [0, 1).
        """
        steps = random.shape[1]
        drawn = (random * self.action.size).long()
        return encoded(torch.where(is_past_end[:, :steps], drawn, rows["action"][:, :steps]), self.action)

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = as_windows(batch)
        if self.has_targets and counts.opt_steps % self.config.target_period == 0:
            self.params.follow(1.0)
        if self.config.fresh_values:
            rows |= self.fresh_values(rows)
        if self.config.reanalyze:
            rows = self.reanalyzed(rows)
        num, length = rows["valid"].shape
        random = self.context.rand(num, min(self.config.unroll_steps, length), self.random)
        loss, found = self.gradients(rows, random)
        self.optimizer.step(loss)
        metrics = dict(found)
        td_error = metrics.pop("td_error")
        return Update(metrics, td_error.unsqueeze(1).expand(num, length) if "valid" in batch else td_error)

    def fresh_values(self, rows: Batch) -> dict[str, Tensor]:
        """Return the columns `root_value` and `has_root` `[B, L]`, with the target networks' value of every step."""
        with torch.no_grad():
            value = self.target_model.root(map_parts(lambda x: x.flatten(0, 1), rows["obs"]))[2]
        return {"root_value": value.view_as(rows["reward"]), "has_root": torch.ones_like(rows["valid"])}

    def reanalyzed(self, rows: dict[str, Any]) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Return the rows with new policies and root values in the fraction `reanalyze` of the windows.

        The chosen windows are evenly spaced in the batch.
        """
        num, length = rows["valid"].shape
        count = torch.arange(1, num + 1, device=rows["valid"].device).double() * self.config.reanalyze
        is_chosen = count.floor() > (count - self.config.reanalyze).floor()  # where the count reaches the next integer
        chosen = is_chosen.nonzero().squeeze(1)
        columns = self.search(self.target_model, map_parts(lambda x: x[chosen].flatten(0, 1), rows["obs"]))
        for name, column in columns.items():
            new = column.to(rows[name]).view(len(chosen), length, *rows[name].shape[2:])
            rows[name] = rows[name].index_copy(0, chosen, new)
        rows["is_random"] = rows["is_random"].index_fill(0, chosen, False)
        rows["has_root"] = rows["has_root"].index_fill(0, chosen, True)
        return rows


def as_windows(batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
    """Return the columns of windows `[B, L, ...]`. The transitions of a batch become windows of one step.

    The new column `has_root`, bool `[B, L]`, is True for steps that have a root value.
    """
    rows = dict(batch)
    if "valid" not in rows:
        rows = {name: column if name == "weight" else map_parts(unsqueezed, column) for name, column in batch.items()}
        rows["valid"] = torch.ones_like(rows["terminated"])
    return {**rows, "has_root": ~rows["is_random"]}


def unsqueezed(column: Tensor) -> Tensor:
    return column.unsqueeze(1)


def masked(loss: Tensor, mask: Tensor) -> Tensor:
    """Return the loss, with 0 where the mask is False."""
    return torch.where(mask, loss, 0.0)


def halved(latent: Tensor) -> Tensor:
    """Return the same values; the gradient through them is halved."""
    return 0.5 * latent + 0.5 * latent.detach()

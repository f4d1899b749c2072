"""ModelLearner: trains the networks of MuZero from windows, which are L consecutive steps of an episode.

MuZero has three networks. The representation maps an observation to a latent state `[Z]`. The dynamics map a latent
state and an action to the next latent state and the reward. The prediction maps a latent state to a policy and a value.
A batch has B windows. Each step has the results of the tree search that chose its action: a policy and a root value.
A step with a random action had no search. Its results are zeros, which the loss leaves out. The loss unrolls the
dynamics over the first K actions of a window.
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
    action_inputs,
    build_heads,
    build_networks,
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
    """The options that all variants of MuZero share. conf/algo/muzero.yaml explains them."""

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
    """Trains MuZero's networks for discrete actions. A subclass defines `search`, which re-analysis calls.

    Re-analysis replaces the stored results of a search by the results of a new search with the target networks. For
    other actions, a subclass overrides `policy_size`, `policy_loss` and `actions`.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        self.config, self.context, self.action = config, context, spec.action
        networks = build_networks(config, network, spec, self.policy_size(spec))
        heads = build_heads(network) if config.consistency else {}  # only the loss needs them
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
        """Return the number of outputs that give the policy in one state. Here, it is one logit for each action."""
        return spec.action.size

    @abstractmethod
    def search(self, model: SearchModel, obs: Any) -> dict[str, Tensor]:  # Any: a tensor, or a dict of tensors
        """Search from observations `[N, ...]` without exploration, and return the columns that the policy stores.

        The columns `[N, ...]` are those of `SearchPolicy.stored`, such as `policy` and `root_value`.
        """

    def policy_loss(self, out: Tensor, target: Tensor, rows: Batch) -> Tensor:
        """Return the loss of the predicted policies, `[B, K + 1]`: the cross-entropy with the policies of the searches.

        `out` `[B, K + 1, A]` are the predicted logits, and `target` `[B, K + 1, A]` are the searches' probabilities.
        Subclasses also use other columns of `rows`.
        """
        return -(target * out.log_softmax(-1)).sum(-1)

    def loss(self, nets: Nets, rows: Batch, random: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return MuZero's loss (a scalar, equation 1), and a dict with metrics and the priorities `td_error` `[B]`.

        The loss of a window is the sum of the losses of reward and policy, and of the weighted losses of value and
        consistency. Value and policy have a loss in each of K + 1 latent states; all after the first are divided by K.
        The reward's loss is the mean over the K actions. The loss of an unknown target is 0. Each step of the dynamics
        halves the gradient (appendix G). `random` `[B, K]`, uniform in [0, 1), chooses the actions after the end of an
        episode. With `value_prefix`, the target after k actions is the sum of the first k rewards, not the k-th reward.
        """
        config = self.config
        targets = unroll_targets(rows, config.n_step, config.unroll_steps)
        actions = self.actions(rows, targets.is_past_end, random)
        policy, value, reward, latent = self.unroll(nets, rows, actions)
        num_actions = reward.shape[1]
        value_losses = masked(self.support.loss(value, targets.value), targets.has_value)  # [B, K + 1]
        policy_losses = masked(self.policy_loss(policy, targets.policy, rows), targets.has_policy)  # [B, K + 1]
        reward_target = targets.reward.cumsum(1) if config.value_prefix else targets.reward
        reward_losses = masked(self.support.loss(reward, reward_target), targets.has_reward)  # [B, K]
        reward_loss = reward_losses.mean(1)
        value_loss = value_losses[:, 0] + value_losses[:, 1:].sum(1) / num_actions
        policy_loss = policy_losses[:, 0] + policy_losses[:, 1:].sum(1) / num_actions
        window_loss = reward_loss + config.value_weight * value_loss + policy_loss  # [B]
        consistency = {}
        if config.consistency:
            consistency_loss = self.consistency_loss(nets, rows, latent)
            window_loss = window_loss + config.consistency * consistency_loss
            consistency = {"consistency_loss": consistency_loss.mean()}
        loss = mean(window_loss, rows.get("weight"))
        with torch.no_grad():
            root_value = self.support.scalars(value[:, 0])
            td_error = masked((root_value - targets.value[:, 0]).abs(), targets.has_value[:, 0])
        metrics = {"reward_loss": reward_loss.mean(), "value_loss": value_loss.mean()}
        metrics |= {"policy_loss": policy_loss.mean(), "value_mean": root_value.mean(), **consistency}
        return loss, {"model_loss": loss, **metrics, "td_error": td_error}

    def consistency_loss(self, nets: Nets, rows: Batch, latent: Tensor) -> Tensor:
        """Return EfficientZero's consistency loss of each window, `[B]` (Ye et al. 2021, arXiv 2111.00210, sec. 4.1).

        The loss compares the unrolled latent states `latent` `[B, K, Z]` with the observations of the same steps. It is
        the negative cosine similarity of two vectors, as in SimSiam, averaged over K steps. One vector is the latent
        state after projection and predictor. The other is the observation after representation and projection, without
        a gradient. Steps after the end of the window or the episode have loss 0.
        """
        steps = min(latent.shape[1], rows["valid"].shape[1] - 1)
        obs = map_parts(lambda x: x[:, 1 : steps + 1], rows["obs"])
        target = nets.frozen.projection(nets.frozen.representation(obs))
        predicted = nets.predictor(nets.projection(latent[:, :steps]))
        similarity = torch.cosine_similarity(predicted, target, -1)
        return -masked(similarity, rows["valid"][:, 1 : steps + 1]).sum(1) / latent.shape[1]

    def unroll(self, nets: Nets, rows: Batch, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Encode the first observation of each window, and apply the dynamics to `actions` `[B, K, A]`.

        Return four tensors: the outputs of the policy `[B, K + 1, P]`, the logits of the values `[B, K + 1, S]`, the
        logits of the rewards `[B, K, S]`, and the latent states after each action `[B, K, Z]`. S is the number of bins
        of rewards and values. With `value_prefix`, each reward is replaced by the sum of the rewards so far.
        """
        first_obs = map_parts(lambda x: x[:, 0], rows["obs"])
        latent = nets.representation(first_obs)
        predictions, rewards, latents = [nets.prediction(latent)], [], []
        memory = no_memory(latent) if self.config.value_prefix else None
        for action in actions.unbind(1):
            latent, reward = nets.dynamics(halved(latent), action)
            if memory is not None:
                reward, memory = nets.value_prefix(latent, memory)
            predictions.append(nets.prediction(latent))
            rewards.append(reward)
            latents.append(latent)
        policies, values = zip(*predictions, strict=True)
        return torch.stack(policies, 1), torch.stack(values, 1), torch.stack(rewards, 1), torch.stack(latents, 1)

    def actions(self, rows: Batch, is_past_end: Tensor, random: Tensor) -> Tensor:
        """Return the first K actions of each window, `[B, K, A]`, one-hot. Actions after the episode's end are random.

        `is_past_end`, bool with at least K columns, is True after the end. `random` `[B, K]` is uniform in [0, 1).
        """
        num = random.shape[1]
        random_actions = (random * self.action.size).long()
        actions = torch.where(is_past_end[:, :num], random_actions, rows["action"][:, :num])
        return action_inputs(actions, self.action)

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = as_windows(batch)
        if self.has_targets and counts.opt_steps % self.config.target_period == 0:
            self.params.follow(1.0)  # copies the networks to the target networks, which compute this update's targets
        if self.config.fresh_values:
            rows |= self.fresh_values(rows)
        if self.config.reanalyze:
            rows = self.reanalyzed(rows)
        num_windows, length = rows["valid"].shape
        random = self.context.rand(num_windows, min(self.config.unroll_steps, length), self.random)
        loss, found = self.gradients(rows, random)
        self.optimizer.step(loss)
        metrics = dict(found)
        priorities = metrics.pop("td_error")
        if "valid" in batch:  # windows: all steps of a window get its priority
            priorities = priorities.unsqueeze(1).expand(num_windows, length)
        return Update(metrics, priorities=priorities)  # [B], or [B, L] for windows

    def fresh_values(self, rows: Batch) -> dict[str, Tensor]:
        """Return columns that replace the root values of searches: `root_value` and `has_root`, `[B, L]` each.

        `root_value` has the values that the target networks predict for all steps. `has_root` is True.
        """
        flat_obs = map_parts(lambda x: x.flatten(0, 1), rows["obs"])  # [B L, ...]
        with torch.no_grad():
            _, _, value = self.target_model.root(flat_obs)
        return {"root_value": value.view_as(rows["reward"]), "has_root": torch.ones_like(rows["valid"])}

    def reanalyzed(self, rows: dict[str, Any]) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Search again from every step of some windows. Replace the results in `rows`, and return `rows`.

        The fraction `config.reanalyze` of the windows is searched again. These windows are evenly spaced in the batch.
        """
        num_windows, length = rows["valid"].shape
        fraction = self.config.reanalyze
        number = torch.arange(1, num_windows + 1, device=rows["valid"].device).double()
        quota = number * fraction  # of the first 1, 2, ... windows, this many are chosen, rounded down
        is_chosen = quota.floor() > (quota - fraction).floor()  # the rounded quota grows with this window
        chosen = is_chosen.nonzero().squeeze(1)
        flat_obs = map_parts(lambda x: x[chosen].flatten(0, 1), rows["obs"])  # [number of chosen windows * L, ...]
        columns = self.search(self.target_model, flat_obs)
        for name, column in columns.items():
            new = column.to(rows[name]).view(len(chosen), length, *rows[name].shape[2:])
            rows[name] = rows[name].index_copy(0, chosen, new)  # a new tensor: the batch must not change
        rows["is_random"] = rows["is_random"].index_fill(0, chosen, False)
        rows["has_root"] = rows["has_root"].index_fill(0, chosen, True)
        return rows


def as_windows(batch: Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
    """Return a batch as B windows of L steps, `[B, L, ...]`. Single transitions become windows of one step.

    The new column `has_root`, bool `[B, L]`, is False for steps with a random action, which have no search.
    """
    rows = dict(batch)
    if "valid" not in rows:  # single transitions
        for name, column in batch.items():
            if name != "weight":  # one number for each window
                rows[name] = map_parts(lambda x: x.unsqueeze(1), column)
        rows["valid"] = torch.ones_like(rows["terminated"])
    return {**rows, "has_root": ~rows["is_random"]}


def masked(loss: Tensor, mask: Tensor) -> Tensor:
    """Return `loss`, with 0 where `mask`, bool of the same shape, is False."""
    return torch.where(mask, loss, 0.0)


def halved(latent: Tensor) -> Tensor:
    """Return `latent` unchanged; a gradient that flows back through the result is halved."""
    return 0.5 * latent + 0.5 * latent.detach()

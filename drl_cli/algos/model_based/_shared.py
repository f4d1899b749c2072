"""What the variants of MuZero share: the learned model for a search, the targets of a batch, and the stored columns.

A batch has B windows of L steps. Each step stores the result of a search, unless its action was random.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import drl_cli.api as drl
from drl_cli.api import nn, torch
from drl_cli.losses.policy import one_hot
from drl_cli.losses.returns import n_step_windows
from drl_cli.losses.value import rescaled, unscaled
from drl_cli.types import ActionSpec, map_parts
from drl_cli.utils.lazy import Tensor

if TYPE_CHECKING:
    from drl_cli.search.model import Embedding
    from drl_cli.search.run import Found


Searched: TypeAlias = "tuple[drl.Array, dict[str, Tensor]]"
"""The result of a function `search`: the actions `[N, ...]`, and the columns `[N, ...]` that replay stores."""
EPS = 1e-3
"""eps of h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, which compresses rewards and values (MuZero, appendix F)."""


def support(config: Any, device: torch.device | None = None) -> Tensor:
    return torch.linspace(-config.support, config.support, 2 * config.support + 1, device=device)


def scalars(logits: Tensor, support: Tensor) -> Tensor:
    """Return the scalars x `[...]` that the logits `[..., K]` of distributions over the `support` `[K]` represent.

    The mean of a distribution is h(x), see `EPS`.
    """
    result: Tensor = unscaled((logits.softmax(-1) * support).sum(-1), EPS)
    return result


def scalar_loss(logits: Tensor, target: Tensor, support: Tensor) -> Tensor:
    """Return the cross-entropy `[...]` of predicted logits `[..., K]` and target scalars `[...]`.

    A target is compressed by h (see `EPS`), clipped to the support, and then represented by probabilities of the two
    nearest integers, whose mean is the compressed target.
    """
    return drl.losses.two_hot_loss(logits, rescaled(target, EPS), support)


class Representation(nn.Module):
    """MuZero's network h, which maps observations `[B, ...]` to latent states `[B, Z]`.

    Z is the width of the last hidden layer.
    """

    def __init__(self, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
        super().__init__()
        self.network = drl.Network(network, spec, network.hidden[-1])

    def forward(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        return scaled(self.network(obs))


class Dynamics(nn.Module):
    """MuZero's network g, which maps latent states `[B, Z]` and actions `[B, A]` to the next latent states `[B, Z]`.

    The network also returns logits `[B, K]` of the reward. K is `bins`, or 0 if a ValuePrefix predicts sums of rewards
    instead. Discrete actions are one-hot vectors. The MLP has one hidden layer and predicts the change of the latent
    state. `actions` is A.
    """

    def __init__(self, network: drl.NetworkConfig, actions: int, bins: int) -> None:
        super().__init__()
        self.width = network.hidden[-1]
        one_layer = dataclasses.replace(network, hidden=(self.width,))
        self.mlp = drl.MLP(self.width + actions, self.width + bins, one_layer)

    def forward(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        out = self.mlp(torch.cat([latent, action], -1))
        return scaled(latent + out[:, : self.width]), out[:, self.width :]


class Prediction(nn.Module):
    """MuZero's network f, which maps latent states `[B, Z]` to parameters of the policy `[B, P]` and a value.

    The value is given by logits `[B, K]`. `policy` is P, and `bins` is K. The MLP has one hidden layer, and its outputs
    start near 0.
    """

    def __init__(self, network: drl.NetworkConfig, policy: int, bins: int) -> None:
        super().__init__()
        one_layer = dataclasses.replace(network, hidden=network.hidden[-1:])
        self.policy = policy
        self.mlp = drl.MLP(network.hidden[-1], policy + bins, one_layer, last=0.01)

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        out = self.mlp(latent)
        return out[:, : self.policy], out[:, self.policy :]


class ValuePrefix(nn.Module):
    """EfficientZero's network for sums of rewards (Ye et al. 2021, arXiv 2111.00210, section 4.2).

    The network maps the latent state after a step, `[B, Z]`, and a recurrent state `[B, 2 Z]` to logits `[B, K]` and
    the next recurrent state. The logits describe the sum of all rewards since the recurrent state was 0. The network is
    an LSTM with Z units and an MLP with one hidden layer, whose outputs start near 0. `bins` is K.
    """

    def __init__(self, network: drl.NetworkConfig, bins: int) -> None:
        super().__init__()
        width = network.hidden[-1]
        self.cell = nn.LSTMCell(width, width)
        self.mlp = drl.MLP(width, bins, dataclasses.replace(network, hidden=(width,)), last=0.01)

    def forward(self, latent: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = self.cell(latent, state.chunk(2, -1))
        return self.mlp(hidden), torch.cat([hidden, cell], -1)


class ConsistencyMLP(nn.Module):
    """The projection or the predictor of EfficientZero's consistency loss, which map `[..., Z]` to `[..., Z]`.

    The MLP has one hidden layer. EfficientZero uses batch normalisation here. This network uses layer
    norm, if `network.layer_norm` is set, because layer norm does not depend on the other rows of a batch.
    """

    def __init__(self, network: drl.NetworkConfig) -> None:
        super().__init__()
        width = network.hidden[-1]
        self.mlp = drl.MLP(width, width, dataclasses.replace(network, hidden=(width,)))

    def forward(self, latent: Tensor) -> Tensor:
        projected: Tensor = self.mlp(latent)
        return projected


def scaled(latent: Tensor) -> Tensor:
    """Return latent states `[B, Z]`, each scaled to a smallest value of 0 and a largest value of almost 1.

    If all values of a state are equal, the result is 0: 1e-5 avoids 0 / 0. The source is MuZero (appendix G).
    """
    low, high = latent.amin(-1, keepdim=True), latent.amax(-1, keepdim=True)
    return (latent - low) / (high - low + 1e-5)


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, policy_size: int = 0) -> dict[str, nn.Module]:
    """Return the networks by name. `policy_size` is the number of outputs that give the policy (default: the actions).

    With `config.value_prefix`, the network `value_prefix` predicts sums of rewards, and the dynamics predict no reward.
    Rewards and values are distributions over the integers from -`config.support` to `config.support`. With
    `config.consistency`, projection and predictor are the heads of EfficientZero's loss, which a search does not need.
    """
    bins = 2 * config.support + 1
    parts: dict[str, nn.Module] = {
        "representation": Representation(network, spec),
        "dynamics": Dynamics(network, spec.action.size, 0 if config.value_prefix else bins),
        "prediction": Prediction(network, policy_size or spec.action.size, bins),
    }
    if config.value_prefix:
        parts["value_prefix"] = ValuePrefix(network, bins)
    if config.consistency:
        parts |= {"projection": ConsistencyMLP(network), "predictor": ConsistencyMLP(network)}
    return parts


def policy_parts(config: Any) -> tuple[str, ...]:
    return ("representation", "dynamics", "prediction", *["value_prefix"] * config.value_prefix)


def action_inputs(action: Tensor, spec: ActionSpec) -> Tensor:
    """Return actions as float32 inputs of the dynamics, `[..., A]`: Box actions unchanged, discrete actions one-hot."""
    return action if spec.kind == "box" else one_hot(action, spec.size)


def make_model(nets: drl.Nets, config: Any, support: Tensor, action: ActionSpec) -> SearchModel:  # Any: ModelConfig
    kind = PrefixModel if config.value_prefix else SearchModel
    return kind(nets, config, support, action)


class SearchModel:
    """A model for tree searches (`drl_cli.search.model.Model`) that calls the networks `nets`.

    Embeddings are latent states `[B, Z]`. Rewards and values are scalars in the unit of the environment's reward.
    """

    def __init__(self, nets: drl.Nets, config: Any, support: Tensor, action: ActionSpec) -> None:  # Any: ModelConfig
        self.nets, self.config, self.support, self.action = nets, config, support, action

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: a tensor, or a dict of tensors
        latent: Tensor = self.nets.representation(obs)
        policy, value = self.nets.prediction(latent)
        return latent, policy, scalars(value, self.support)

    def recurrent(self, embedding: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        latent, reward = self.nets.dynamics(embedding, action_inputs(action, self.action))
        policy, value = self.nets.prediction(latent)
        reward, value = scalars(torch.stack([reward, value]), self.support).unbind()  # one call is faster than two
        return reward, self.discount(latent), policy, value, latent

    def discount(self, latent: Tensor) -> Tensor:
        """Return gamma for each latent state `[B, Z]`, `[B]`. The model does not predict the end of an episode."""
        return torch.full((len(latent),), self.config.gamma, device=latent.device)


class PrefixModel(SearchModel):
    """A SearchModel that computes rewards from EfficientZero's value prefix (arXiv 2111.00210, section 4.2).

    The value prefix of a node is the predicted sum of the rewards from the root to the node. The reward of a step is
    the child's prefix minus the parent's prefix. The sum is not discounted, as in the authors' code and in LightZero;
    the formula in the paper has a discount.

    An embedding has four tensors: latent states `[B, Z]`, recurrent states `[B, 2 Z]`, prefixes `[B]`, and the numbers
    `[B]` of steps since the sum began. After `config.unroll_steps` steps, a new sum begins, because the networks never
    learn longer sums: recurrent state, prefix and number of steps are set to 0.
    """

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: a tensor, or a dict of tensors
        latent: Any  # a tensor
        latent, policy, value = super().root(obs)
        prefix, steps = torch.zeros_like(value), torch.zeros_like(value)
        return (latent, no_memory(latent), prefix, steps), policy, value

    def recurrent(self, embedding: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        latent, memory, parent_prefix, steps = embedding
        latent, _ = self.nets.dynamics(latent, action_inputs(action, self.action))
        prefix, memory = self.nets.value_prefix(latent, memory)
        policy, value = self.nets.prediction(latent)
        prefix, value = scalars(torch.stack([prefix, value]), self.support).unbind()
        steps = steps + 1.0
        goes_on = steps < self.config.unroll_steps  # otherwise a new sum begins
        next_prefix, next_steps = (torch.where(goes_on, x, 0.0) for x in (prefix, steps))
        memory = torch.where(goes_on.unsqueeze(1), memory, 0.0)
        reward = prefix - parent_prefix
        return reward, self.discount(latent), policy, value, (latent, memory, next_prefix, next_steps)


def no_memory(latent: Tensor) -> Tensor:
    """Return zeros `[B, 2 Z]`, the first recurrent states of the value prefix, for latent states `[B, Z]`."""
    return latent.new_zeros(len(latent), 2 * latent.shape[1])


class Targets(NamedTuple):
    """The targets of a model that is unrolled over K actions: K rewards, and K + 1 values and policies.

    `has_reward`, `has_value` and `has_policy` are masks of the targets, bool `[B, K]` or `[B, K + 1]`. They are False
    where a target is unknown, so that the loss must leave it out.
    """

    reward: Tensor
    """The reward of each action, `[B, K]`."""
    has_reward: Tensor
    value: Tensor
    """n-step returns from each step, which bootstrap from the root values of searches, `[B, K + 1]`."""
    has_value: Tensor
    policy: Tensor
    """The policies of the searches, `[B, K + 1, A]`."""
    has_policy: Tensor
    is_past_end: Tensor
    """Whether the episode had terminated before the step, bool `[B, K + 1]`."""


def unroll_targets(rows: Any, n_step: int, unroll: int) -> Targets:  # Any: tensors by name
    """Return the targets of a batch of windows, whose columns are `[B, L, ...]`. K is `unroll`, or L if L is smaller.

    A value is the n-step return: the next n rewards, and then the root value of the step after them. If the window ends
    earlier, the return bootstraps from the window's last step. The value is unknown if the action of the bootstrap step
    was random, because no search then computed a root value. A step with a random action also has no policy target.
    After the end of an episode that terminated, rewards and values are 0, and there is no policy (MuZero, appendix G).
    """
    valid, terminated, has_root, root = (rows[name] for name in ("valid", "terminated", "has_root", "root_value"))
    length = valid.shape[1]
    next_valid = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
    is_summed = valid & (next_valid | terminated)  # an n-step return only contains rewards whose next state is known
    total, discount, last_summed = n_step_windows(rows["reward"], rows["discount"], is_summed, n_step)
    bootstrap = (last_summed + 1).clamp(max=length - 1)  # the step whose root value follows the summed rewards
    value = torch.where(is_summed, total + discount * root.gather(1, bootstrap), root)
    bootstrap_is_known = (discount == 0.0) | has_root.gather(1, bootstrap)  # a discount of 0 needs no root value
    is_known = torch.where(is_summed, bootstrap_is_known, has_root)
    last_valid = valid.sum(1, keepdim=True) - 1  # the index of the last valid step, [B, 1]
    is_past_end = ~valid & terminated.gather(1, last_valid)  # padding after an episode that terminated
    next_is_past_end = is_past_end | (valid & terminated)
    past_end = torch.cat([is_past_end, next_is_past_end[:, -1:]], 1)  # [B, L + 1]: also the state after the last step
    num_actions = min(unroll, length)
    num_states = num_actions + 1
    return Targets(
        reward=torch.where(valid, rows["reward"], 0.0)[:, :num_actions],
        has_reward=(valid | is_past_end)[:, :num_actions],
        value=first_steps(torch.where(valid, value, 0.0), num_states),
        has_value=first_steps(valid & is_known, num_states) | past_end[:, :num_states],
        policy=first_steps(rows["policy"], num_states),
        has_policy=first_steps(valid & ~rows["is_random"], num_states),
        is_past_end=past_end[:, :num_states],
    )


def first_steps(x: Tensor, num: int) -> Tensor:
    """Return the first `num` steps `[B, num, ...]` of a column `[B, L, ...]`. If `num` is L + 1, the last step is 0."""
    zero_step = torch.zeros_like(x[:, :1])
    return torch.cat([x, zero_step], 1)[:, :num]


def as_windows(batch: drl.Batch) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
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
    return torch.where(mask, loss, 0.0)


def halved(latent: Tensor) -> Tensor:
    """Return `latent` unchanged; a gradient that flows back through the result is halved."""
    return 0.5 * latent + 0.5 * latent.detach()


def stored(found: Found) -> dict[str, Tensor]:
    return {"policy": torch.from_numpy(found.policy).float(), "root_value": torch.from_numpy(found.value).float()}


def legal_actions(obs: Any) -> drl.Array | None:  # Any: a tensor, or a dict of tensors
    """Return the legal-action mask in `obs` as a numpy array, bool `[E, A]`; return None if there is no mask."""
    mask = drl.action_mask(obs)
    return None if mask is None else mask.cpu().numpy()

"""Functions of DQN, C51, QR-DQN and IQN: the values of actions and of next states, and what their policies explore."""

from collections.abc import Callable, Mapping
from typing import Any

import drl_cli.api as drl
from drl_cli.api import torch
from drl_cli.losses.value import backed_up, scaled_log_policy, softmax_policy


def greedy(values: Any, obs: Any, explore: Mapping[str, Any]) -> drl.EpsilonGreedy:
    """Return the policy that chooses the legal action with the largest of the `values` `[B, A]`, or explores."""
    return drl.EpsilonGreedy(values, explore.get("epsilon", 0.0), drl.action_mask(obs), explore.get("temperature", 0.0))


def td_errors(config: Any, rows: drl.Columns, now: drl.EpsilonGreedy, then: drl.EpsilonGreedy) -> drl.Array:
    """Return |TD error| `[N]` of new transitions, in numpy, from the policies in `obs` and in `next_obs`.

    Targets are greedy, and use the policy's network, as a policy has no target network.
    """
    q = now.values[range(len(now.values)), rows["action"]]
    target = backed_up(rows["reward"], rows["discount"], then.values.max(-1), config.rescale)
    errors: drl.Array = abs(target - q)
    return errors


def aligned(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return `x` with axes of size 1 appended to its shape, so that it has as many axes as `values`."""
    return x.view(*x.shape, *[1] * (values.ndim - x.ndim))


def taken(values: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the values `[N, ...]` of the actions `[N]`, given the values `[N, A, ...]` of all actions."""
    index = aligned(action.unsqueeze(1), values).expand(-1, -1, *values.shape[2:])  # [N, 1, ...], for gather
    return values.gather(1, index).squeeze(1)


def next_state(
    config: Any, rows: drl.Batch, next_q: torch.Tensor, means: torch.Tensor, now: Callable[[], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards `[N]` and the values of the next states, `[N]`, or `[N, K]` for distributions.

    `next_q` has the values `[N, A]` of all actions, or distributions `[N, A, K]`. `means` `[N, A]` are the mean returns
    by which the next action is chosen. The value of a state is the value of its best action.

    With `soft_temperature`, the value is the mean under the policy softmax(means / temperature), and the reward
    includes the temperature times the entropy of this policy (Haarnoja et al. 2017, eq. 3). With `munchausen`, it also
    includes the scaled log-probability of the action (Vieillard et al. 2020, eq. 1). `now` returns the target network's
    mean returns `[N, A]` of the present states, from which this policy is computed.
    """
    reward, temperature = rows["reward"], config.soft_temperature
    means = drl.permitted(means, drl.action_mask(rows["next_obs"]))
    if not temperature:
        return reward, taken(next_q, means.argmax(-1))
    probs, entropy = softmax_policy(means, temperature)
    reward = reward + rows["discount"] * temperature * entropy
    if config.munchausen:
        q_now = drl.permitted(now(), drl.action_mask(rows["obs"]))
        log_policy = scaled_log_policy(q_now, rows["action"], temperature, config.munchausen_floor)
        reward = reward + config.munchausen * log_policy
    return reward, (aligned(probs, next_q) * next_q).sum(1)


def target(
    config: Any, rows: drl.Batch, next_q: torch.Tensor, means: torch.Tensor, now: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return reward + discount * value, `[N]` or `[N, K]`, from the result of `next_state`.

    With `rescale`, values are rescaled, so that rewards need no clipping (R2D2, Kapturowski et al. 2019, section 2.3).
    """
    reward, value = next_state(config, rows, next_q, means, now)
    result: torch.Tensor = backed_up(aligned(reward, value), aligned(rows["discount"], value), value, config.rescale)
    return result


def td_loss(config: Any, error: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the mean loss of the errors `[N]`: Huber, or half the squared error."""
    return drl.losses.huber(error, weight) if config.loss == "huber" else 0.5 * drl.losses.mse(error, weight)


def check_softmax(config: Any) -> None:
    """Raise Refused if the options of the softmax policy in the targets do not fit together."""
    if config.munchausen and not config.soft_temperature:
        raise drl.Refused("algo.munchausen needs a softmax policy; say algo.soft_temperature=0.03 (as in its paper)")
    if config.rescale and config.soft_temperature:
        problem = "rescaled values don't fit the entropy of algo.soft_temperature"
        raise drl.Refused(f"algo.rescale: {problem}; say 0 for one")


def check_risk(config: Any) -> None:
    """Raise Refused if the level of `cvar` is not in (0, 1]."""
    if config.risk == "cvar" and not 0.0 < config.risk_level <= 1.0:
        raise drl.Refused(f"algo.risk_level={config.risk_level:g} has to be above 0 and at most 1 for algo.risk=cvar")

"""The parameters of the MLPs that compute a policy's best action from the encoder's features, for exports."""

from collections.abc import Sequence
from dataclasses import dataclass

from drl_cli.algos import c51, iqn
from drl_cli.algos.base import Policy
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.networks.implicit import ActingImplicitNetwork
from drl_cli.types import Array


@dataclass(frozen=True)
class Head:
    """Parameters of the MLP after the encoder: `layers` are weights, biases, and the vectors of layer norm.

    With `embedded` `[K, W]` (IQN), the input of `layers` is `embedded` times the activated output of `trunk`, and the
    value is the mean of the K outputs. With a `support` `[K]` (C51), the outputs are K logits per action, and the value
    is the mean of the distribution, weighted by `risk` (drl_cli.losses.distributional.risky_share).
    """

    layers: Sequence[Array]
    trunk: Sequence[Array] = ()
    embedded: Array | None = None
    support: Array | None = None
    risk: tuple[str, float] = ("mean", 1.0)


def find_head(policy: Policy) -> Head | None:
    """Return the head of a policy, or None if the policy overrides `greedy` or `forward`."""
    if not isinstance(policy, NetworkPolicy) or type(policy).greedy is not NetworkPolicy.greedy:
        return None
    kind = type(policy)
    if kind.forward is NetworkPolicy.forward:
        *params, weight, bias = policy.params
        size = policy.action.size  # without the standard deviations of SAC
        return Head([*params, weight[:, :size], bias[:size]])
    if isinstance(policy, c51.Policy) and kind.forward is c51.Policy.forward:
        config = policy.config
        return Head(policy.params, support=policy.support, risk=(config.risk, config.risk_level))
    if isinstance(policy, iqn.Policy) and kind.forward is iqn.Policy.forward:
        assert isinstance(policy.q, ActingImplicitNetwork)
        means = policy.q.means
        return Head(means["online"], means.get("trunk", ()), policy.q.embedded)
    return None

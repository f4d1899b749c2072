"""What a policy computes behind its encoder for its best action, as plain MLPs: what the exported forms are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from drl_cli.algos import c51, iqn
from drl_cli.algos.base import Policy
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.networks.implicit import ActingImplicitNetwork
from drl_cli.types import Array


@dataclass(frozen=True)
class Head:
    """`layers` give the outputs, weights and biases in turn (and layer norm's).

    Where there is something `embedded` `[K, W]`, they are of its products with what the `trunk` gives, each layer of
    that activated, and their mean over K counts. With a `support` `[K]` the outputs are logits of its values, K for
    each action; what counts is their mean, or `risk`'s (drl_cli.losses.distributional.risky_share).
    """

    layers: Sequence[Array]
    trunk: Sequence[Array] = ()
    embedded: Array | None = None
    support: Array | None = None
    risk: tuple[str, float] = ("mean", 1.0)


def find_head(policy: Policy) -> Head | None:
    """Of a policy whose best action is that of NetworkPolicy; None of one that acts in a way of its own."""
    if not isinstance(policy, NetworkPolicy) or type(policy).greedy is not NetworkPolicy.greedy:
        return None
    kind = type(policy)
    if kind.forward is NetworkPolicy.forward:
        *params, weight, bias = policy.params
        size = policy.action.size  # SAC's standard deviations are left out
        return Head([*params, weight[:, :size], bias[:size]])
    if isinstance(policy, c51.Policy) and kind.forward is c51.Policy.forward:
        config = policy.config
        return Head(policy.params, support=policy.support, risk=(config.risk, config.risk_level))
    if isinstance(policy, iqn.Policy) and kind.forward is iqn.Policy.forward:
        assert isinstance(policy.q, ActingImplicitNetwork)
        means = policy.q.means
        return Head(means["online"], means.get("trunk", ()), policy.q.embedded)
    return None

"""Describe the network of an exported policy: torso, memory, and the arrays of the MLPs after them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos import c51, iqn, mrq
from drl_cli.algos.base import Policy
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.networks.config import Activation
from drl_cli.networks.implicit import ActingImplicitNetwork
from drl_cli.networks.mlp import split
from drl_cli.types import Array

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.networks.mlp_module import MLP
    from drl_cli.networks.modules import Memory


@dataclass(frozen=True, kw_only=True)
class Head:
    """The network of a policy: torso, memory, `trunk`, and `layers`.

    `trunk` and `layers` are MLPs: weights, biases, and after a hidden layer the two vectors of layer norm. The output
    of the trunk is activated, and normalised before that if `norms_trunk` (MR.Q). With `embedded` `[K, W]` (IQN), the
    input of `layers` is `embedded` times the activated output of the trunk, and the value is the mean of the K outputs.
    With a `support` `[K]` (C51), the outputs are K logits per action, and the value is the mean of the distribution,
    weighted by `risk` (drl_cli.losses.distributional.risky_share).
    """

    torso: "nn.Module"
    memory: "Memory | None"
    layers: Sequence[Array]
    activation: Activation
    layer_norm: bool
    is_squashed: bool = False
    trunk: Sequence[Array] = ()
    trunk_activation: Activation = "relu"
    norms_trunk: bool = False
    embedded: Array | None = None
    support: Array | None = None
    risk: tuple[str, float] = ("mean", 1.0)


def has_head(kind: type[Policy]) -> bool:
    """Return whether `find_head` knows the network of policies of this class: its acting methods are drl-cli's own."""
    if issubclass(kind, mrq.Policy):
        return all(getattr(kind, name) is getattr(mrq.Policy, name) for name in ("build", "choose", "greedy"))
    if not issubclass(kind, NetworkPolicy) or kind.greedy is not NetworkPolicy.greedy:
        return False
    return kind.forward in (NetworkPolicy.forward, c51.Policy.forward, iqn.Policy.forward)


def find_head(policy: Policy) -> Head | None:
    """Return the head of a policy, or None if its class overrides how it acts."""
    if not has_head(type(policy)):
        return None
    if isinstance(policy, mrq.Policy):
        return _of_mrq(policy)
    from drl_cli.networks.modules import Flat  # imports torch

    assert isinstance(policy, NetworkPolicy)
    learner, network = policy.encoder.learner, policy.network
    about: dict[str, Any] = {  # Any: the types of the fields of Head
        "torso": Flat(policy.encoder.inputs) if learner is None or learner.torso is None else learner.torso,
        "memory": learner.memory if learner else None,
        "activation": network.activation,
        "layer_norm": network.layer_norm,
        "is_squashed": policy.action.kind == "box" and policy.is_squashed,
    }
    acts = type(policy).forward
    if isinstance(policy, c51.Policy) and acts is c51.Policy.forward:
        risk = (policy.config.risk, policy.config.risk_level)
        return Head(**about, layers=policy.params, support=policy.support, risk=risk)
    if isinstance(policy, iqn.Policy) and acts is iqn.Policy.forward:
        assert isinstance(policy.q, ActingImplicitNetwork)
        means, embedded = policy.q.means, policy.q.embedded
        about |= {"trunk": means.get("trunk", ()), "trunk_activation": network.activation}
        return Head(**about, layers=means["online"], embedded=embedded)
    *params, weight, bias = policy.params
    size = policy.action.size  # without the standard deviations of SAC
    return Head(**about, layers=[*params, weight[:, :size], bias[:size]])


def _of_mrq(policy: mrq.Policy) -> Head:
    from drl_cli.networks.latent import StateEncoder  # imports torch
    from drl_cli.networks.mlp_module import MLP

    state, actor = policy.modules["state"], policy.modules["actor"]
    assert isinstance(state, StateEncoder)
    assert isinstance(actor, MLP)
    return Head(
        torso=state.torso,
        memory=None,
        layers=_arrays(actor),
        activation=actor.activation,
        layer_norm=len(actor.shapes[2]) == 1,  # the vectors of layer norm follow the first layer
        is_squashed=policy.action.kind == "box",
        trunk=_arrays(state.mlp),
        trunk_activation=state.mlp.activation,
        norms_trunk=True,
    )


def _arrays(mlp: "MLP") -> list[Array]:
    return split(mlp.flat.detach().numpy(), mlp.shapes)

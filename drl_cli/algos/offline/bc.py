"""BC: behavioural cloning. The actor maximises the likelihood of the dataset's actions (Pomerleau 1991).

The actor is a softmax for discrete actions and a Gaussian for continuous actions. With `components` above 1, the actor
is a mixture of Gaussians, which can represent several ways to act in one state (Mandlekar et al. 2021, arXiv
2108.03298). `top` is the fraction of the episodes to learn from: 0.1 selects the tenth with the largest returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.offline.iql import LOG_STD_MAX, LOG_STD_MIN

ACTIONS = ("box", "discrete", "multidiscrete")
MODES = ("offline",)
TABLES = ("uniform", "sequences")


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of BC, which conf/algo/bc.yaml explains."""

    lr: drl.Positive
    components: drl.Count
    top: drl.Fraction


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name.

    The outputs of the actor are one logit for each discrete action. For K Gaussians over actions with A dimensions, the
    outputs are the K A means, followed by the K logits of the mixture if K > 1.
    """
    encoder, outputs, stds = drl.encoder(network, spec), spec.action.size, 0
    if spec.action.kind == "box":
        stds = config.components * spec.action.size
        outputs = stds + (config.components if config.components > 1 else 0)
    return {"encoder": encoder, "actor": drl.MLP(encoder.size, outputs, network), "log_std": drl.Vector(stds)}


def actions(nets: Any, x: Any, mask: Any, config: Any, action: Any) -> drl.Distribution:
    """Return pi(a|s) for features `x` `[B, F]` and legal-action masks."""
    out = nets.actor(x)
    if action.kind != "box":
        return drl.distribution(action, out, None, mask)
    return drl.GaussianMixture(out, nets.log_std().clip(LOG_STD_MIN, LOG_STD_MAX), config.components)


def policy(nets: Any, obs: Any, explore: Mapping[str, Any], config: Any, spec: drl.EnvSpec) -> drl.Distribution:
    return actions(nets, nets.encoder(obs), drl.action_mask(obs), config, spec.action)


class Algorithm(drl.Algorithm):
    """Learns the actor and the encoder of the observations."""

    policy_parts = ("encoder", "actor", "log_std")

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        rows, x = self.rows(batch), self.nets.encoder.see(batch).learned
        pi = actions(self.nets, x, drl.action_mask(rows["obs"]), self.config, self.spec.action)
        loss = -drl.losses.mean(pi.log_prob(rows["action"]), rows.get("valid_weight"))
        self.optimizer.minimize(loss)
        return drl.Update({"actor_loss": loss})

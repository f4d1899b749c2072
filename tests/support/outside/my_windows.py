"""An actor-critic that learns from windows, and replaces the value of each step that replay stores."""

from dataclasses import dataclass

import drl_cli.api as drl

ACTIONS = ("discrete",)
TABLES = ("windows",)
WRITES = ("value",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """The learning rate."""

    lr: drl.Positive = 3e-3


def build(network, spec):
    return {"net": drl.Network(network, spec, spec.action.size + 1)}


class Policy(drl.TorchPolicy):
    """Logits and a value."""

    @staticmethod
    def build(config, network, spec):
        return build(network, spec)

    @staticmethod
    def extra_columns(config, network, spec):
        return {"value": drl.Column((), "float32")}

    def distribution(self, obs, last):
        out = self.modules["net"](obs)
        return drl.Categorical(out[..., 1:]), {"value": out[..., 0]}


class Algorithm(drl.Algorithm):
    """Learns V(s) of the next stored value, and a softmax of what is better than the stored value."""

    policy_parts = ("net",)

    def __init__(self, config, network, spec, seed, context):
        modules = build(network, spec)
        self.net, self.params = modules["net"], drl.Params(context, **modules)
        self.optimizer = drl.Optimizer(self.params, {"net": config.lr}, context)

    def update(self, batch, counts):
        out = self.net(batch["obs"])  # [B, L, 1 + A]
        value, logits, valid = out[..., 0], out[..., 1:], batch["valid"].float()
        after = self.net(batch["next_obs"])[..., 0].detach()
        target = batch["reward"] + batch["discount"] * after
        log_prob = logits.log_softmax(-1).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        better = (target - batch["value"]).clamp(0.0, 1.0)  # the value of this step when it was last learned from
        loss = (valid * ((target - value).square() - better * log_prob)).mean()
        self.optimizer.minimize(loss)
        return drl.Update({"loss": loss, "stored_value": batch["value"].mean()}, columns={"value": value.detach()})

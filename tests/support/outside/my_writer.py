"""An algorithm that counts in replay how often it has learned from each row."""

from dataclasses import dataclass

from torch import nn

import drl_cli.api as drl

ACTIONS = ("discrete",)
WRITES = ("uses",)


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """No options."""


class Policy(drl.TorchPolicy):
    """Logits that are never trained, and a count of 0 for each new row."""

    @staticmethod
    def build(config, network, spec):
        return {"actor": nn.Linear(spec.obs.shape[0], spec.action.size)}

    @staticmethod
    def extra_columns(config, network, spec):
        return {"uses": drl.Column((), "float32")}

    def distribution(self, obs, last):
        logits = self.modules["actor"](obs)
        return drl.Categorical(logits), {"uses": 0 * logits[:, 0]}


class Algorithm(drl.Algorithm):
    """Learns the mean number of uses, and adds 1 to the number of each row."""

    policy_parts = ("actor",)

    def __init__(self, config, network, spec, seed, context):
        self.params = drl.Params(context, actor=nn.Linear(spec.obs.shape[0], spec.action.size), mean=1)
        self.optimizer = drl.Optimizer(self.params, {"actor": 0.0, "mean": 0.1}, context)

    def update(self, batch, counts):
        loss = (self.params.value("mean") - batch["uses"]).square().mean()
        self.optimizer.minimize(loss, "mean")
        return drl.Update({"loss": loss}, columns={"uses": batch["uses"] + 1})

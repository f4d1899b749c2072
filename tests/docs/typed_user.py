"""What a user writes with the public Python names: mypy --strict accepts this file, and refuses misspelt names."""

from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np
import torch
from torch import nn

import drl_cli
import drl_cli.api as drl


def program() -> None:
    """Train, load and play."""
    summary = drl_cli.train("env=CartPole-v1", on_evaluation=lambda result: print(result["mean"]), seed=1)
    assert_type(summary, dict[str, Any])
    policy = drl_cli.load(summary["folder"], checkpoint=1000, trust=True)
    policy.reset()
    print(policy(np.zeros(4, np.float32)), policy.manifest["env_steps"], policy.config.algo.gamma)
    assert_type(drl_cli.curves([summary["folder"]]), dict[str, list[Any]])
    try:
        drl_cli.lod("latest")  # type: ignore[attr-defined]
    except drl_cli.RunFailed as error:
        assert_type(error.exit_code, int)
    except drl_cli.UsageError as error:
        assert_type(error.problems, list[str])


@dataclass(frozen=True)
class Config(drl.AlgoConfig):
    """Options."""

    lr: drl.Positive = 1e-3
    tau: drl.Fraction = 0.005


class Policy(drl.TorchPolicy):
    """A deterministic policy."""

    @staticmethod
    def build(config: drl.AlgoConfig, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, nn.Module]:
        return {"actor": drl.Network(network, spec, spec.action.size)}

    def choose(self, obs: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
        action: torch.Tensor = self.modules["actor"](obs)
        return action.tanh()


class Algorithm(drl.Algorithm):
    """An actor and two critics."""

    policy_parts = ("actor",)

    def __init__(
        self, config: Config, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: drl.Context
    ) -> None:
        actor = drl.Network(network, spec, spec.action.size)
        critic = drl.Network(network, spec, 1, actions=spec.action.size, ensemble=2)
        self.config, self.params = config, drl.Params(context, actor=actor, critic=critic)
        self.params.target("critic")
        self.optimizer = drl.Optimizer(self.params, {"actor": config.lr, "critic": config.lr}, context)
        self.gradients = drl.Gradients(self.params, self.loss, context)

    def loss(self, nets: drl.Nets, batch: drl.Batch, noise: None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with torch.no_grad():
            next_q = nets.target.critic(batch["next_obs"], nets.actor(batch["next_obs"]).tanh()).amin(0).squeeze(-1)
        q = nets.critic(batch["obs"], batch["action"]).squeeze(-1)
        target = batch["reward"] + batch["discount"] * next_q
        loss = assert_type(drl.losses.twin_critics(q, target, batch.get("weight")), torch.Tensor)
        actor_loss = -nets.frozen.critic(batch["obs"], nets.actor(batch["obs"]).tanh()).mean()
        return loss + actor_loss, {"critic_loss": loss}

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        loss, metrics = self.gradients(batch)
        self.optimizer.step(loss)
        self.params.follow(self.config.tau)
        return drl.Update(metrics)


def search(found: drl.search.Found) -> None:
    """Use a module that is imported when it is first used, and a name that does not exist."""
    print(found.policy.sum(), found.value)
    drl.Udpate({})  # type: ignore[attr-defined]

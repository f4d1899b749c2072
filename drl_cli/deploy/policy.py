"""A trained policy in the environment's own units: what drl_cli.load gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.deploy.standalone import Caller, from_zero, some_allowed
from drl_cli.envs.units import Units
from drl_cli.runtime.config import Config
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import MASK, Array, EnvSpec, PreviousStep, leaves


class TrainedPolicy(Caller):
    """The policy of a checkpoint: `policy(obs)` gives the best action. Torch is imported only where it needs it.

    `run` and `checkpoint` are folders; `manifest` says how far it was trained, and how it scored if it was the best.
    `env` is the environment as evaluations have it.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, params: Array, checkpoint: Path, manifest: Mapping[str, Any]
    ) -> None:
        self.config, self.spec, self.params, self.manifest = config, spec, params, manifest
        self.run, self.checkpoint = checkpoint.parents[1], checkpoint
        self.env = config.env.for_evaluation(config.manage.env_kwargs)
        self.units = Units(self.env, spec)
        size = config.network.state_size
        super().__init__(self.units.signature() | {"state": {"size": size} if size else None, "values": None})
        self.policy = self.fresh()
        self._action = PreviousStep.none(spec, 0).action

    def __repr__(self) -> str:
        return f"<policy of {self.config.algo.name} for {self.config.env.name}: {self.checkpoint}>"

    def fresh(self) -> Policy:
        """One more policy as the algorithm has it, with these parameters; raises ValueError when they do not fit."""
        policy = make_policy(self.config, self.spec, 0)
        policy.load(self.params)
        return policy

    def act(self, inputs: list[Array], begins: Array, reward: Array) -> list[Array]:
        parts = {}
        for (path, column), part, array in zip(leaves(self.spec.obs).items(), self.units.inputs, inputs, strict=True):
            seen = some_allowed(array, self.spec.action.choices) if path == MASK else from_zero(vars(part), array)
            parts[path] = seen.astype(column.dtype, copy=False)
        last = PreviousStep.none(self.spec, len(begins))
        if not begins.all():
            going = (~begins).reshape(-1, *[1] * (self._action.ndim - 1))
            reward = np.where(begins, 0, reward).astype(np.float32)
            last = PreviousStep(np.where(going, self._action, last.action), reward, begins)
        self._action = self.policy.greedy(parts.get("", parts), last)
        rows = self.units.to_env(self._action)
        return [np.stack([at(row, part.path) for row in rows]).astype(part.dtype) for part in self.units.outputs]


def at(action: Any, path: Sequence[str | int]) -> Any:  # Any: an action, or a batch of them, as its space says
    """The part of an action at a path."""
    for key in path:
        action = action[key]
    return action

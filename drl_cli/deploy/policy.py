"""The policy that `drl_cli.load` returns. It takes observations and gives actions in the environment's own units."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.config.config import Config
from drl_cli.deploy.standalone import Caller, from_zero, some_allowed
from drl_cli.envs.config import SPACES_ONLY
from drl_cli.envs.units import Units
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import MASK, Array, EnvSpec, PreviousStep, leaves


class TrainedPolicy(Caller):
    """The policy of a checkpoint: `policy(obs)` returns the best action. Torch is imported only for some networks.

    `run` and `checkpoint` are folders. `manifest` has `env_steps`, `opt_steps`, and the score of a best checkpoint.
    `env` is the environment's config for evaluations.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, params: Array, checkpoint: Path, manifest: Mapping[str, Any]
    ) -> None:
        self.config, self.spec, self.params, self.manifest = config, spec, params, manifest
        self.run, self.checkpoint = checkpoint.parents[1], checkpoint
        self.env = config.env.for_evaluation(config.manage.env_kwargs)
        self.units = Units(self.env, spec)
        self.policy = self.fresh()
        size = config.network.state_size or getattr(self.policy, "memory_size", 0)
        super().__init__(self.units.signature() | {"state": {"size": size} if size else None, "values": None})
        self._action = PreviousStep.none(spec, 0).action

    def __repr__(self) -> str:
        return f"<policy of {self.config.algo_name} for {self.config.env.name}: {self.checkpoint}>"

    @property
    def has_env(self) -> bool:
        return self.config.env.id != SPACES_ONLY

    @property
    def trained(self) -> str:
        clock = self.config.clock
        return f"{self.manifest[clock.unit]:,} {clock.text}"

    def fresh(self, in_torch: bool = False) -> Policy:
        """Return a new policy of the algorithm with the same parameters. Raise ValueError if they do not fit.

        With `in_torch`, it acts by torch modules, also if there is a numpy form.
        """
        policy = make_policy(self.config, self.spec, 0, in_torch=in_torch)
        policy.load(self.params)
        return policy

    def act(self, inputs: list[Array], begins: Array, reward: Array) -> list[Array]:
        parts = {}
        for (path, column), part, array in zip(leaves(self.spec.obs).items(), self.units.inputs, inputs, strict=True):
            value = some_allowed(array, self.spec.action.choices) if path == MASK else from_zero(vars(part), array)
            parts[path] = value.astype(column.dtype, copy=False)
        last = PreviousStep.none(self.spec, len(begins))
        if not begins.all():
            going = (~begins).reshape(-1, *[1] * (self._action.ndim - 1))
            reward = np.where(begins, 0, reward).astype(np.float32)
            last = PreviousStep(np.where(going, self._action, last.action), reward, begins)
        self._action = self.policy.greedy(parts.get("", parts), last)
        rows = self.units.to_env(self._action)
        return [np.stack([action_at(row, part.path) for row in rows]).astype(part.dtype) for part in self.units.outputs]


def action_at(action: Any, path: Sequence[str | int]) -> Any:  # Any: an action of the space, or a batch
    for key in path:
        action = action[key]
    return action

"""SearchPolicy: the base class of policies that choose every action by a tree search with a learned model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from drl_cli.algos.model_based._model import Support, build_networks, make_model
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.errors import Refused
from drl_cli.losses.policy import permitted
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.optim.gradients import Nets
from drl_cli.types import Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.search.run import Found


class SearchPolicy(TorchPolicy):
    """Chooses actions by a tree search. A subclass defines `search`. `build` and `prior` are for discrete actions.

    `act` also returns the columns `policy` `[E, A]` and `root_value` `[E]`, the results of the search in E
    environments, and `is_random` `[E]`. The training targets are made from these columns.
    """

    @classmethod
    def check(cls, config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
        if not network.hidden:
            raise Refused(f"network.hidden=[]: {config.name} needs a hidden layer; say network.hidden=[128]")
        if network.memory != "none":
            raise Refused(
                f"network.memory={network.memory}: the model of {config.name} unrolls from single observations; "
                "say network.memory=none"
            )
        if not config.simulations:
            raise Refused(
                "algo.simulations=0: training needs a search, whose results are the targets; say algo.simulations=25 "
                "(drl-eval and drl-play take 0, which plays the prior)"
            )

    @staticmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> Mapping[str, nn.Module]:
        return build_networks(config, network, spec, spec.action.size)

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {
            "policy": Column((spec.action.size,), "float32"),
            "root_value": Column((), "float32"),
            "is_random": Column((), "bool"),
        }

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        from drl_cli.chains.replays import Replays  # imports torch
        from drl_cli.search.repeated import Repeated

        with torch.random.fork_rng(devices=[]):  # so that a new policy does not advance the trainer's generator
            super().__init__(config, network, spec, seed)
        model = make_model(Nets(self.modules), config, Support(config.support), spec.action)
        # A search is faster if it replays the model's recorded tensor operations. A Replays records a function of a
        # dict of tensors. Repeated makes this function, `call`, from `model.recurrent`, and passes it to the lambda.
        self.model = Repeated(model, lambda call: Replays(call, model))

    @abstractmethod
    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:  # Any: a tensor, or a dict of tensors
        """Search from observations `[E, ...]`; return the actions `[E, ...]` and the results of the search.

        If `explores` is False, return the best actions and use no random numbers.
        """

    def stored(self, found: Found) -> dict[str, Tensor]:
        """Return the columns that replay stores, `[E, ...]`, made from the results of a search."""
        return stored(found)

    def sample(self, obs: Any, last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        return self.search_columns(obs, explores=True)

    def search_columns(self, obs: Any, explores: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Search from observations `[E, ...]`; return the actions `[E, ...]` and the columns that replay stores."""
        action, found = self.search(obs, explores)
        return torch.from_numpy(action), self.stored(found)

    def reanalyze(self, obs: Obs) -> Columns:
        return self._run("reanalyze", obs, None)

    def _reanalyze_columns(self, obs: Any, last: PreviousStep | None) -> dict[str, Tensor]:
        _, columns = self.search_columns(obs, explores=False)
        return {**columns, **self._declared(obs)}

    def warm_up(self, obs: Any, last: PreviousStep | None) -> dict[str, Tensor]:
        """Return columns of zeros for E random actions, because random actions need no search."""
        rows = num_rows(obs)
        # The base class fills the column `is_random`.
        shapes = {name: column.shape for name, column in self.declared_columns.items() if name != "is_random"}
        return {name: torch.zeros(rows, *shape) for name, shape in shapes.items()}

    def choose(self, obs: Any) -> Tensor:
        action, _ = self.search(obs, explores=False)
        return torch.from_numpy(action)

    def prior(self, obs: Any) -> Tensor:
        latent = self.modules["representation"](obs)
        logits, _ = self.modules["prediction"](latent)
        best: Tensor = permitted(logits, action_mask(obs)).argmax(-1)
        return best


def stored(found: Found) -> dict[str, Tensor]:
    """Return the columns `policy` `[E, A]` and `root_value` `[E]`, float32, made from the results of a search."""
    return {"policy": torch.from_numpy(found.policy).float(), "root_value": torch.from_numpy(found.value).float()}


def num_rows(obs: Any) -> int:  # Any: a tensor, or a dict of tensors
    """Return the number E of observations `[E, ...]`."""
    return num_rows(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)


def legal_actions(obs: Any) -> Array | None:  # Any: a tensor, or a dict of tensors
    """Return the legal-action mask in `obs` as a numpy array, bool `[E, A]`; return None if there is no mask."""
    mask = action_mask(obs)
    return None if mask is None else mask.cpu().numpy()

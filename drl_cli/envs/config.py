"""The config of the environment. It does not import gymnasium, so that checking a command line stays fast."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from drl_cli.utils.ranges import OR_NULL, Count, Positive

NO_ENV = "none"
"""The value of `env` and `env.id` in a run without an environment."""
SPACES_ONLY, ACTIONS_OF = (f"drl_cli.envs.recorded:{name}" for name in ("SpacesOnly", "ActionsOf"))


@dataclass(frozen=True)
class EnvConfig:
    """The config keys `env.*`.

    `max_episode_steps`, `reward_clip`, `reward_scale` and `backend` apply only in training; `wrappers`, `action_repeat`
    and `frame_stack` apply in training and evaluation. The trainer and the policy apply `normalize_obs` and
    `normalize_reward`; the rows in replay and the reported returns are not normalized.
    """

    name: str
    id: str
    kwargs: Mapping[str, Any]
    max_episode_steps: Count | None
    reward_scale: Positive
    frame_storage: Literal["auto", "none"]
    normalize_obs: Annotated[bool, OR_NULL]
    normalize_reward: Annotated[bool, OR_NULL]
    backend: Literal["gymnasium", "envpool", "ale"] = "gymnasium"
    wrappers: tuple[str | Mapping[str, Any], ...] = ()
    reward_clip: Positive | None = None
    action_repeat: Count = 1
    frame_stack: Count = 1

    def for_evaluation(self, kwargs: Mapping[str, Any] | None = None) -> "EnvConfig":
        """Return the config for evaluations, without the changes for training.

        `kwargs` extend or replace the keyword arguments `self.kwargs`.
        """
        kwargs = {**self.kwargs, **(kwargs or {})}
        return replace(self, max_episode_steps=None, reward_scale=1.0, reward_clip=None, kwargs=kwargs)


def wrapper_path(wrapper: str | Mapping[str, Any]) -> str:
    """Return the path `module:Class` of an item of `env.wrappers`: a path, or a mapping with the path as `_name_`."""
    return wrapper if isinstance(wrapper, str) else str(wrapper.get("_name_", ""))


class MissingExtra(Exception):
    """Raised if an environment exists, but a package that it needs is not installed."""


class EnvFault(Exception):
    """Raised if a running environment fails; the message is one line."""


class EnvError(Exception):
    """Raised if the environment that the user names can't be found, built or used."""

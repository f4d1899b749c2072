"""The config of the environment, without an import of gymnasium, so that checking a command line stays fast."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from drl_cli.utils.ranges import Count, Positive


@dataclass(frozen=True)
class EnvConfig:
    """The keys `env.*`.

    `max_episode_steps`, `reward_clip`, `reward_scale` and `backend` apply only in training, `wrappers` everywhere.
    The trainer and the policy apply `normalize_obs` and `normalize_reward`; replay and returns stay raw.
    """

    name: str
    id: str
    kwargs: Mapping[str, Any]  # Any: keyword arguments of the environment
    max_episode_steps: Count | None
    reward_scale: Positive
    frame_stack: Literal["auto", "none"]
    normalize_obs: bool
    normalize_reward: bool
    backend: Literal["gymnasium", "envpool"] = "gymnasium"
    wrappers: tuple[str, ...] = ()
    reward_clip: Positive | None = None

    def for_evaluation(self, kwargs: Mapping[str, Any] | None = None) -> "EnvConfig":  # Any: as in `kwargs`
        """Return the config without the changes for training; `kwargs` are added or replace values."""
        kwargs = {**self.kwargs, **(kwargs or {})}
        return replace(self, max_episode_steps=None, reward_scale=1.0, reward_clip=None, kwargs=kwargs)


class MissingExtra(Exception):
    """The environment exists, but a package that it needs is not installed."""


class EnvFault(Exception):
    """A failure of a running environment; the message is one line."""


class EnvError(Exception):
    """The environment of the user can't be found, built or used."""

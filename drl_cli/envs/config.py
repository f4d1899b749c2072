"""Which environment: apart from make.py, so that checking a command line does not import gymnasium."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from drl_cli.utils.ranges import Count, Positive


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and what is done to it.

    In training only: `max_episode_steps`, `reward_clip`, `reward_scale`, `backend`.
    `wrappers` belong to the environment itself, wherever it is played. `normalize_obs` and `normalize_reward` are the
    trainer's and the policy's business; replay and scores stay raw.
    """

    name: str
    id: str
    kwargs: Mapping[str, Any]  # Any: whatever the environment's constructor takes
    max_episode_steps: Count | None
    reward_scale: Positive
    frame_stack: Literal["auto", "none"]
    normalize_obs: bool
    normalize_reward: bool
    backend: Literal["gymnasium", "envpool"] = "gymnasium"
    wrappers: tuple[str, ...] = ()
    reward_clip: Positive | None = None

    def for_evaluation(self, kwargs: Mapping[str, Any] | None = None) -> "EnvConfig":  # Any: as in `kwargs`
        """The environment as it is, with these `kwargs` beside its own or in their place."""
        theirs = {**self.kwargs, **(kwargs or {})}
        return replace(self, max_episode_steps=None, reward_scale=1.0, reward_clip=None, kwargs=theirs)


class MissingExtra(Exception):
    """The environment exists but a package that it needs is not installed."""


class EnvFault(Exception):
    """What is wrong with a running environment; the message is one line."""


class EnvError(Exception):
    """The user's environment can't be found, built or used."""

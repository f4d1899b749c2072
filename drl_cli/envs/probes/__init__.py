"""Tiny environments to test the system, for example `env=drl_cli.envs.probes:Counter-v0`."""

import gymnasium

from drl_cli.envs.probes.episodes import Chain, Counter, Cue, Faulty, Forever, Frames, Positions, Sleeper, Tree, stamp
from drl_cli.envs.probes.one_step import (
    BitFlip,
    Both,
    BothReach,
    Choose,
    Masked,
    Patch,
    PatchReach,
    Reach,
    Scaled,
    Switches,
)

__all__ = ["Counter", "Frames", "stamp"]

STEPS = {Forever: 50, Positions: 500}
"""Number of steps after which an episode of these probes is truncated."""

for _class in (
    *(Counter, Tree, Faulty, Frames, Reach, Scaled, Choose, Switches, Masked),
    *(Patch, PatchReach, Both, BothReach, Forever, Chain, Cue, Positions, Sleeper, BitFlip),
):
    gymnasium.register(
        f"{_class.__name__}-v0",
        entry_point=f"drl_cli.envs.probes:{_class.__name__}",
        max_episode_steps=STEPS.get(_class),
    )

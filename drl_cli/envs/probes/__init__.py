"""Tiny environments to test the system, for example `env=drl_cli.envs.probes:Counter-v0`."""

import gymnasium

from drl_cli.envs.probes.episodes import Chain, Counter, Cue, Faulty, Forever, Frames, Positions, Sleeper, Tree, stamp
from drl_cli.envs.probes.one_step import BitFlip, Choose, Masked, Patch, PatchReach, Reach, Switches

__all__ = ["Counter", "Frames", "stamp"]

STEPS = {Forever: 50, Positions: 500}
"""Number of steps after which an episode of these probes is truncated."""
VARIANTS: dict[str, tuple[type, dict[str, int]]] = {
    "Scaled": (Reach, {"scale": 1000, "shift": 500}),
    "Both": (Patch, {"has_vector": True}),
    "BothReach": (PatchReach, {"has_vector": True}),
}
"""Probes that are another one with other arguments."""

_counters, _games = (Counter, Tree, Faulty, Frames), (Forever, Chain, Cue, Positions, Sleeper, BitFlip)
for _class in (*_counters, *_games, Reach, Choose, Switches, Masked, Patch, PatchReach):
    gymnasium.register(
        f"{_class.__name__}-v0",
        entry_point=f"drl_cli.envs.probes:{_class.__name__}",
        max_episode_steps=STEPS.get(_class),
    )
for _name, (_base, _arguments) in VARIANTS.items():
    gymnasium.register(f"{_name}-v0", entry_point=f"drl_cli.envs.probes:{_base.__name__}", kwargs=_arguments)

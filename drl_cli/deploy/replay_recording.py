"""Turn the replay table of a checkpoint into episodes for a dataset."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from drl_cli.data.episode import Episode
from drl_cli.envs.recorded import StepMap
from drl_cli.errors import UsageError
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import read_manifest
from drl_cli.runtime.files.saved_replay import has_lost_rows, read_states, saved_rows
from drl_cli.types import Array, Columns, EnvSpec, leaves


def check_replay(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if the run's replay does not hold single steps in order."""
    reason = config.replay.lacks_steps(config.algo.n_step)
    if reason is None and config.stackings(spec):
        reason = "images are stored as frames"
    elif reason is None and config.env.reward_clip is not None:
        reason = f"env.reward_clip={config.env.reward_clip:g} has changed the rewards"
    if reason is not None:
        raise UsageError(f"replay=true: {reason}. To record episodes of the policy: drl-record run=RUN episodes=100")


def replay_episodes(config: Config, steps: StepMap, checkpoint: Path) -> Iterator[Episode]:
    """Yield the episodes of each environment in the replay of a checkpoint, in the units of the environment.

    An episode is truncated if its end or its next step is not in the replay. It is not whole if its end or its
    beginning is not in the replay. Raise CheckpointError if the replay was not saved or is damaged.
    """
    manifest = read_manifest(checkpoint)
    pieces = [*saved_rows(checkpoint, manifest)]
    rows = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    rows = {name: column[np.argsort(rows["source"], kind="stable")] for name, column in rows.items()}
    ends = episode_ends(rows)
    whole = whole_episodes(rows, ends, has_lost_rows(read_states(checkpoint, manifest)))
    for (first, last), is_whole in zip(pairwise([0, *ends]), whole, strict=True):
        yield _episode(config, steps, {name: column[first:last] for name, column in rows.items()}, is_whole)


def whole_episodes(rows: Columns, ends: list[int], has_lost_rows: bool) -> list[bool]:
    """Return for each episode that ends before a row of `ends` whether `rows` has its beginning and its end.

    With `has_lost_rows`, the first row of an environment may be in the middle of an episode.
    """
    is_over, source = rows["terminated"] | rows["truncated"], rows["source"]
    follows = np.append(False, source[1:] == source[:-1])
    begins = np.where(follows, np.append(False, is_over[:-1]), not has_lost_rows)
    return [bool(begins[first] and is_over[last - 1]) for first, last in pairwise([0, *ends])]


def episode_ends(rows: Columns) -> list[int]:
    """Return the indices after the last steps of episodes, for rows `[rows, ...]` of one environment after another."""
    goes_on = ~(rows["terminated"] | rows["truncated"])[:-1] & (rows["source"][1:] == rows["source"][:-1])
    for name in rows:
        kind, dot, path = name.partition(".")
        if kind == "next_obs":
            same = rows[name][:-1] == rows[f"obs{dot}{path}"][1:]
            goes_on &= same.reshape(len(same), -1).all(1)
    return [*(np.flatnonzero(~goes_on) + 1).tolist(), len(rows["source"])]


def _episode(config: Config, steps: StepMap, rows: Columns, is_whole: bool) -> Episode:
    obs = {path: _with_last(rows, f".{path}" if path else "") for path in leaves(steps.spec.obs)}
    truncated = rows["truncated"].copy()
    truncated[-1] |= not rows["terminated"][-1]
    reward = rows["reward"] / np.float64(config.env.reward_scale)
    actions = steps.raw_actions(rows["action"])
    return Episode(steps.raw_obs(obs), actions, reward, rows["terminated"], truncated, is_whole=is_whole)


def _with_last(rows: Columns, path: str) -> Array:
    """Return a part of the observations `[T+1, ...]`, with the one after the last step."""
    return np.concatenate([rows[f"obs{path}"], rows[f"next_obs{path}"][-1:]])

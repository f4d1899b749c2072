"""Values of mode=offline that neither a file nor the command line sets: they follow from the data and total_updates."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DEEP = [256, 256, 256]
_CQL = {"network.hidden": DEEP, "algo.actor_lr": 3e-5, "algo.samples": 10}
PAPERS: dict[str, dict[str, Any]] = {
    "iql": {"algo.expectile": 0.7, "algo.beta": 3.0},
    "awac": {"network.hidden": DEEP, "algo.temperature": 1.0},
    "rebrac": {"network.hidden": DEEP},
    "cql": {**_CQL, "algo.cql_alpha": 10.0},
    "cal_ql": {**_CQL, "algo.cql_alpha": 5.0},
}
"""The values of algorithms in long runs, where they differ from WITH_TUNED, by the algorithm's name."""
SHORT_RUN: dict[str, Any] = {
    "algo.lr": 1e-3,
    "algo.actor_lr": 1e-3,
    "algo.expectile": 0.9,
    "algo.beta": 10.0,
    "algo.temperature": 0.2,
    "algo.cql_alpha": 1.0,
    "algo.samples": 4,
    "trainer.batch_size": 128,
    "network.hidden": [128, 128],
}
"""The values in a run of few updates, which makes larger and cheaper ones."""
WITHOUT_REWARDS = ("bc",)
"""The algorithms that read no rewards."""


def data_values(name: str, is_short: bool) -> dict[str, Any]:
    """Return the values of a run that learns from data without tuned values, by key. `name` is the algorithm's."""
    scaled = {"env.normalize_obs": True, "env.normalize_reward": name not in WITHOUT_REWARDS}
    return {**scaled, **(SHORT_RUN if is_short else {})}


def time_limit(data: Mapping[str, Any]) -> int | None:
    """Return the number of steps after which the episodes of the dataset were cut, None if no limit can be seen.

    `data` has the values of the group `data`. The limit is the length of the longest episode, if it was truncated. A
    dataset that can't be read has no limit here, and the checks of the dataset report the reason later.
    """
    from drl_cli.data.dataset import DatasetError
    from drl_cli.data.find import consent_file

    source = data.get("source")
    sources = [source] if isinstance(source, str) else source
    if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
        return None
    try:
        found = [_longest(one, _stamp(consent_file(one))) for one in sources]
    except (DatasetError, OSError):
        return None
    steps, is_cut = max(found, default=(0, False))
    return steps if is_cut else None


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns


@cache
def _longest(source: str, stamp: int) -> tuple[int, bool]:
    """Return the steps of the longest whole episode of a dataset, and whether such an episode was truncated.

    `stamp` changes with the file, so that a file with other contents is read again.
    """
    from drl_cli.data.open import open_recording  # slow: imports gymnasium
    from drl_cli.data.recording import closed

    recording = open_recording(source)
    truncated, ends = closed(source, recording.terminated, recording.truncated)
    is_whole = np.isin(np.arange(len(ends)), recording.pieces, invert=True)
    pairs = zip(np.diff(ends, prepend=0)[is_whole].tolist(), truncated[ends - 1][is_whole].tolist(), strict=True)
    return max(pairs, default=(0, False))

"""The time limit of the episodes of a dataset."""

from functools import cache

import numpy as np

from drl_cli.data.dataset import DatasetError
from drl_cli.data.find import consent_file


def time_limit(source: object) -> int | None:
    """Return the number of steps after which the episodes of the dataset were cut, None if no limit can be seen.

    `source` is the value of the key `data.source`. The limit is the length of the longest episode, if it was truncated.
    A dataset that can't be read has no limit here, and the checks of the dataset report the reason later.
    """
    sources = [source] if isinstance(source, str) else source
    if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
        return None
    try:
        found = [_longest(one, consent_file(one).stat().st_mtime_ns) for one in sources]
    except (DatasetError, OSError):
        return None
    steps, is_cut = max(found, default=(0, False))
    return steps if is_cut else None


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

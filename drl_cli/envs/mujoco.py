"""MuJoCo (an optional extra): build models without warnings about their files."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium


@contextmanager
def without_model_warnings(id: str) -> Iterator[None]:
    """Ignore MuJoCo's warnings while one of the MuJoCo tasks of Gymnasium or dm_control is built.

    MuJoCo warns about an old attribute in the models of cheetahs, once per environment, on stderr and in a file
    MUJOCO_LOG.TXT. Warnings about an unstable simulation come later and are shown.
    """
    if id.startswith("dm_control/"):
        log = logging.getLogger("absl")  # dm_control sends MuJoCo's warnings to this logger
        was, log.disabled = log.disabled, True
        try:
            yield
        finally:
            log.disabled = was
        return
    # Gymnasium also makes an id without its version
    versions = [spec for name, spec in gymnasium.registry.items() if id in (name, name.rpartition("-v")[0])]
    mujoco = _import() if any("gymnasium.envs.mujoco" in str(spec.entry_point) for spec in versions) else None
    if mujoco is None:
        yield
        return
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def _import() -> Any:  # Any: MuJoCo has no types
    """Return the module mujoco, or None if it is not installed, which gymnasium.make reports."""
    try:
        import mujoco
    except ImportError:
        return None
    return mujoco

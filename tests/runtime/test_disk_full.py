"""A disk that is full for a while: the replay and then whole checkpoints are left out, and the run continues."""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest

from drl_cli.runtime.restore import open_checkpoint

PLENTY, LITTLE, NOTHING = 2**40, 10 * 2**20, 0
PHASES = {range(0, 300): PLENTY, range(300, 600): LITTLE, range(600, 900): NOTHING, range(900, 2000): PLENTY}
"""Bytes that are free, by environment steps."""


def room_at(env_steps):
    return next(room for steps, room in PHASES.items() if env_steps in steps)


def is_inside(env_steps):
    """Return whether a save that starts here also ends in the same phase."""
    return room_at(env_steps) == room_at(env_steps + 96)


@pytest.mark.parametrize(("mode", "is_said_before"), [("sync", True), ("async", False), ("single", True)])
def test_a_run_survives_a_full_disk_and_saves_again_later(run_graph, monkeypatch, caplog, mode, is_said_before):
    graphs = []

    def room():
        return room_at(graphs[0].progress.env_steps) if graphs else PLENTY

    def disk_usage(path):
        return SimpleNamespace(free=room() if is_said_before else PLENTY)

    def fsync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not is_said_before and room() < (PLENTY if "state.replay" in path else LITTLE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    monkeypatch.setattr(os, "fsync", fsync)
    args = ("env=Pendulum-v1", f"mode={mode}", "checkpoint.period=96", "checkpoint.keep_last=99")
    graph = run_graph(*args, "total_env_steps=1280", "manage.eval_period=10000", started=graphs.append)
    checkpoints = [open_checkpoint(path) for path in sorted((graph.folder / "checkpoints").glob("step_*[0-9]"))]
    saved = {(room_at(each.env_steps), each.has_replay) for each in checkpoints if is_inside(each.env_steps)}
    assert saved == {(PLENTY, True), (LITTLE, False)}
    assert checkpoints[-1].has_replay
    assert checkpoints[-1].env_steps == graph.progress.env_steps >= 1280
    assert not list((graph.folder / "checkpoints").glob(".step*"))
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [text.split(":")[0] for text in warnings] == [
        "the replay is left out of a checkpoint",
        "a checkpoint could not be saved",
    ]
    last = max(each.env_steps for each in checkpoints if each.env_steps < 600)
    assert f"the last good one is step_{last:09d}" in warnings[1]
    rest = run_graph(*args, "total_env_steps=1536", run=graph.folder)
    assert rest.progress.env_steps >= 1536

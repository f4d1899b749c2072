"""A disk that is full for a while: the replay and then whole checkpoints are left out, and the run continues."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from choices import some

from drl_cli.errors import NotSaved
from drl_cli.run_folder.checkpoint import load_model, open_checkpoint

PLENTY, LITTLE, NOTHING = 2**40, 10 * 2**20, 0
PHASES = {range(0, 300): PLENTY, range(300, 600): LITTLE, range(600, 900): NOTHING, range(900, 2000): PLENTY}
"""Bytes that are free, by environment steps."""


def room_at(env_steps):
    return next(room for steps, room in PHASES.items() if env_steps in steps)


def is_inside(env_steps):
    """Return whether a save that starts here also ends in the same phase."""
    return room_at(env_steps) == room_at(env_steps + 96)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "is_said_before"),
    some([("sync", True), ("async", False), ("single", True)], ("sync", True), ("async", False)),
)
def test_a_run_survives_a_full_disk_and_saves_again_later(run_graph, monkeypatch, caplog, mode, is_said_before):
    graphs, checkpoints = [], []

    def started(graph):
        graphs.append(graph)
        on_saved = graph.saver.on_saved

        def note(counters, saved):
            on_saved(counters, saved)
            checkpoints.extend([open_checkpoint(Path(saved))] if isinstance(saved, str) else [])

        graph.saver.on_saved = note

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
    graph = run_graph(*args, "total_env_steps=1280", "manage.eval_period=10000", started=started)
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


@pytest.fixture
def fill_disk(monkeypatch):
    """Make the disk full for all files that `is_full(path)` selects."""
    fsync = os.fsync

    def fill(is_full):
        def full(descriptor):
            if is_full(path := os.readlink(f"/proc/self/fd/{descriptor}")):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", full)

    return fill


ARGS = ("env=Pendulum-v1", "mode=sync", "checkpoint.period=96", "total_env_steps=512")


@pytest.fixture
def graph(build_graph):
    """A run that has made its steps and not yet ended."""
    graph = build_graph(*ARGS)
    graph.run()
    return graph


def folders(graph):
    return sorted(path.name for path in (graph.folder / "checkpoints").glob("step_*[0-9]"))


def test_final_weights_that_do_not_fit_end_the_run_with_exit_code_7(graph, fill_disk):
    before = folders(graph)
    fill_disk(lambda path: "checkpoints" in path)
    with pytest.raises(NotSaved, match=r"the final weights could not be saved: .*No space left") as caught:
        graph.finish()
    assert caught.value.exit_code == 7
    assert folders(graph) == before[-1:]  # older checkpoints made room
    assert open_checkpoint(graph.folder / "checkpoints" / "last").env_steps < 512


def test_final_weights_are_saved_alone_if_the_states_do_not_fit(graph, fill_disk, caplog):
    assert (graph.folder / ".reserve").stat().st_size > graph.learning.params.value.nbytes
    fill_disk(lambda path: "state." in path or (graph.folder / ".reserve").exists())
    graph.finish()
    params, manifest = load_model(graph.folder / "checkpoints" / folders(graph)[-1])
    assert np.array_equal(params, graph.learning.params.value)
    assert manifest["env_steps"] == 512
    assert open_checkpoint(graph.folder / "checkpoints" / "last").env_steps == 480
    assert "step_000000512 has only the final weights: drl-eval takes checkpoint=step_000000512" in caplog.messages[-1]


def test_older_checkpoints_and_the_replay_make_room_for_the_last_checkpoint(graph, build_graph, fill_disk):
    newest = folders(graph)[-1]

    def is_full(path):
        is_replay_saved = any(Path(path).parent.glob("state.replay-*"))
        return "trainer" in path and (is_replay_saved or folders(graph) != [newest])

    fill_disk(is_full)
    graph.finish()
    last = open_checkpoint(graph.folder / "checkpoints" / "last")
    assert (last.env_steps, last.has_replay) == (512, False)
    rest = build_graph(*ARGS, "total_env_steps=768", run=graph.folder)
    rest.run()
    assert rest.progress.env_steps == 768


def test_the_replay_of_an_older_checkpoint_makes_room_for_the_final_weights(graph, fill_disk):
    last = graph.folder / "checkpoints" / "last"
    assert open_checkpoint(last).has_replay
    fill_disk(lambda path: Path(path).is_file() and "manifest" not in path and any(last.glob("state.replay-*")))
    graph.finish()
    assert not open_checkpoint(last).has_replay
    assert folders(graph)[-1] == "step_000000512"


def test_a_broken_disk_removes_nothing(graph, monkeypatch):
    before = folders(graph)

    def broken(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(NotSaved, match="Input/output error"):
        graph.finish()
    assert folders(graph) == before


def test_the_reserve_makes_room_for_a_whole_checkpoint(graph, fill_disk):
    reserve = graph.folder / ".reserve"
    fill_disk(lambda path: "state.trainer" in path and reserve.exists())
    graph.finish()
    assert open_checkpoint(graph.folder / "checkpoints" / "last").env_steps == 512
    assert reserve.exists()


def test_the_reserve_is_made_even_if_the_first_checkpoint_does_not_fit(build_graph, fill_disk):
    fill_disk(lambda path: "state." in path)
    graph = build_graph(*ARGS)
    graph.run()
    assert (graph.folder / ".reserve").exists()
    graph.finish()
    assert folders(graph) == ["step_000000512"]


def test_the_reserve_is_gone_after_the_run(run_graph):
    graph = run_graph(*ARGS)
    assert (graph.folder / ".reserve").exists()
    graph.close("done")
    assert not (graph.folder / ".reserve").exists()

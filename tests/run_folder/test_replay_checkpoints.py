import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from headers import make_insert
from hypothesis import given, settings
from hypothesis import strategies as st
from images import IMAGES
from replays import CONFIGS, SPEC, Source, check_equal_answers, check_same, clone, make

from drl_cli.run_folder import replay_files
from drl_cli.run_folder.checkpoint import finish, make_draft, read_manifest
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.messages import SampleBatch
from drl_cli.runtime.place.handles import LocalHandle, get
from drl_cli.runtime.roles.normalization import Layout
from drl_cli.runtime.roles.trajectory_manager import TrajectoryManager

VERSION = SimpleNamespace(version=1, opt_steps=1, env_steps=1, exploration={})
CHUNK_BYTES = 128
"""A few rows of these small tables."""


class Run:
    """A trajectory manager and its worker, whose incarnation is the seed."""

    def __init__(self, kind, capacity=40, shard=0, num_shards=1, layout=None, seed=0):
        self.manager = TrajectoryManager(make(kind, seed, capacity), shard, layout, num_shards, CHUNK_BYTES)
        self.source, self.incarnation, self.number = Source(kind, seed), seed, 0

    @property
    def table(self):
        return self.manager.table

    def insert(self, *counts):
        for rows in counts:
            columns, versions = self.source.block(rows)
            version = int(versions.max(initial=0))
            names = {"worker": 3, "incarnation": self.incarnation, "number": self.number}
            self.manager.insert([make_insert(len(versions), **names, version=version)], columns)
            self.number += 1


def complete(folder, *managers, previous=None, between=lambda: None):
    draft = make_draft(folder)
    for manager in managers:
        manager.begin_save(str(draft), None if previous is None else str(previous))
    sums = {}
    for manager in managers:
        while (part := manager.save_part()) is None:
            between()
        sums |= part
    return finish(draft, folder, VERSION, np.zeros(1, np.float32), sums, {})


def load(manager, folder):
    return manager.load(str(folder), read_manifest(folder))


def check_restored(run, folder, kind="uniform", **options):
    """Check that a new manager has the table of `run` after loading; return it."""
    restored = Run(kind, **options)
    load(restored.manager, folder)
    check_same([run.table, restored.table])
    return restored


def changed(folder, previous):
    """Return the numbers of the chunk files that are not links to those of the previous checkpoint."""
    return [int(name[15:20]) for name, inode in chunks(folder).items() if inode != previous.get(name)]


def chunks(folder):
    return {path.name: path.stat().st_ino for path in sorted(folder.glob("state.replay-0.?????.safetensors"))}


@pytest.fixture(scope="module", autouse=True)
def small_parts():
    """Write one file per part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_files, "PART_BYTES", 1)
        yield


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_chain_of_checkpoints_is_exact(kind, tmp_path):
    """With inserts between the parts, and without the older checkpoints."""
    run, previous = Run(kind), None
    run.insert(*[9] * 6)
    for step in range(3):
        moment, blocks = clone(run.table), dict(run.manager.last_block)
        folder = complete(tmp_path / f"step_{step}", run.manager, previous=previous, between=lambda: run.insert(3))
        if previous is not None:
            shutil.rmtree(previous)
        resumed = Run(kind, seed=7)
        rows = load(resumed.manager, folder)
        assert (rows, resumed.manager.last_block) == (len(moment), blocks)
        run.insert(5)
        check_equal_answers([moment, resumed.table], Source(kind, 5))
        previous = folder


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    steps=st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from(["save", "abort", "resume", "older"])), min_size=2, max_size=8
    ),
)
def test_links_lead_to_the_right_rows_after_any_history(kind, steps, tmp_path_factory):
    """With aborted saves, lost folders, and runs resumed from the last or an older checkpoint."""
    root, run, folders = tmp_path_factory.mktemp("run"), Run(kind), []
    for number, (rows, what) in enumerate(steps):
        run.insert(rows)
        previous = folders[-1] if folders else None
        if what == "abort":
            draft = make_draft(root / f"step_{number}")
            run.manager.begin_save(str(draft), None if previous is None else str(previous))
            is_done = run.manager.save_part() is not None
            run.manager.abort_save()
            assert any(draft.iterdir()) == is_done
        elif what == "save" or previous is None:
            folders.append(complete(root / f"step_{number}", run.manager, previous=previous))
        else:
            if what == "older":  # the newer checkpoints are lost, after their managers had saved them
                shutil.rmtree(folders.pop())
            if what == "resume" or not folders:
                complete(root / "lost", run.manager)
                shutil.rmtree(root / "lost")
            if folders:
                run = Run(kind, seed=number)
                load(run.manager, folders[-1])
        final = complete(root / "final", run.manager, previous=folders[-1] if folders else None)
        check_restored(run, final, kind, seed=99)


def test_unchanged_chunks_are_linked_also_after_a_resume(tmp_path):
    run = Run("uniform", capacity=64)
    run.insert(20, 20, 20)
    assert run.manager.saver.chunk_rows == 4
    first = complete(tmp_path / "step_1", run.manager)
    inodes = chunks(first)
    assert len(inodes) == 15
    run.insert(7)  # 4 into empty slots of chunk 15, 3 over the rows of chunk 0
    second = complete(tmp_path / "step_2", run.manager, previous=first)
    assert changed(second, inodes) == [0, 15]
    shutil.rmtree(first)
    resumed = check_restored(run, second, capacity=64, seed=1)
    resumed.insert(1)  # the last slot of chunk 0
    third = complete(tmp_path / "step_3", resumed.manager, previous=second)
    assert changed(third, chunks(second)) == [0]
    check_restored(resumed, third, capacity=64)
    assert resumed.manager.begin_save(str(make_draft(tmp_path / "a")), str(third)) < 600  # the state alone
    assert resumed.manager.begin_save(str(make_draft(tmp_path / "b")), None) > 16 * 4 * 21


@pytest.mark.parametrize("loss", ["folder", "manifest", "file"])
def test_chunks_that_can_not_be_linked_are_written(loss, tmp_path):
    run = Run("uniform")
    run.insert(40)
    first = complete(tmp_path / "step_1", run.manager)
    if loss == "folder":
        shutil.rmtree(first)
    else:
        (first / {"manifest": "manifest.json", "file": "state.replay-0.00002.safetensors"}[loss]).unlink()
    second = complete(tmp_path / "step_2", run.manager, previous=first)
    assert sum((second / name).stat().st_nlink == 1 for name in chunks(second)) == (1 if loss == "file" else 10)
    check_restored(run, second)


def test_writing_over_links_does_not_change_the_other_checkpoint(tmp_path):
    """A restarted shard begins its save again in the same folder."""
    run = Run("uniform")
    run.insert(40)
    first, draft = complete(tmp_path / "step_1", run.manager), make_draft(tmp_path / "step_2")
    run.manager.begin_save(str(draft), str(first))
    other = Run("uniform", seed=3)
    other.insert(30)
    other.manager.begin_save(str(draft), None)
    while other.manager.save_part() is None:
        pass
    check_restored(run, first)


def test_a_failed_write_can_be_aborted(tmp_path):
    run = Run("frames")
    run.insert(9, 9, 9)
    draft = make_draft(tmp_path / "step_1")
    (draft / "state.replay-1.safetensors").touch()  # another shard's
    run.manager.begin_save(str(draft), None)
    assert run.manager.save_part() is None
    (draft / "state.replay-0.00001.safetensors").mkdir()
    with pytest.raises(OSError, match=r"00001"):
        run.manager.save_part()
    os.rmdir(draft / "state.replay-0.00001.safetensors")
    run.manager.abort_save()
    run.manager.abort_save()
    assert [path.name for path in draft.iterdir()] == ["state.replay-1.safetensors"]
    assert run.table.store.on_write is None
    run.insert(9)
    check_restored(run, complete(tmp_path / "step_2", run.manager), "frames")


def test_moments_and_last_blocks_are_restored(tmp_path):
    layout = Layout({"": (3,)}, False)
    run, resumed = (Run("uniform", layout=layout) for _ in range(2))
    run.insert(9, 9, 40)
    load(resumed.manager, complete(tmp_path / "step_1", run.manager))
    assert resumed.manager.moments.packed().tobytes() == run.manager.moments.packed().tobytes()
    assert resumed.manager.last_block == {(3, 0): 2}
    with pytest.raises(ValueError, match="block 0 of worker 3 was inserted before"):
        resumed.insert(1)


def fill_shards(kind, num_shards, capacity, blocks, layout=None):
    """Make shards whose row ids count up in the order of inserts."""
    runs = [Run(kind, capacity, shard, num_shards, layout) for shard in range(num_shards)]
    for number in range(blocks):
        run = runs[number % num_shards]
        run.source = runs[0].source
        run.number = number
        run.insert(4)
    return runs


def rows_of(run):
    columns = run.table.contents()
    return [(row, obs.tobytes()) for row, obs in zip(columns["id"].tolist(), columns["obs"], strict=True)]


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "random"])
@pytest.mark.parametrize(("saved", "capacity"), [(1, 100), (1, 30), (1, 40), (3, 7)])
@pytest.mark.parametrize("num_shards", [1, 2])
def test_other_shards_or_capacities_are_refilled(kind, saved, capacity, num_shards, tmp_path):
    layout = Layout({"": (3,)}, False)
    old = fill_shards(kind, saved, 40, 37, layout)
    folder = complete(tmp_path / "step_1", *(run.manager for run in old))
    new = [Run(kind, capacity, shard, num_shards, layout, seed=9) for shard in range(num_shards)]
    rows = [load(run.manager, folder) for run in new]
    if (saved, capacity) == (num_shards, 40):
        check_same([old[0].table, new[0].table])
        return
    rows_there = [(row, obs) for run in old for row, obs in rows_of(run)]
    assert rows == [min(capacity, len(run.table)) for run in new]
    assert sum(rows) == min(capacity * num_shards, saved * 40)
    held = [rows_of(run) for run in new]
    ids = [row for part in held for row, _ in part]
    assert len(set(ids)) == len(ids)
    assert {row for part in held for row in part} <= set(rows_there)
    if kind != "random" and saved == 1:
        assert held == [sorted(part) for part in held]  # oldest first
        if num_shards == 1:
            assert held[0] == sorted(rows_there)[-len(ids) :]  # the newest rows are kept
    assert sum(run.manager.moments.count for run in new) == 37 * 4
    for run in new:
        assert (3, 0) in run.manager.last_block
        drawn = run.manager.sample(SampleBatch(2, 4))
        assert set(drawn[1]["id"].ravel().tolist()) <= set(ids)
        if kind == "prioritized":
            assert len(np.unique(run.table.sampler.tree.values[: len(run.table)])) == 1


@pytest.mark.parametrize(("kind", "capacity"), [("frames", 90), ("frames-lz4", 20), ("sequences", 90)])
def test_refilled_images_and_sequences_equal_the_saved_ones(kind, capacity, tmp_path):
    run, new = Run(kind), Run(kind, capacity, seed=3)
    run.insert(*[9] * 8)
    load(new.manager, complete(tmp_path / "step_1", run.manager))
    old, held = run.table.contents(), new.table.contents()
    for name, column in held.items():
        np.testing.assert_array_equal(column, old[name][-len(column) :])
    if kind.startswith("frames"):
        assert SPEC.obs.shape == held["obs"].shape[1:]
        rows = new.table.table.contents()
        frames = {id(frame): frame for name in IMAGES for frame in rows[name].flat}
        assert len(set(frames.values())) == len(frames)
    else:
        assert 0 < new.table.inserts <= len(new.table)
    new.insert(5)
    new.manager.sample(SampleBatch(1, 4))


def test_a_queue_of_another_capacity_begins_empty(tmp_path):
    run, new = Run("fifo-once"), Run("fifo-once", 60, seed=1)
    run.insert(9, 9)
    assert load(new.manager, complete(tmp_path / "step_1", run.manager)) == 0
    new.insert(9, 9, 9)
    assert len(new.table) == 27


def test_restored_shards_make_the_same_choices(tmp_path):
    runs = fill_shards("uniform", 3, 40, 2)
    shards = ReplayShards([LocalHandle(run.manager) for run in runs], np.random.default_rng(0))
    shards.filled = {0, 1}
    folder, state = complete(tmp_path / "step_1", *(run.manager for run in runs)), shards.state()
    fresh = [Run("uniform", 40, shard, 3, seed=4) for shard in range(3)]
    resumed = ReplayShards([LocalHandle(run.manager) for run in fresh], np.random.default_rng(1))
    resumed.load_state(state)
    assert (resumed.filled, [load(run.manager, folder) for run in fresh]) == ({0, 1}, [4, 4, 0])
    for _ in range(20):
        (a, ((_, first),)), (b, ((_, second),)) = shards.sample(SampleBatch(1, 4)), resumed.sample(SampleBatch(1, 4))
        assert a == b
        np.testing.assert_array_equal(get(first)["id"], get(second)["id"])
    fewer = ReplayShards([LocalHandle(fresh[0].manager)], np.random.default_rng(1))
    fewer.load_state(state)
    assert fewer.filled == {0}


@pytest.mark.parametrize("kind", ["uniform", "random", "frames"])
def test_written_rows_are_saved_again_and_a_write_during_a_save_comes_after_it(kind, tmp_path):
    run = Run(kind)
    run.insert(40)
    first = complete(tmp_path / "step_1", run.manager)

    def write(value):
        run.table.write(np.array([[0, 1]]), {"reward" if kind == "frames" else "obs": value})

    shape = (1, 2) if kind == "frames" else (1, 2, 3)
    write(np.full(shape, 5.0))
    moment = clone(run.table)
    second = complete(tmp_path / "step_2", run.manager, previous=first, between=lambda: write(np.full(shape, 9.0)))
    assert changed(second, chunks(first)) == ([0, 1] if kind == "frames" else [0])
    resumed = Run(kind, seed=7)
    load(resumed.manager, second)
    for name, column in moment.contents().items():
        np.testing.assert_array_equal(resumed.table.contents()[name], column)

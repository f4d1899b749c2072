"""Manage: what it claims, and how a checkpoint is put together or refused."""

import errno
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.runtime.files.checkpoint import make_draft, read_arrays, read_manifest
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.orchestrator import orchestrator
from drl_cli.runtime.roles import recording
from drl_cli.runtime.roles.evaluator import Score
from drl_cli.runtime.roles.manage import MANAGE_LOCK, Manage
from drl_cli.runtime.roles.recording import hyperparameters
from drl_cli.utils.locks import lock

PARAMS = np.arange(3, dtype=np.float32)
COUNTERS = {"counts": {"env_steps": 64}, "incarnation": 2}


@pytest.fixture
def manage(tmp_path):
    config = make_config(*TINY, COUNTER, "checkpoint.keep_last=1")
    (tmp_path / "checkpoints").mkdir()
    made = Manage(config, read_spec(config.env), tmp_path, 0.0)
    yield made
    made.claim.close()


def commit(manage, env_steps=64, version=5, **states):
    draft = make_draft(manage.checkpoints / f"step_{env_steps:09d}")
    (draft / "state.replay-0.safetensors").touch()
    counters = COUNTERS | {"counts": {"env_steps": env_steps}}
    sums = {"state.replay-0.safetensors": "its sum"}
    header = LoadParams(version, 50, env_steps)
    return draft, manage.commit(str(draft), header, PARAMS, counters, sums, tuple(states), *states.values())


def test_a_checkpoint_has_every_part_and_is_the_last(manage):
    states = {"trainer": {"a": np.ones(2)}, "worker 3": {"b": np.zeros((2, 2))}}
    draft, folder = commit(manage, **states)
    assert folder == str(manage.checkpoints / "step_000000064")
    manifest = read_manifest(manage.checkpoints / "last")
    names = {"state.trainer.safetensors", "state.worker-3.safetensors", "state.orchestrator.json"}
    assert manifest["sha256"].keys() == names | {"state.replay-0.safetensors", "model.safetensors"}
    assert (manifest["version"], manifest["sha256"]["state.replay-0.safetensors"]) == (5, "its sum")
    arrays = read_arrays(manage.checkpoints / "last", "state.worker-3.safetensors", manifest)
    assert {name: array.shape for name, array in arrays.items()} == {"b": (2, 2)}
    assert json.loads((manage.checkpoints / "last" / "state.orchestrator.json").read_text()) == COUNTERS
    assert not draft.exists()
    commit(manage, env_steps=128, **states)
    assert sorted(path.name for path in manage.checkpoints.iterdir()) == ["last", "step_000000128"]


@pytest.mark.parametrize(("spare", "is_saved"), [(0, True), (-1, False)])
def test_a_checkpoint_needs_room_for_its_arrays_and_a_megabyte(manage, monkeypatch, spare, is_saved):
    state = {"a": np.zeros(5 * 2**17)}
    needed = PARAMS.nbytes + 5 * 2**20 + 2**20
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed + spare))
    draft, answer = commit(manage, trainer=state)
    if is_saved:
        assert answer == str(manage.checkpoints / "step_000000064")
        return
    assert (answer.errno, answer.filename) == (errno.ENOSPC, str(draft))
    assert "6 MB are needed, 6 MB are free" in str(answer)
    assert list(manage.checkpoints.iterdir()) == []  # no draft is left


def test_the_folder_is_claimed_with_others_who_do_the_same(manage):
    lock(manage.folder / MANAGE_LOCK, shared=True).close()
    with pytest.raises(BlockingIOError):
        lock(manage.folder / MANAGE_LOCK)


def test_a_model_alone_is_saved_beside_what_is_there(manage):
    header = LoadParams(5, 50, 64)
    folders = [manage.save(header, PARAMS) for _ in range(2)]
    assert folders == [str(manage.checkpoints / name) for name in ("step_000000064", "step_000000064-v5")]
    assert read_manifest(manage.checkpoints / "step_000000064-v5")["version"] == 5


def test_hyperparameters_are_the_configs_values_by_name():
    config = make_config(*TINY, COUNTER, "stop.return=5", "seed=7")
    flat = hyperparameters(config)
    assert flat["seed"] == 7
    assert flat["algo.lr"] == config.algo.lr
    assert flat["stop.return"] == 5.0  # return_ in Python
    assert flat["network.hidden"] == str(config.network.hidden)
    assert flat["logger.tensorboard"] is False
    assert all(isinstance(value, bool | int | float | str) for value in flat.values())


def test_its_last_words_are_what_was_not_said_yet(manage):
    manage.recording.warn("a problem")
    assert manage.close("done") == ["a problem"]


def test_recorders_end_well_before_the_orchestrator_gives_manage_up():
    assert recording.CLOSE_S <= orchestrator.CLOSE_S - 2


def test_of_the_best_models_as_many_are_kept_as_of_checkpoints(manage):
    manage._play = lambda part, params: Score(np.full(2, params.mean()), np.ones(2, np.int64), 0)
    for version in (1, 2, 3):
        manage.evaluate(LoadParams(version, version, 10 * version), np.full(3, version, np.float32))
    assert sorted(path.name for path in manage.checkpoints.iterdir()) == ["best", "step_000000030-best"]

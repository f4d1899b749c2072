"""Manage: the best evaluation, also after a resume; checkpoints; the lock on the folder."""

import csv
import errno
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.runtime.files.checkpoint import make_draft, read_arrays, read_manifest
from drl_cli.runtime.messages import Draft, LoadParams
from drl_cli.runtime.orchestrator import orchestrator
from drl_cli.runtime.roles import recording
from drl_cli.runtime.roles.evaluator import Score
from drl_cli.runtime.roles.manage import MANAGE_LOCK, Manage
from drl_cli.runtime.roles.recording import hyperparameters
from drl_cli.utils.files import lock

PARAMS = np.arange(3, dtype=np.float32)
COUNTERS = {"counts": {"env_steps": 64}, "incarnation": 2}


@pytest.fixture
def make_manage(tmp_path):
    """A manage of the run in tmp_path; its evaluations score the given means in order, or the mean of the params."""
    config = make_config(*TINY, COUNTER, "checkpoint.keep_last=1")
    (tmp_path / "checkpoints").mkdir()
    made = []

    def make(*means):
        made.append(Manage(config, read_spec(config.env), tmp_path, 0.0))
        scores = iter(means)
        made[-1]._play = lambda _, params: Score(np.full(2, next(scores, params.mean())), np.ones(2, np.int64), 0)
        return made[-1]

    yield make
    for manage in made:
        manage.claim.close()


@pytest.fixture
def manage(make_manage):
    return make_manage()


def evaluate(manage, *versions):
    params = {version: np.full(3, version, np.float32) for version in versions}
    headers = [LoadParams(version, version, 10 * version) for version in versions]
    return [manage.evaluate(header, params[header.version]).is_best for header in headers]


def best(manage):
    manifest = read_manifest(manage.checkpoints / "best")
    return manifest["version"], manifest["mean"]


def test_a_resumed_manage_knows_the_best_so_far(make_manage):
    first = make_manage(5.0)
    evaluate(first, 1)
    first.close("done")
    second = make_manage(4.0, 5.0, 5.5)
    assert evaluate(second, 2) == [False]
    assert best(second) == (1, 5.0)
    assert evaluate(second, 3, 4) == [False, True]
    assert best(second) == (4, 5.5)
    rows = list(csv.DictReader((second.folder / "eval.csv").open()))
    assert [row["version"] for row in rows] == ["1", "2", "3", "4"]


def test_keep_last_also_limits_the_best_models(manage):
    assert evaluate(manage, 1, 2, 3) == [True] * 3
    assert sorted(path.name for path in manage.checkpoints.iterdir()) == ["best", "step_000000030-best"]


def test_evaluations_and_workers_have_different_seeds(run_graph):
    graph = run_graph(COUNTER, "mode=sync", "worker.num=2", "stop.return=5")
    evaluators = graph.manage.handle.role.evaluators
    evaluated = [seed for evaluator in evaluators for seed in evaluator.seeds]
    workers = [member.handle.role for member in graph.pool.members]
    assert len(set(evaluated)) == len(evaluated) == 4  # two, and two to confirm
    assert not set(evaluated) & {seed for worker in workers for seed in worker.envs.seeds}


def commit(manage, env_steps=64, version=5, **states):
    draft = make_draft(manage.checkpoints / f"step_{env_steps:09d}")
    (draft / "state.replay-0.safetensors").touch()
    counters = COUNTERS | {"counts": {"env_steps": env_steps}}
    sums = {"state.replay-0.safetensors": "its sum"}
    message = Draft(str(draft), LoadParams(version, 50, env_steps), counters, sums, tuple(states))
    return draft, manage.commit(message, PARAMS, *states.values())


def test_commit_completes_a_checkpoint(manage):
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
def test_commit_needs_space_for_the_arrays_and_a_megabyte(manage, monkeypatch, spare, is_saved):
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


def test_manage_holds_a_shared_lock_on_the_folder(manage):
    lock(manage.folder / MANAGE_LOCK, shared=True).close()
    with pytest.raises(BlockingIOError):
        lock(manage.folder / MANAGE_LOCK)


def test_save_writes_a_model_beside_existing_ones(manage):
    header = LoadParams(5, 50, 64)
    folders = [manage.save(header, PARAMS) for _ in range(2)]
    assert folders == [str(manage.checkpoints / name) for name in ("step_000000064", "step_000000064-v5")]
    assert read_manifest(manage.checkpoints / "step_000000064-v5")["version"] == 5


def test_hyperparameters_have_the_configs_keys():
    config = make_config(*TINY, COUNTER, "stop.return=5", "seed=7")
    flat = hyperparameters(config)
    assert flat["seed"] == 7
    assert flat["algo.lr"] == config.algo.lr
    assert flat["stop.return"] == 5.0  # return_ in Python
    assert flat["network.hidden"] == str(config.network.hidden)
    assert flat["logger.tensorboard"] is False
    assert all(isinstance(value, bool | int | float | str) for value in flat.values())


def test_close_returns_the_last_problems(manage):
    manage.recording.warn("a problem")
    assert manage.close("done") == ["a problem"]


def test_recorders_end_well_before_the_orchestrators_limit():
    assert recording.CLOSE_S <= orchestrator.CLOSE_S - 2

import json
from pathlib import Path

import numpy as np
import pytest
from recorded_envs import SPACES, episodes, header

from drl_cli.data.dataset import DatasetError
from drl_cli.data.draft import Episode
from drl_cli.data.write import Header, write

STEPS = 40


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def saved(name, actions, **changes):
    ends = np.arange(STEPS) % 10 == 9
    arrays = {
        "observations": np.zeros((STEPS, 2)), "actions": actions, "rewards": np.repeat([1.0, 2, 3, 4], 10),
        "terminations": ends & (np.arange(STEPS) < 10), "truncations": ends & (np.arange(STEPS) >= 10),
        "next_observations": np.zeros((STEPS, 2)),
    }  # fmt: skip
    np.savez(name, **arrays | changes)
    return name


def cells(lines):
    head, *rows = (line.split("  ") for line in lines)
    names, *found = ([cell.strip() for cell in row if cell] for row in (head, *rows))
    return [dict(zip(names, row, strict=True)) for row in found]


def test_counts_returns_actions_and_spaces(listed):
    saved("a.npz", np.arange(STEPS) % 3)
    (row,) = cells(listed("data", "a.npz"))
    assert row == {
        "dataset": "a.npz", "env": "-", "steps": "40", "episodes": "4", "ended": "1", "cut": "3",
        "mean": "25.0", "min": "10.0", "max": "40.0", "score": "-", "covers": "100%",
        "observations": "float32(2)", "actions": "Discrete(3)",
    }  # fmt: skip
    (row,) = cells(listed("data", "a.npz", "reference=[5,45]"))
    assert row["score"] == "50.0"


def test_spaces_with_parts(listed):
    episode = next(_episodes("tuple"))
    write(Path("a.npz").absolute(), Header("Sampler-v0", SPACES["tuple"]), lambda _: [episode])
    (row,) = cells(listed("data", "a.npz"))
    assert (row["env"], row["observations"]) == ("Sampler-v0", "Discrete(7)")


def _episodes(kind):
    observations, actions = SPACES[kind]
    from drl_cli.envs.trees import parts_of

    obs = [parts_of(observations.sample()) for _ in range(3)]
    action = [parts_of(actions.sample()) for _ in range(2)]
    yield Episode(
        {path: np.stack([each[path] for each in obs]) for path in obs[0]},
        {path: np.stack([each[path] for each in action]) for path in action[0]},
        np.ones(2), np.array([False, True]), np.zeros(2, bool),
    )  # fmt: skip


def full_disk(done):
    yield from episodes("box", 2)
    raise OSError("full")


def test_without_names_all_datasets_are_listed(listed, tmp_path):
    assert listed("data") == [f"no datasets in {tmp_path}/outputs; drl-record run=RUN episodes=100 makes one"]
    for folder in ("outputs/data/Pole", "outputs/Pole/sac-sync/2026-s1/data"):
        (tmp_path / folder).mkdir(parents=True)
        saved(f"{folder}/a.npz", np.arange(STEPS) % 3)
    (tmp_path / "outputs/data/Pole/bad.npz").write_bytes(b"")
    with pytest.raises(OSError, match="full"):
        write(tmp_path / "minari/my/y-v0", header("box"), full_disk)
    (tmp_path / "minari/my/x-v0/data").mkdir(parents=True)
    (tmp_path / "minari/my/x-v0/data/metadata.json").write_text(json.dumps({}))
    *table, bad, theirs = listed("data")
    assert [row["dataset"] for row in cells(table)] == [
        "outputs/Pole/sac-sync/2026-s1/data/a.npz",
        "outputs/data/Pole/a.npz",
        f"{tmp_path}/minari/my/y-v0.partial",
    ]
    assert (bad.partition(" is ")[0], theirs.partition(" has ")[0]) == ("outputs/data/Pole/bad.npz", "minari:my/x-v0")


def test_problems_of_all_named_datasets(drl_here):
    saved("a.npz", np.arange(STEPS) % 3)
    done = drl_here("list", "data", "a.npz", "b.npz", "run:latest")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no dataset 'b.npz'; ")
    assert "error: no run 'latest'" in done.stderr


def test_downloads_only_when_asked(drl_here, monkeypatch):
    asked = []

    def find(id, download):
        asked.append((id, download))
        raise DatasetError("missing")

    monkeypatch.setattr("drl_cli.data.open.find_minari", find)
    for words in ([], ["download=true"]):
        assert drl_here("list", "data", "minari:far-v0", *words).returncode == 2
    assert asked == [("far-v0", False), ("far-v0", True)]

"""drl-list."""

import pytest

from drl_cli.algos.lookup import algorithms, load_algorithm

PRESETS = ["apex", "munchausen_dqn", "munchausen_iqn", "r2d2", "rainbow", "rainbow_iqn", "sqn"]


def test_algos_with_their_actions_and_modes(listed):
    lines = {line.split()[0]: line for line in listed("algos")}
    titles = ("Ape-X", "Munchausen-DQN", "Munchausen-IQN", "R2D2", "Rainbow", "Rainbow with IQN", "Soft Q-learning")
    assert sorted(lines) == sorted([*algorithms(), *PRESETS])
    for name, title in zip(PRESETS, titles, strict=True):
        assert title in lines.pop(name)
    for name, line in lines.items():
        module = load_algorithm(name)
        assert all(word in line for word in (*module.ACTIONS, *module.MODES))


def test_installed_algorithms_are_listed_and_those_that_are_none_say_why(listed, tmp_path, monkeypatch):
    (tmp_path / "theirs-1.0.dist-info").mkdir()
    (tmp_path / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = "[drl_cli.algos]\ntheir-dqn = outside.my_algo\ntheir-json = json\n"
    (tmp_path / "theirs-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = {line.split()[0]: line for line in listed("algos")}
    assert sorted(lines) == sorted([*algorithms(), *PRESETS, "their-dqn", "their-json"])
    assert "discrete actions; single, sync, async; DQN as a user might have it" in lines["their-dqn"]
    assert "can't be used here: their-json (" in lines["their-json"]


def test_modes_with_what_they_are(listed):
    lines = {line.split()[0]: line for line in listed("modes")}
    assert sorted(lines) == ["async", "single", "sync"]
    assert all(len(line.split()) > 4 for line in lines.values())


def test_runs_with_status_and_best_return(listed, small_run, monkeypatch):
    monkeypatch.chdir(small_run.cwd)
    _, line = listed("runs")
    cells = line.split()
    assert cells[:7] == [small_run.folder.name, "Pendulum-v1", "sac", "async", "done", "160", cells[6]]
    assert float(cells[7]) >= float(cells[8]) > -2000


def test_no_runs_is_no_error(listed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "".join(listed("runs")) == ""


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_names_the_lists(listed, args):
    (line,) = listed(*args)
    assert all(topic in line for topic in ("algos", "envs", "modes", "runs"))


def test_an_unknown_list_is_an_error(drl, tmp_path):
    done = drl("list", "algo", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no list 'algo'. Did you mean algos?")


def test_a_list_without_options_refuses_them(drl, tmp_path):
    done = drl("list", "modes", "env=CartPole", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: drl-list modes takes no options, got env=CartPole\n")

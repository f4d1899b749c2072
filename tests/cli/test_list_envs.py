"""drl-list envs."""

import subprocess
import sys

import pytest

from drl_cli.cli.list_envs import answer
from drl_cli.envs import catalog
from drl_cli.envs.catalog import Entry
from drl_cli.errors import UsageError
from drl_cli.settings.conf import options


def rows():
    return {line.split()[0]: line.split(maxsplit=2)[1:] for line in answer([])}


def test_envs_of_ours_and_of_gymnasium_with_what_is_tuned_for_them():
    found = rows()
    assert {*options("env"), "CartPole-v1", "BipedalWalker-v3"} <= set(found)
    assert found["Pendulum-v1"] == ["runs", "classic_control; tuned for sac"]
    assert found["LunarLander"] == ["runs", "conf/env, LunarLander-v3; tuned for apex, dqn, iqn, ppo, rainbow"]


def test_what_is_missing_is_named_with_its_pip_command(monkeypatch):
    monkeypatch.setattr(catalog, "_is_there", lambda module: module not in ("mujoco", "Box2D", "minigrid"))
    found = rows()
    assert found["Ant-v5"] == ["missing", "mujoco: pip install 'drl-cli[mujoco]'"]
    assert found["LunarLander"][0] == "missing"
    assert found["minigrid:MiniGrid-Empty-5x5-v0"] == ["missing", "minigrid: pip install 'minigrid'"]
    assert found["miniworld:MiniWorld-Hallway-v0"] == ["runs", "miniworld"]
    assert found["phys2d/CartPole-v1"] == ["runs", "phys2d"]


def test_games_are_listed_without_their_module(monkeypatch):
    monkeypatch.setattr(catalog, "_is_there", lambda module: module != "ale_py")
    monkeypatch.setattr(catalog, "games", lambda: dict.fromkeys(["MinAtar/Freeway-v0", "MinAtar/Freeway-v1"]))
    found = rows()
    assert found["ALE/Pong-v5"] == ["missing", "ale_py: pip install 'drl-cli[atari]'"]
    assert found["Breakout"] == ["missing", "conf/env, ALE/Breakout-v5: pip install 'drl-cli[atari]'"]
    assert found["MinAtar/Freeway-v0"] == found["MinAtar/Freeway-v1"] == ["runs", "minatar"]
    assert found["MinAtar-Freeway"][0] == "runs"
    assert "MinAtar/Breakout-v1" not in found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_listed_as_here_can_be_made_and_the_rest_can_not():
    import gymnasium

    families = {"classic_control", "toy_text", *catalog.NEEDS}
    listed = [entry for entry in catalog.entries() if entry.family in families]
    assert len(listed) > 30
    for entry in listed:
        if entry.missing is None:
            gymnasium.make(entry.id).close()
        else:
            with pytest.raises((gymnasium.error.DependencyNotInstalled, ModuleNotFoundError)):
                gymnasium.make(entry.id)


def test_environments_of_our_tests_and_those_that_are_gone_are_left_out():
    import drl_cli.envs.probes  # noqa: F401

    ids = {entry.id for entry in catalog.entries()}
    assert not {"Counter-v0", "Ant-v2", "GymV21Environment-v0"} & ids


def test_an_environment_that_a_user_has_registered_runs():
    import gymnasium

    gymnasium.register("Listed-v0", entry_point=lambda: None)
    try:
        assert Entry("Listed-v0", __name__, None) in catalog.entries()
    finally:
        del gymnasium.registry["Listed-v0"]


def test_no_environment_is_imported_to_see_whether_it_runs():
    script = "import sys; from drl_cli.cli.list_envs import answer; answer([])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"Box2D", "pygame", "torch", "ray", "mujoco", "ale_py"} & set(done.stdout.split())


def test_it_takes_no_options():
    with pytest.raises(UsageError, match="takes no options, got CartPole"):
        answer(["CartPole"])

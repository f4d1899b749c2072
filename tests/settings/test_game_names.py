"""Atari's and MinAtar's games by name, with their packages and without: as if these were installed, or not."""

import gymnasium
import pytest
from graphs import make_config

from drl_cli.envs import catalog, make
from drl_cli.errors import UsageError
from drl_cli.preflight.environment import environment_spec
from drl_cli.settings import env_names
from drl_cli.settings.env_names import check_env, env_options


@pytest.fixture(autouse=True)
def unregistered(monkeypatch):
    """Whoever imports ale_py registers its own games."""
    known = gymnasium.registry.items()
    registry = {id: spec for id, spec in known if not str(spec.entry_point).startswith(("ale_py", "minatar"))}
    monkeypatch.setattr(gymnasium, "registry", registry)


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr(env_names, "source_file", lambda module: None)
    monkeypatch.setattr(catalog, "_is_there", lambda module: False)
    monkeypatch.setattr(make, "games", dict)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A package with the files of some games, as both have them."""
    files = ("roms/pong.bin", "roms/space_invaders.bin", "roms/joust.bin", "roms/pong.txt")
    for file in (*files, "environments/breakout.py", "environments/__init__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    package = type("Package", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda module: package)
    monkeypatch.setattr(env_names, "source_file", lambda module: tmp_path)
    found = catalog.games.__wrapped__()
    monkeypatch.setattr(make, "games", lambda: found)
    return found


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ALE/Pong-v5", "ALE/Pong-v5 needs ale_py:  pip install 'drl-cli[atari]'"),
        ("MinAtar/Breakout-v0", "MinAtar/Breakout-v0 needs minatar:  pip install 'drl-cli[minatar]'"),
        (
            "PongNoFrameskip-v4",
            "PongNoFrameskip-v4 is now ALE/Pong-v5, which needs ale_py:  pip install 'drl-cli[atari]'",
        ),
    ],
)
def test_what_to_install(name, answer, absent):
    with pytest.raises(UsageError) as error:
        check_env(name, [])
    assert (error.value.problems, error.value.exit_code) == ([answer], 3)


SHIMMY = "needs shimmy:  pip install 'drl-cli[dmc]'"


@pytest.mark.parametrize(
    ("name", "answer", "code"),
    [
        *(
            (name, f"{name} is env=dm_control/cheetah-run-v0, which {SHIMMY}", 3)
            for name in ("cheetah-run", "cheetah_run", "dmc/cheetah-run", "dm_control/cheetah-run")
        ),
        *(
            (f"dm_control/{name}-v0", f"dm_control/{name}-v0 {SHIMMY}", 3)
            for name in ("stack_2_bricks_features", "RodentTwoTouch", "walker-jump")
        ),
        *(
            (name, f"no environment '{name}'. Did you mean env=dm_control/{meant}-v0?", 2)
            for name, meant in {
                "dm_control/cheeta-run-v0": "cheetah-run",
                "dmc/walkr-walk": "walker-walk",
                "cheeta-run": "cheetah-run",
                "humanoid_cmu-run": "humanoid_CMU-run",
                "dm_control/cartpole-swingup_spars-v0": "cartpole-swingup_sparse",
            }.items()
        ),
    ],
)
def test_a_task_of_dm_control_may_be_written_in_several_ways_and_is_corrected(name, answer, code, absent):
    with pytest.raises(UsageError) as error:
        check_env(name, [])
    assert (error.value.problems, error.value.exit_code) == ([answer], code)


def test_an_installed_task_of_dm_control_is_named_by_its_id(installed, monkeypatch):
    monkeypatch.setattr(make, "exists", lambda id: id == "dm_control/cheetah-run-v0")
    with pytest.raises(UsageError, match=r"no environment 'cheetah-run'. Did you mean env=dm_control/cheetah-run-v0\?"):
        check_env("cheetah-run", [])


@pytest.mark.parametrize(("option", "id"), [("Pong", "ALE/Pong-v5"), ("MinAtar-Asterix", "MinAtar/Asterix-v1")])
def test_a_file_in_conf_says_so_too(option, id, absent):
    with pytest.raises(UsageError, match=rf"^{id} needs \w+:  pip install 'drl-cli\[\w+\]'$") as error:
        environment_spec(make_config(f"env={option}", "algo=dqn"))
    assert error.value.exit_code == 3


def test_games_are_found_in_the_files_of_their_packages(installed):
    assert {id: (spec.entry_point, spec.kwargs) for id, spec in installed.items()} == {
        "ALE/Pong-v5": ("drl_cli.envs.atari:Atari", {"game": "pong"}),
        "ALE/SpaceInvaders-v5": ("drl_cli.envs.atari:Atari", {"game": "space_invaders"}),
        "MinAtar/Breakout-v1": ("drl_cli.envs.minatar:MinAtar", {"game": "breakout"}),
        "MinAtar/Breakout-v0": ("drl_cli.envs.minatar:MinAtar", {"game": "breakout", "minimal_actions": False}),
    }
    check_env("ALE/SpaceInvaders-v5", [])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ALE/Pog-v5", "no environment 'ALE/Pog-v5'. Did you mean ALE/Pong-v5?"),
        ("SpaceInvaders", "no environment 'SpaceInvaders'. Did you mean ALE/SpaceInvaders-v5?"),
        ("PongNoFrameskip-v4", "PongNoFrameskip-v4 is now ALE/Pong-v5; say env=ALE/Pong-v5"),
    ],
)
def test_what_was_meant(name, answer, installed):
    with pytest.raises(UsageError) as error:
        check_env(name, ["Pong"])
    assert (error.value.problems, error.value.exit_code) == ([answer], 2)


@pytest.mark.slow
def test_all_atari_games_have_the_options_of_pong():
    pong, other = env_options("ALE/Pong-v5"), env_options("ALE/Seaquest-v5")
    assert (other["name"], other["id"], other["reward_clip"]) == ("ALE/Seaquest-v5", "ALE/Seaquest-v5", 1.0)
    assert other["kwargs"] == {"protocol": "nature"}
    assert {**pong, "name": 0, "id": 0} == {**other, "name": 0, "id": 0}
    assert env_options("CartPole-v1").keys() == pong.keys()
    assert make_config("env=Breakout").env.reward_clip == make_config("env=ALE/Breakout-v5").env.reward_clip == 1.0

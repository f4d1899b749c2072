import subprocess
import sys

import pytest

from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.cli.list import algos, envs
from drl_cli.envs import catalog
from drl_cli.envs.catalog import Entry
from drl_cli.errors import UsageError
from drl_cli.runs import auto
from drl_cli.runs.auto import results
from drl_cli.settings.conf import options


def test_algos_with_their_actions_and_modes(listed):
    lines = {line.split()[0]: line for line in listed("algos")}
    assert sorted(lines) == sorted({"auto", *algorithms(), *options("algo")})
    without = "sac for continuous (Box) actions, ppo for discrete actions, ppo for multi-discrete actions"
    assert lines["auto"].endswith(f"without a result, {without}, and mrq for images")
    assert ("Ape-X" in lines["apex"], "Rainbow with IQN" in lines["rainbow_iqn"]) == (True, True)
    for name in algorithms():
        module = load_algorithm(name)
        assert all(word in lines[name] for word in (*module.ACTIONS, *module.MODES))


def test_what_can_learn_an_environment_the_best_recorded_result_first(monkeypatch):
    made = {"env": "CartPole-v1", "threshold": 475, "return": 500.0, "seconds": 9.0, "seeds": 3}
    found = [
        {**made, "algo": "dqn", "steps": 9000},
        {**made, "algo": "c51", "steps": 700, "seeds": 1},  # too few seeds
        {**made, "algo": "pqn", "threshold": None, "steps": 500, "return": 50.0},
        {**made, "algo": "vmpo", "threshold": None, "steps": 500, "return": 60.0},
        {**made, "algo": "ppo", "steps": 8000, "seconds": 20.0},
        {**made, "algo": "a2c", "steps": 8500, "seconds": 5.0},  # the quickest run of those with few steps
        {**made, "algo": "a2c", "env": "Acrobot-v1", "steps": 1},
    ]
    monkeypatch.setattr(auto, "results", lambda: found)
    first, head, *rows, last = algos(["env=CartPole-v1"])
    assert first.startswith("CartPole-v1: Discrete(2) actions, mode=async; algo=auto takes a2c: reached 475 in 3 of 3")
    assert head.split() == ["algo", "reached", "return", "env", "steps", "seconds", "seeds"]
    assert [row.split()[0] for row in rows] == ["a2c", "ppo", "dqn", "vmpo", "pqn", "c51"]
    assert rows[1].split() == ["ppo", "475", "500.0", "8,000", "20", "3"]
    others = last.removeprefix("without recorded results: ").split(", ")
    assert {"mrq", "iqn", "impala"} <= {*others}
    assert not {"sac", "bc", "a2c"} & {*others}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_an_environment_has_at_most_20_lines(env):
    lines = algos([f"env={env}"])
    assert 10 < len(lines) <= 20
    num = int(next((line for line in lines if line.endswith("more with results")), "0").split()[0])
    assert num + len(lines) > len([each for each in results() if each["env"] == env])


def test_what_learns_from_data_begins_with_what_is_made_for_it():
    (first, others) = algos(["env=CartPole-v1", "mode=offline"])
    assert "algo=auto takes cql_discrete: the default for data with discrete actions" in first
    names = others.removeprefix("without recorded results: ").split(", ")
    assert names[:2] == ["cql_discrete", "bc"]
    assert {"dqn", "iqn"} <= {*names}
    assert not {"ppo", "sac", "iql"} & {*names}


def test_an_environment_of_a_module_in_this_folder(tmp_path, listed, monkeypatch):
    lines = ("import gymnasium", "from gymnasium.envs.classic_control import CartPoleEnv")
    registers = 'gymnasium.register("ListedHere-v0", CartPoleEnv)'
    (tmp_path / "listed_here.py").write_text("\n".join((*lines, registers)))
    monkeypatch.chdir(tmp_path)
    first, _ = listed("algos", "env=listed_here:ListedHere-v0")
    assert first.startswith("listed_here:ListedHere-v0: Discrete(2) actions, mode=async; algo=auto takes ppo")


def test_wrong_words_for_algorithms():
    with pytest.raises(UsageError, match=r"no environment 'Pendulm'. Did you mean Pendulum-v1"):
        algos(["env=Pendulm"])
    with pytest.raises(UsageError, match="mode=sync: say for which environment: drl-list algos env=NAME mode=sync"):
        algos(["mode=sync"])


def test_installed_algorithms_are_listed_and_a_broken_one_with_its_error(listed, tmp_path, monkeypatch):
    (tmp_path / "theirs-1.0.dist-info").mkdir()
    (tmp_path / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = "[drl_cli.algos]\ntheir-dqn = outside.my_algo\ntheir-yaml = yaml\n"
    (tmp_path / "theirs-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = {line.split()[0]: line for line in listed("algos")}
    assert sorted(lines) == sorted({"auto", *algorithms(), *options("algo"), "their-dqn", "their-yaml"})
    assert "discrete actions; single, sync, async, offline; DQN as in a user's module" in lines["their-dqn"]
    assert "can't be used here: their-yaml (" in lines["their-yaml"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["algo"], "no list 'algo'. Did you mean algos?   lists: algos, envs, modes, keys, runs, sweeps, data"),
        (
            ["modes", "env=CartPole"],
            "drl-list modes takes no options, got env=CartPole; to search: drl-list modes | grep -i CartPole",
        ),
        (
            ["algos", "sac", "mode=offline"],
            "drl-list algos takes only env=NAME and mode=MODE, got sac; to search: drl-list algos | grep -i sac",
        ),
    ],
)
def test_wrong_words(drl_here, words, error):
    done = drl_here("list", *words)
    assert (done.returncode, done.stderr) == (2, f"error: {error}\n")


def rows():
    """The status and the rest of the line, by environment."""
    return {line.split()[0]: line.split(maxsplit=2)[1:] for line in envs([])}


def test_envs_of_conf_and_of_gymnasium_with_tuned_values():
    found = rows()
    assert {*options("env"), "CartPole-v1", "BipedalWalker-v3"} <= set(found)
    assert found["Pendulum-v1"] == [
        "runs",
        "classic_control; tuned for crossq, d4pg, ddpg, droq, mpo, ppo, redq, reppo, sac, td3, tqc, xqc",
    ]
    assert found["LunarLander"] == [
        "runs",
        "conf/env, LunarLander-v3; tuned for apex, appo, dqn, iqn, ppo, pqn, rainbow, vmpo",
    ]


def test_a_missing_package_is_named_with_its_pip_command(monkeypatch):
    missing = ("mujoco", "Box2D", "minigrid", "ale_py")
    monkeypatch.setattr(catalog, "_is_there", lambda module: module not in missing)
    monkeypatch.setattr(catalog, "games", lambda: dict.fromkeys(["MinAtar/Freeway-v0", "MinAtar/Freeway-v1"]))
    found = rows()
    mujoco = "mujoco: pip install 'drl-cli[mujoco]'; tuned for crossq, ddpg, droq, sac, td3, tqc, xqc"
    assert (found["Ant-v5"], found["LunarLander"][0]) == (["missing", mujoco], "missing")
    assert found["minigrid:MiniGrid-Empty-5x5-v0"] == ["missing", "minigrid: pip install 'minigrid'"]
    assert found["miniworld:MiniWorld-Hallway-v0"] == ["runs", "miniworld"]
    assert found["phys2d/CartPole-v1"] == ["runs", "phys2d"]
    assert found["ALE/Pong-v5"] == ["missing", "ale_py: pip install 'drl-cli[atari]'"]
    assert found["Breakout"] == ["missing", "conf/env, ALE/Breakout-v5: pip install 'drl-cli[atari]'"]
    assert found["MinAtar/Freeway-v0"] == found["MinAtar/Freeway-v1"] == ["runs", "minatar"]
    assert found["MinAtar-Freeway"][0] == "runs"
    assert "MinAtar/Breakout-v1" not in found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_environment_can_be_made_exactly_if_the_list_says_so():
    import gymnasium

    families = {"classic_control", "toy_text", *catalog.NEEDS}
    entries = [entry for entry in catalog.entries() if entry.family in families]
    assert len(entries) > 30
    for entry in entries:
        if entry.missing is None:
            gymnasium.make(entry.id).close()
        else:
            with pytest.raises((gymnasium.error.DependencyNotInstalled, ModuleNotFoundError)):
                gymnasium.make(entry.id)


def test_probes_and_removed_environments_are_left_out_and_a_users_is_listed():
    import gymnasium

    import drl_cli.envs.probes  # noqa: F401

    gymnasium.register("Listed-v0", entry_point=lambda: None)
    try:
        entries = catalog.entries()
    finally:
        del gymnasium.registry["Listed-v0"]
    assert Entry("Listed-v0", __name__, None) in entries
    assert not {"Counter-v0", "Ant-v2", "GymV21Environment-v0"} & {entry.id for entry in entries}


@pytest.mark.slow
def test_the_list_imports_no_environment():
    script = "import sys; from drl_cli.cli.list import envs; envs([])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"Box2D", "pygame", "torch", "ray", "mujoco", "ale_py"} & set(done.stdout.split())

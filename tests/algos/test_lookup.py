import subprocess
import sys
from dataclasses import MISSING, dataclass, fields

import pytest
from confs import algo_node

from drl_cli.algos import lookup
from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import ENTRY_POINTS, NotAlgorithm
from drl_cli.algos.off_policy import d4pg
from drl_cli.algos.on_policy import ppo
from drl_cli.settings.algorithm import refusal
from drl_cli.settings.build import default_values
from drl_cli.types import ActionSpec, Column, EnvSpec
from drl_cli.utils.outside import ModuleRaised

OBS = Column((3,), "float32")
BOX = EnvSpec("Car-v0", OBS, ActionSpec("box", 2, "Box(2,)"))
DISCRETE = EnvSpec("Cart-v1", OBS, ActionSpec("discrete", 4, "Discrete(4)"))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module that changes tests/support/outside/my_algo.py; gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_it(*lines):
        (tmp_path / "their_algo.py").write_text("\n".join(["from outside.my_algo import *", *lines]))
        return "their_algo"

    yield write_it
    for name in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[name]


def test_unknown_names_are_refused_with_the_known_names():
    assert {"dqn", "ppo", "sac"} <= set(lookup.algorithms())
    assert not {"base", "lookup"} & set(lookup.algorithms())
    with pytest.raises(ValueError, match=r"unknown algorithm 'sca': .*; available: .*sac"):
        lookup.load_algorithm("sca")


def test_only_the_yaml_of_a_built_in_algorithm_has_defaults():
    common = {field.name for field in fields(AlgoConfig)}
    for name in lookup.algorithms():
        config = lookup.load_algorithm(name).Config
        assert {field.name for field in fields(config) if field.default is not MISSING} <= common, name
        assert default_values(config) == {**algo_node(name), "name": name}


def test_a_config_derived_from_a_built_in_one_inherits_the_values_of_its_yaml():
    @dataclass(frozen=True)
    class Derived(d4pg.Config):
        tau: float = 0.25
        new: int = 3

    assert default_values(Derived) == {**algo_node("d4pg"), "tau": 0.25, "new": 3}


def test_no_role_but_the_trainer_needs_torch():
    """The main process and the processes of all roles import these modules."""
    roles = "drl_cli.runtime.trial_update, drl_cli.runtime.roles.worker, drl_cli.runtime.roles.manage"
    code = f"import sys, importlib, {roles}\n"
    paths = [lookup.module_path(name) for name in lookup.algorithms()]
    code += f"for path in {paths}: importlib.import_module(path)\n"
    subprocess.run([sys.executable, "-c", f"{code}assert 'torch' not in sys.modules"], check=True)


def test_refusal_says_why(monkeypatch):
    assert refusal("sac", BOX, "async", "uniform") is refusal("dqn", DISCRETE, "async", "uniform") is None
    line = refusal("dqn", BOX, "async", "uniform")
    others = "For this: algo=sac, or one of a2c, appo, awac, cal_ql, cql, crossq, "
    assert line.startswith(f"DQN needs a discrete action space; Car-v0 has Box(2,). {others}")
    several = EnvSpec("Arm-v0", BOX.obs, ActionSpec("multidiscrete", 5, "MultiDiscrete([3 2])", (3, 2)))
    assert refusal("c51", several, "async", "uniform", typed="rainbow") == (
        "rainbow needs a discrete action space; Arm-v0 has MultiDiscrete([3 2]). "
        "For this: algo=ppo, or one of a2c, appo, dreamer, impala, reinforce, vmpo"
    )
    line = refusal("ppo", BOX, "async", "uniform", typed="a2c", replay="hindsight")
    assert line == "a2c can't learn from replay=hindsight; say replay=fifo-once"
    assert refusal("ppo", BOX, "async", "fifo-once") is None
    monkeypatch.setattr(ppo, "TABLES", ("fifo",))
    assert refusal("ppo", BOX, "async", "fifo") is refusal("ppo", BOX, "async", "fifo-once") is None
    line = refusal("sac", BOX, "async", "fifo-once")
    assert line.startswith("SAC can't learn from replay=fifo-once; say replay=uniform or replay=prioritized")
    assert "does not run in mode=batch" in refusal("sac", BOX, "batch", "uniform")


def test_on_policy_algorithms_are_refused_offline():
    line = refusal("ppo", BOX, "offline", "fifo")
    assert line.startswith("PPO is on-policy: it learns from the newest rollouts of its own policy")
    assert line.endswith("such as algo=iql or algo=bc or algo=awac")
    assert refusal("dqn", BOX, "offline", "uniform").endswith("For this: algo=iql or algo=bc or algo=awac")
    assert refusal("sac", DISCRETE, "offline", "uniform").endswith("For this: algo=cql_discrete or algo=bc")
    assert lookup.load_algorithm("ppo").MODES == ("single", "sync", "async")
    assert refusal("sac", BOX, "offline", "uniform") is refusal("dqn", DISCRETE, "offline", "prioritized") is None


def test_constants_of_a_users_module_have_defaults(write):
    module = lookup.load_algorithm(write("del EXPLORATION"))
    assert (module.ACTIONS, module.EXPLORATION) == (("discrete",), ())
    assert (module.MODES, module.TABLES) == (("single", "sync", "async", "offline"), ("uniform", "prioritized"))
    assert refusal("their_algo", DISCRETE, "async", "prioritized") is None
    line = refusal("their_algo", BOX, "async", "uniform")
    assert line.startswith("their_algo needs a discrete action space; Car-v0 has Box(2,).")
    assert (lookup.title("their_algo"), lookup.title("sac")) == ("their_algo", "SAC")


def test_constants_of_a_users_module_are_used(write):
    name = write("MODES = ('single',)", "TABLES = ('sequences',)", "EXPLORATION = ('epsilon',)")
    assert lookup.load_algorithm(name).EXPLORATION == ("epsilon",)
    assert refusal(name, DISCRETE, "sync", "sequences") == "their_algo does not run in mode=sync; it runs in single"
    assert (
        refusal(name, DISCRETE, "single", "uniform")
        == "their_algo can't learn from replay=uniform; say replay=sequences"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("del Config", r"it needs Config, a frozen dataclass derived from drl_cli\.algos\.base\.AlgoConfig"),
        ("class Config: pass", "it needs Config, a frozen dataclass .*"),
        ("class Config(Config): new: float = 1.0", r"Config must be .*: @dataclass\(frozen=True\) is missing"),
        ("del Policy", r"it needs Policy, a class derived from drl_cli\.algos\.base\.Policy"),
        ("Algorithm = None", r"it needs Algorithm, a class .* drl_cli\.algos\.base\.Algorithm"),
        ("del ACTIONS", "it needs ACTIONS, a tuple of box, discrete, multidiscrete"),
        ("ACTIONS = 'discrete'", "ACTIONS must be a tuple of box, discrete, multidiscrete, got 'discrete'"),
        ("ACTIONS = ('discret',)", r"ACTIONS must be .*, got \('discret',\)"),
        ("ACTIONS = ()", r"ACTIONS must be .*, got \(\)"),
        ("MODES = ('batch',)", r"MODES must be a tuple of single, sync, async, offline, got \('batch',\)"),
        ("TABLES = ['uniform']", r"TABLES must be a tuple of .*uniform.*, got \['uniform'\]"),
        ("EXPLORATION = 'epsilon'", "EXPLORATION must be a tuple of names, got 'epsilon'"),
        *[
            (f"{name} = 'no'", f"{name} must be True or False, got 'no'")
            for name in ("WEIGHTS", "REWARDS", "STEP_STATES")
        ],
    ],
)
def test_missing_or_wrong_names_are_named_with_the_required_form(write, line, says):
    with pytest.raises(NotAlgorithm, match=rf"^their_algo \(.*their_algo\.py\) is no algorithm: {says}$"):
        lookup.load_algorithm(write(line))


def test_all_missing_names_are_named_at_once(write):
    with pytest.raises(NotAlgorithm) as caught:
        lookup.load_algorithm(write("del Config, Policy, Algorithm, ACTIONS"))
    assert str(caught.value).count("; it needs") == 3


def test_a_module_that_raises_shows_its_own_error(write):
    with pytest.raises(ModuleRaised, match=r"^their_algo raised KeyError: 'lost' \(their_algo\.py:2\)$"):
        lookup.load_algorithm(write("{}['lost']"))


def test_installed_packages_offer_algorithms_by_entry_points(write, tmp_path):
    name = write()
    (tmp_path / "theirs-1.0.dist-info").mkdir()
    (tmp_path / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = f"[{ENTRY_POINTS}]\ntheir-dqn = {name}\nsac = {name}\n"
    (tmp_path / "theirs-1.0.dist-info" / "entry_points.txt").write_text(points)
    assert (lookup.installed(), lookup.load_algorithm("their-dqn").__name__) == (["their-dqn"], name)
    assert lookup.module_path("sac") == "drl_cli.algos.off_policy.sac"
    assert lookup.module_path("my_pkg.my_algo") == "my_pkg.my_algo"


@pytest.mark.parametrize(
    ("name", "text"),
    [("sac", "SAC"), ("gumbel_muzero", "Gumbel MuZero"), ("td3_bc", "TD3+BC"), ("my_pkg.my_algo", "my_pkg.my_algo")],
)
def test_an_algorithm_is_called_as_in_its_paper(name, text):
    assert lookup.title(name) == text
    assert {name for name in lookup.algorithms() if "_" in name} <= lookup.TITLES.keys() <= {*lookup.algorithms()}

import sys

import gymnasium
import pytest

from drl_cli.envs import catalog
from drl_cli.envs.catalog import Package
from drl_cli.envs.config import EnvConfig, EnvError
from drl_cli.envs.make import exists, read_spec
from drl_cli.errors import UsageError
from drl_cli.settings.env_names import say_package

MODULE = "import gymnasium\ngymnasium.register('{}-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"


def test_a_known_module_is_imported_when_one_of_its_environments_is_named(monkeypatch, tmp_path):
    for name in ("late", "later"):
        (tmp_path / f"{name}_envs.py").write_text(MODULE.format(name.title()))
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = (Package(r"Late-.*", "late_envs", "late", registers=True), Package(r"Later-.*", "later_envs", "later"))
    monkeypatch.setattr(catalog, "PACKAGES", packages)
    try:
        assert [exists(id) for id in ("Late-v0", "Late-v1", "Later-v0")] == [True, False, False]
        spec = read_spec(EnvConfig("Late", "Late-v0", {}, None, 1.0, "auto", False, False))
        assert spec.obs.shape == (4,)
        assert "later_envs" not in sys.modules
        with pytest.raises(UsageError, match="which has to be named: env=later_envs:Later-v0"):
            say_package("Later-v0", "Later-v0")
    finally:
        gymnasium.registry.pop("Late-v0", None)
        sys.modules.pop("late_envs", None)


def test_robotics_environments_need_no_module():
    package = catalog.package_of("FetchReach-v4")
    assert (package.module, package.install, package.is_ours) == ("gymnasium_robotics", "drl-cli[robotics]", True)


def test_a_misspelled_environment_of_a_module_is_named():
    config = EnvConfig("x", "drl_cli.envs.probes:Frame-v0", {}, None, 1.0, "auto", False, False)
    with pytest.raises(EnvError, match=r"no environment 'Frame-v0'\. Did you mean drl_cli\.envs\.probes:Frames-v0\?"):
        read_spec(config)

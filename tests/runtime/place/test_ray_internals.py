import importlib
import os
from pathlib import Path

import fake_ray
import pytest

from drl_cli.errors import ClusterUnfit

PACKAGE = Path(fake_ray.__file__).parents[2] / "drl_cli"


@pytest.fixture
def ray(monkeypatch):
    return fake_ray.install(monkeypatch)


@pytest.fixture
def internals(ray):
    return importlib.import_module("drl_cli.runtime.place.ray_internals")


def test_one_file_uses_what_ray_may_change():
    users = [path for path in PACKAGE.rglob("*.py") if "ray._" in path.read_text()]
    assert users == [PACKAGE / "runtime" / "place" / "ray_internals.py"]


def test_the_installed_ray_has_every_part(caplog):
    """Not the fake: the check at import says nothing about this version."""
    pytest.importorskip("ray")
    from drl_cli.runtime.place import ray_internals

    assert ray_internals.missing(ray_internals.NEEDED | ray_internals.USED) == []
    ray_internals.check()
    assert caplog.text == ""


def test_pyproject_admits_the_tested_versions():
    import tomllib

    from packaging.requirements import Requirement

    from drl_cli.runtime.place.ray_internals import TESTED

    first, last = TESTED.split(" to ")
    words = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    (pin,) = [each for each in map(Requirement, words) if each.name == "ray"]
    major, minor = last.split(".")
    assert str(pin.specifier) in {f">={first},<{major}.{int(minor) + 1}", f"<{major}.{int(minor) + 1},>={first}"}


def test_a_part_without_which_a_signal_would_end_ray_is_an_error_that_names_it(ray, internals):
    del ray._private.utils.set_kill_on_parent_death_linux
    with pytest.raises(ClusterUnfit) as caught:
        internals.check()
    assert caught.value.problems == [
        "Ray 2.60.0 has no ray._private.utils.set_kill_on_parent_death_linux; "
        f"drl-cli was tested with Ray {internals.TESTED}"
    ]


def test_other_parts_are_warned_of_and_done_without(ray, internals, caplog):
    ray._private.node.Node = type("Node", (), {"start_api_server": lambda self: "started"})
    del ray._private.worker._global_node, ray._private.worker.print_to_stdstream
    del ray._private.services.find_gcs_addresses, ray._private.utils.get_ray_address_file
    internals.check()
    (line,) = caplog.messages
    assert line.startswith("Ray 2.60.0 has no ray._private.worker._global_node, ray._private.worker.print_to_stdstre")
    for name in (
        "Node.dead_processes, ray._private.node.Node.start_log_monitor",
        "services.find_gcs_addresses",
        "utils.get_ray_address_file",
    ):
        assert name in line
    assert f"tested with Ray {internals.TESTED}. Without, a run uses more memory" in line
    assert (internals.dead_processes(), internals.all_addresses(), internals.own_address()) == (set(), [], None)
    internals.draw_apart()
    internals.log_deaths()
    with internals.fewer_services():
        assert ray._private.node.Node().start_api_server() is None
    ray._private.worker._global_node = ray._private.node.Node()
    assert internals.dead_processes() == set()


@pytest.fixture
def address_file(ray, tmp_path):
    file = tmp_path / "ray_current_cluster"
    file.write_text("10.0.0.1:6379\n")
    file.chmod(0o644)
    ray._private.utils.get_ray_address_file = lambda folder: str(file)
    return file


def test_an_address_in_a_file_of_this_user(internals, address_file):
    assert internals.own_address() == "10.0.0.1:6379"
    address_file.write_text("\n")
    assert internals.own_address() is None
    address_file.unlink()
    assert internals.own_address() is None


@pytest.mark.parametrize("case", ["writable", "of another user", "a link", "a pipe"])
def test_an_address_that_another_user_may_have_written_is_not_taken(
    internals, address_file, tmp_path, monkeypatch, case
):
    if case == "writable":
        address_file.chmod(0o666)
    elif case == "of another user":
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    elif case == "a link":
        address_file.rename(tmp_path / "elsewhere")
        address_file.symlink_to(tmp_path / "elsewhere")
    else:
        address_file.unlink()
        os.mkfifo(address_file, 0o600)
    assert internals.own_address() is None


def test_ray_reads_its_variables_again(ray, internals):
    internals.read_variables()
    assert ray.calls == [("read_variables", "")]
    del ray._raylet.Config
    internals.read_variables()  # a Ray without this part

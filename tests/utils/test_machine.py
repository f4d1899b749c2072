import socket
import sys

import pytest

from drl_cli.utils import machine
from drl_cli.utils.machine import headless


@pytest.mark.parametrize(("host", "bound"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1")])
def test_a_listener_listens_at_its_address_alone(host, bound):
    with machine.listener(host) as listener:
        address, port = listener.getsockname()
        assert (address, port > 0) == (bound, True)
        with socket.create_connection((host, port), timeout=5):
            listener.accept()[0].close()


def test_an_address_of_no_interface_is_listened_for_everywhere():
    with machine.listener("203.0.113.5") as listener:  # an address for documentation
        assert listener.getsockname()[0] == "0.0.0.0"


def test_other_errors_are_raised(monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "no")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(PermissionError):
        machine.listener("127.0.0.1")


def test_the_interface_of_the_address_that_leads_to_a_host():
    assert machine.own_address("127.0.0.1") == "127.0.0.1"
    assert machine.interface("127.0.0.1") in {"lo", "lo0"}
    assert machine.interface("203.0.113.5") is None


@pytest.mark.skipif(sys.platform != "linux", reason="MUJOCO_GL is set on Linux only")
def test_variables_that_are_set_stay_and_a_display_is_used(monkeypatch):
    for name in ("DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert (headless()["MUJOCO_GL"], headless()["SDL_VIDEODRIVER"]) == ("egl", "dummy")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    assert "SDL_VIDEODRIVER" not in headless()
    monkeypatch.setenv("DISPLAY", ":0")
    assert "MUJOCO_GL" not in headless()

import socket

import pytest

from drl_cli.utils import addresses


@pytest.mark.parametrize(("host", "bound"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1")])
def test_a_listener_listens_at_its_address_alone(host, bound):
    with addresses.listener(host) as listener:
        address, port = listener.getsockname()
        assert (address, port > 0) == (bound, True)
        with socket.create_connection((host, port), timeout=5):
            listener.accept()[0].close()


def test_an_address_of_no_interface_is_listened_for_everywhere():
    with addresses.listener("203.0.113.5") as listener:  # an address for documentation
        assert listener.getsockname()[0] == "0.0.0.0"


def test_other_errors_are_raised(monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "no")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(PermissionError):
        addresses.listener("127.0.0.1")


def test_the_interface_of_the_address_that_leads_to_a_host():
    assert addresses.own_address("127.0.0.1") == "127.0.0.1"
    assert addresses.interface("127.0.0.1") in {"lo", "lo0"}
    assert addresses.interface("203.0.113.5") is None

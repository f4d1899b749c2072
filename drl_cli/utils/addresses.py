"""Network addresses of this machine: where the processes of a run listen."""

import errno
import socket

import psutil


def listener(host: str) -> socket.socket:
    """Return a socket that listens at a free port of the address `host` alone.

    If no interface of this machine has the address, as behind NAT, the socket listens at all addresses.
    """
    family, *_ = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server((host, 0), family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", 0), family=family)


def own_address(host: str) -> str:
    """Return the address of this machine from which it reaches `host`."""
    family, kind, *_, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing, but chooses the route
        own: str = probe.getsockname()[0]
        return own


def interface(address: str) -> str | None:
    """Return the name of the network interface that has this address, or None."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if address in {entry.address for entry in entries}), None)

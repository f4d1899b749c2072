"""A run with two trainers, seen from outside: where its processes listen, and what other users can reach."""

import os
from pathlib import Path

import psutil
import pytest
from processes import SMALL


@pytest.mark.ray
@pytest.mark.slow
def test_all_processes_of_a_run_listen_on_loopback_and_its_files_are_private(start, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    run = start("mode=sync", "trainer.num=2", *SMALL, "checkpoint.period=64", HOME=str(home), TMPDIR=str(tmp_path))
    run.until(lambda: run.saved > 64)  # after the first updates, which both trainers make
    addresses = {}
    for process in run.processes():
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                addresses.setdefault(connection.laddr.ip, []).append(process.name())
    assert set(addresses) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, addresses
    assert sum("trainer" in name for names in addresses.values() for name in names) >= 3  # both, and the store
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
    sockets = [name for process in run.processes() for name in _sockets(process)]
    assert sockets
    base = Path("/tmp").resolve() / f"drl-{os.getuid()}"  # pytest's folders are too long for sockets
    assert all(name.startswith(f"{base}/ray-") for name in sockets), sockets
    assert base.stat().st_mode & 0o777 == 0o700


def _sockets(process):
    """Return the paths of the Unix sockets of a process."""
    return [connection.laddr for connection in process.net_connections(kind="unix") if connection.laddr.startswith("/")]

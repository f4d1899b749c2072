import io
import sys
import time

import pytest

from drl_cli.metrics.console import Console
from drl_cli.metrics.printed import MOST_BYTES, MOST_LINES, Prints, write_prints


@pytest.fixture
def role(tmp_path, monkeypatch):
    """Have this process print as a role of a run in tmp_path."""
    (tmp_path / "workers").mkdir()

    def become(name):
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(sys, stream, getattr(sys, stream))
        write_prints(f"{tmp_path}/workers/{name}.log")

    return become


def test_prints_and_warnings_of_a_role_are_read_once_and_with_its_name(tmp_path, role):
    role("worker-0")
    print("of an earlier process")
    prints = Prints(tmp_path)
    assert [*prints.take()] == []
    print("one\n\ntwo")
    print("half", end="")
    assert [*prints.take()] == ["worker-0: one", "worker-0: two"]
    print(" a line \ud800")
    print("UserWarning: mind the step", file=sys.stderr)
    assert [*prints.take()] == ["worker-0: half a line \\ud800", "worker-0: UserWarning: mind the step"]
    role("manage")
    print("made", file=sys.stderr)
    assert [*prints.take()] == ["manage: made"]


def test_many_lines_do_not_fill_the_terminal(tmp_path, role):
    role("worker-1")
    prints = Prints(tmp_path)
    print("\n".join(map(str, range(MOST_LINES + 2))))
    more = f"worker-1: 2 more lines in {tmp_path / 'workers' / 'worker-1.out'}"
    assert [*prints.take(), *prints.take()] == [*(f"worker-1: {i}" for i in range(MOST_LINES)), more]
    print("0" * MOST_BYTES + "12345")
    assert [*prints.take(), *prints.take(), *prints.take()] == [f"worker-1: {'0' * MOST_BYTES}", "worker-1: 12345"]


def test_a_full_disk_or_a_missing_folder_does_not_stop_a_print(tmp_path, role, monkeypatch):
    role("worker-0")

    def full(text):
        raise OSError("no space")

    monkeypatch.setattr(sys.stdout._file, "write", full)
    print("lost")
    stdout = sys.stdout
    write_prints(f"{tmp_path}/nowhere/worker-0.log")
    assert sys.stdout is stdout
    assert [*Prints(tmp_path / "nowhere").take()] == []


def test_the_console_and_the_log_show_what_roles_print_until_the_end(tmp_path, role):
    out = io.StringIO()
    console = Console("plain", out, time.time(), tick_s=0.001)
    with console:
        console.open(tmp_path)
        role("worker-0")
        print("during the run")
        until = time.monotonic() + 10
        while "worker-0: during the run\n" not in out.getvalue() and time.monotonic() < until:
            time.sleep(0.001)
        console.close()
        print("at its end")
        console.end({"status": "done"}, "the summary")
    assert out.getvalue().splitlines()[-3:] == ["worker-0: during the run", "worker-0: at its end", "the summary"]

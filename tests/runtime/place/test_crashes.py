import subprocess
import sys

import pytest

from drl_cli.runtime.place import crashes

ENV = """
import ctypes, os, sys
import gymnasium


class Bad(gymnasium.Env):
    def step(self, action):
        WAY
"""
PROGRAM = """
import sys
from pathlib import Path
from drl_cli.runtime.place.crashes import write_crashes
write_crashes(Path("role.crash"))
sys.path.insert(0, ".")
from crash_envs import Bad
scope = {"env": Bad(), "__name__": "role"}
exec(compile("def call():\\n    env.step(0)\\n", CALLER, "exec"), scope)
scope["call"]()
"""
WAYS = {
    "os.abort()": "by SIGABRT (Aborted) (crash_envs.py:8)",
    "ctypes.string_at(0)": "by SIGSEGV (Segmentation fault) (crash_envs.py:8)",
    "os.kill(os.getpid(), 8)": "by SIGFPE (Floating",
    "os._exit(3)": None,
}


def cause(tmp_path, way, caller):
    (tmp_path / "crash_envs.py").write_text(ENV.replace("WAY", way))
    program = PROGRAM.replace("CALLER", repr(caller))
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False, capture_output=True).returncode
    crashes.watch_actor("id", crashes.crash_file(str(tmp_path / "role.log")), "crash_envs:Bad")
    return crashes.crash("id")


@pytest.mark.parametrize("way", WAYS)
def test_a_crash_has_its_signal_and_line(tmp_path, way):
    found = cause(tmp_path, way, "/x/drl_cli/envs/stepping/batch.py")
    assert found is None if WAYS[way] is None else found.startswith(f"crash_envs:Bad ended its process {WAYS[way]}")


@pytest.mark.parametrize(
    ("caller", "subject"),
    [("/x/drl_cli/runtime/roles/evaluator.py", "crash_envs:Bad ended its"), ("/x/drl_cli/runtime/roles/a.py", "its")],
)
def test_only_a_call_of_the_environment_names_it(tmp_path, caller, subject):
    assert cause(tmp_path, "os.abort()", caller).startswith(f"{subject} process")


def test_nothing_is_known_of_other_actors_and_missing_or_empty_files(tmp_path):
    file = tmp_path / "role.crash"
    crashes.watch_actor("other", file, "")
    assert [crashes.crash(actor) for actor in ("other", "unknown", None)] == [None] * 3
    file.touch()
    assert crashes.crash("other") is None
    file.write_text("Fatal Python error: deallocating None\n")
    assert crashes.crash("other") == "its process ended by deallocating None"


def test_a_file_that_can_not_be_written_is_left_out(tmp_path):
    crashes.write_crashes(tmp_path / "missing" / "role.crash")

"""A role that stops answering, in a process of its own: the run ends, names it, and leaves nothing."""

import os
import signal

import pytest
from processes import SMALL

from drl_cli.runtime.restore import open_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("role", "named"), [("trainer", "trainer"), ("replay-0", "replay")])
def test_a_run_does_not_wait_for_ever(start, role, named):
    run = start(*SMALL, "mode=async", "orchestrator.stall_s=20")
    run.until(lambda: run.saved >= 400)
    os.kill(run.pid(role), signal.SIGSTOP)
    assert run.wait() == 6, run.err
    first, *others = run.err.splitlines()
    assert first.startswith("error: no answer for 20 s from: ")
    assert named in first
    assert others == []
    assert run.left() == []
    assert run.status == "failed"
    assert open_checkpoint(run.folder / "checkpoints" / "last").env_steps >= 400

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.spaces import Box, Discrete

from drl_cli.envs.apart import ProcessEnded, apart, is_shipped, spec_apart, trial_apart, try_apart
from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.errors import TERMINATED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")


class Apart(gymnasium.Env):
    """`at` names the call that runs `act`."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def __init__(self, at="nothing", act=lambda: None):
        self.at, self.act = at, act
        self.run("init")

    def run(self, at):
        if at == self.at:
            self.act()

    def reset(self, *, seed=None, options=None):
        self.run("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.run("step")
        return np.zeros(2, np.float32), 1.0, False, True, {}

    def close(self):
        self.run("close")


gymnasium.register("TestApart-v0", Apart)


def config(at="nothing", act=lambda: None, id="TestApart-v0"):
    return EnvConfig("test", id, {"at": at, "act": act}, None, 1.0, "none", False, False)


def attempt(at, act=lambda: None):
    spec = spec_apart(config(), True, 60.0)
    assert spec == spec_apart(config(at, act), True, 60.0)
    return try_apart(config(at, act), spec, num=2, seconds=60.0, timeout_s=60.0)


def test_the_pace_of_an_environment():
    spec = spec_apart(config(), True, 60.0)
    seen = trial_apart(config("step", lambda: time.sleep(0.1)), spec, 60.0)
    assert 0 < seen.steps_per_s <= 10  # a step takes 0.1 s
    assert not seen.is_unusual
    with pytest.raises(ProcessEnded):
        trial_apart(config("step", os.abort), spec, 60.0)


def test_a_good_environment_gives_its_spec_and_no_warnings():
    assert attempt("nothing") == []


@pytest.mark.parametrize(("at", "name"), [("init", "its constructor"), ("reset", "reset"), ("close", "close")])
def test_the_message_names_the_call_and_the_line(at, name):
    with pytest.raises(
        ProcessEnded, match=rf"^{name} ended the process by SIGABRT \(Aborted\) \(.*test_apart.py:\d+\)$"
    ):
        attempt(at, lambda: os.abort())


def test_the_message_of_a_step_names_the_step():
    steps = iter(range(100))
    line = "step ended the process with exit code 7, at step 3 of a trial with random actions"  # 2 environments
    with pytest.raises(ProcessEnded, match=f"^{line}$"):
        attempt("step", lambda: next(steps) == 5 and os._exit(7))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGFPE])
def test_a_signal_handler_of_this_process_is_not_called_in_the_child(number):
    handler = signal.signal(number, lambda *_: sys.exit(TERMINATED))
    try:
        with pytest.raises(ProcessEnded, match=f"ended the process by {number.name}"):
            attempt("init", lambda: os.kill(os.getpid(), number))
    finally:
        signal.signal(number, handler)


def test_a_call_that_raises_is_repeated_here_with_its_traceback():
    def act():
        places.append(os.getpid())
        raise RuntimeError("broken")

    places = []
    with pytest.raises(RuntimeError, match="broken"):
        spec_apart(config("init", act), True, 60.0)
    assert places == [os.getpid()]
    with pytest.raises(EnvFault, match="step raised RuntimeError: broken") as caught:
        attempt("step", act)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("raised", "expected"), [(SystemExit(3), EnvFault), (KeyboardInterrupt(TERMINATED), KeyboardInterrupt)]
)
def test_a_constructor_may_not_leave_but_sigterm_may(raised, expected):
    def leave():
        raise raised

    with pytest.raises(expected, match=str(raised)):
        spec_apart(config("init", leave), True, 60.0)


def test_a_hang_ends_at_the_timeout_and_a_slow_trial_does_not():
    apart(config(), 0.4, lambda tick: [(tick("step"), time.sleep(0.1)) for _ in range(7)])
    with pytest.raises(
        ProcessEnded, match=r"^step hung for more than 0.2 s \(worker.step_timeout_s\) \(.*test_apart.py"
    ):
        apart(config(), 0.2, lambda tick: (tick("step"), time.sleep(60)))


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children():
    """The process ids of this process's children, with those that have ended and that nobody has waited for."""
    return {child.pid for child in psutil.Process().children()}


def test_nothing_is_left_of_the_child(tmp_path):
    def act():
        process = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pid").write_text(str(process.pid))
        os.abort()

    files, before = len(os.listdir("/proc/self/fd")), children()
    with pytest.raises(ProcessEnded):
        attempt("init", act)
    ends, pid = time.monotonic() + 5.0, int((tmp_path / "pid").read_text())
    while is_alive(pid):
        assert time.monotonic() < ends
    assert (len(os.listdir("/proc/self/fd")), children()) == (files, before)


def test_a_child_does_not_wait_for_threads_of_this_process():
    """Without its own setting, the child's multiplication would wait for OpenMP threads that a fork does not have."""
    torch, threads = pytest.importorskip("torch"), os.cpu_count() or 1
    values, before = torch.ones(600, 600), torch.get_num_threads()
    torch.set_num_threads(max(2, threads))
    try:
        assert float((values @ values).sum()) == float((values + values).sum()) * 300
        assert apart(config(), 8.0, lambda tick: (tick("step"), float((values + values).sum()))[1]) == 720000.0
    finally:
        torch.set_num_threads(before)


def test_a_child_reads_nothing_from_the_terminal():
    assert apart(config(), 60.0, lambda tick: os.read(0, 1)) == b""


def test_an_interrupt_ends_the_child():
    def interrupt(tick):
        while True:  # Python ignores an interrupt that comes while the parent still runs the handlers of os.fork
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(1)

    before = children()
    with pytest.raises(KeyboardInterrupt):
        apart(config(), 600.0, interrupt)
    assert children() == before


SHIPPED = {"CartPole-v1": True, "drl_cli.envs.probes:Masked-v0": True, "TestApart-v0": False, "my_mod:Env": False}


@pytest.mark.parametrize("id", SHIPPED)
def test_shipped_environments_need_no_child(id):
    made = config(id=id)
    assert is_shipped(made) == SHIPPED[id]
    assert (apart(made, 60.0, lambda tick: os.getpid()) == os.getpid()) == SHIPPED[id]
    assert not is_shipped(replace(made, wrappers=("my_mod:Wrapper",)))

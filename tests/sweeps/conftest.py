import pytest

from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.sweeps import launcher
from drl_cli.sweeps.multirun import run_sweep
from drl_cli.sweeps.sweep import Sweep


@pytest.fixture
def multirun(tmp_path, monkeypatch):
    """Run `drl-train -m ...` in this process, in tmp_path, where no job can be started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "subprocess", None)

    def run(*args):
        command = read_command(["-m", *args])
        check_command(command)
        return run_sweep(command)

    return run


@pytest.fixture
def sweep(tmp_path):
    """Three jobs that differ in their seeds, with flags, in a new folder."""
    sweep = Sweep(tmp_path, ["--config-name", "train"])
    sweep.add([["env=A", f"seed={seed}"] for seed in range(3)])
    sweep.make_folder(str(tmp_path))
    return sweep

"""drl-doctor: check whether this machine has what training needs. Print a line per check, with advice."""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement

from drl_cli.cli.command import option, run_command
from drl_cli.errors import DONE, MISSING, RESOURCES, RoleLost
from drl_cli.utils import gpu as gpus
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.machine import CGROUP, free_memory, headless, num_cores, text_of
from drl_cli.utils.machine import compiler as compiler_name
from drl_cli.utils.shown import print
from drl_cli.version import __version__

if TYPE_CHECKING:  # slow to import
    from drl_cli.runtime.place.launch import RaySession

GIB = 2**30
STORE_MB = 256  # size of Ray's object store in a run without images
RAY_S = 60.0  # time that Ray may take to start
RENDER = """
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import build
env = build(EnvConfig("", "{id}", {{"render_mode": "rgb_array"}}, None, 1.0, "none", False, False))
env.reset(seed=0)
print(*env.render().shape, sep="x")
"""


@dataclass(frozen=True)
class Options:
    """Options of drl-doctor."""

    ray: bool = option(True, "start Ray to see whether it does; takes most of the time")
    output_dir: str = option("outputs", "where the runs will be")


@dataclass(frozen=True)
class Check:
    """The result of one check. `skip` means that training works without the missing part."""

    status: Literal["ok", "skip", "warn", "fail"]
    name: str
    text: str
    advice: str = ""
    exit_code: int = MISSING

    def __str__(self) -> str:
        return f"{self.status:<4}  {self.name:<10}  {self.text}{f'; {self.advice}' if self.advice else ''}"


def main() -> None:
    """Run drl-doctor."""
    run_command("drl-doctor", Options, examine, "check this machine: what is here, what is missing, what to do")


def examine(options: Options) -> int:
    """Print all checks and a verdict. Return DONE, or the exit code of the first check that failed."""
    session = _begin_ray() if options.ray and version_of("ray") else None
    found = []
    for check in checks(options, session):
        print(check, flush=True)
        found.append(check)
    failed = [check for check in found if check.status == "fail"]
    warned = sum(check.status == "warn" for check in found)
    verdict = f"{len(failed)} failed" if failed else "all that is needed is here"
    print(f"{verdict}{f', {warned} warned' if warned else ''}")
    exit_code = failed[0].exit_code if failed else DONE
    if session is not None and session.is_stuck:
        session.leave(exit_code)
    return exit_code


def checks(options: Options, session: "RaySession | None") -> Iterator[Check]:
    """Yield the checks in the order of the report. Ray starts in the background, so its check is the last one."""
    yield packages()
    yield processors(num_cores(), os.getloadavg()[0], text_of(CGROUP / "cpu.max"))
    yield threads(os.environ.get("OMP_NUM_THREADS", "1"))
    yield memory(free_memory())
    yield shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)
    yield disk("runs", options.output_dir, "output_dir=...")
    yield disk("temporary", os.environ.get("TMPDIR", "/tmp"), "TMPDIR=...")
    yield gpu(gpus.gpus() if version_of("torch") else (), gpus.has_driver())
    yield compiler(compiler_name())
    yield render("CartPole-v1", "")
    if version_of("mujoco"):
        yield render("InvertedPendulum-v5", "set MUJOCO_GL=egl, or osmesa")
    yield from map(optional, extras())
    yield ray(session, options.ray)


def packages() -> Check:
    """Check Python and the required packages."""
    if version_of("drl-cli") is None:
        return Check("warn", "packages", "drl-cli is not installed, only found in a folder", "pip install -e .")
    if lacking := missing("drl-cli"):
        return Check("fail", "packages", f"missing: {', '.join(lacking)}", f"pip install {' '.join(lacking)}")
    shown = ", ".join(f"{name} {version_of(name)}" for name in ("torch", "ray", "gymnasium"))
    return Check("ok", "packages", f"drl-cli {__version__}, Python {platform.python_version()}, {shown}")


def processors(cores: int, load: float, share: str) -> Check:
    """Check the processors that this process may use, the share of a container, and the load of other programs."""
    text = f"{cores} for this process, load {load:.1f}"
    limit, _, period = share.partition(" ")
    if limit.isdigit() and (quota := int(limit) / int(period)) < cores:
        return Check("warn", "processors", f"{text}, but this container gets {quota:g}", f"say worker.num={int(quota)}")
    if load > cores / 2:
        return Check("warn", "processors", text, "other programs are using them: runs and measurements are slower")
    return Check("ok", "processors", text)


def threads(number: str) -> Check:
    """Check OMP_NUM_THREADS. Workers with more than one thread slow each other down."""
    text = f"OMP_NUM_THREADS={number}: of each process"
    if number != "1":
        return Check("warn", "threads", text, "unset it, and say trainer.threads=... if the trainer is to have more")
    return Check("ok", "threads", text)


def memory(free: int) -> Check:
    """Check the free memory of the machine and of a container [bytes]."""
    text = f"{free / GIB:.1f} GiB free"
    if free < GIB:
        return Check("fail", "memory", text, "a run takes 1 GiB at least: end other programs", RESOURCES)
    if free < 4 * GIB:
        return Check("warn", "memory", text, "say a small replay.capacity and few worker.num")
    return Check("ok", "memory", text)


def shared_memory(free: int | None) -> Check:
    """Check /dev/shm, which holds Ray's object store. If fewer bytes are free, Ray uses the disk."""
    if free is None:
        return Check("skip", "/dev/shm", "not on this system")
    text = f"{free / 2**20:,.0f} MB free"
    if free < 1.1 * STORE_MB * 2**20:
        advice = "Ray's store goes to the disk: docker run --shm-size=1g, or ray.object_store_mb=80"
        return Check("warn", "/dev/shm", text, advice)
    return Check("ok", "/dev/shm", text)


def disk(what: str, folder: str, option: str) -> Check:
    """Check that a folder is writable and its disk has free space. `option` is the option that sets the folder."""
    root = Path(folder).absolute()
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        return Check("fail", "disk", f"{what}: can't write to {existing}", f"say another {option}", RESOURCES)
    free = shutil.disk_usage(existing).free / GIB
    text = f"{what}: {free:,.1f} GiB free at {existing}"
    if free < 0.05:
        return Check("fail", "disk", text, f"make room, or say another {option}", RESOURCES)
    return Check("warn", "disk", text, "checkpoints with replay may fill it") if free < 2 else Check("ok", "disk", text)


def gpu(found: Sequence[Gpu], has_driver: bool) -> Check:
    """Check the GPUs. Warn if torch can't use a GPU, or if there is a driver but torch finds no GPU."""
    if version_of("torch") is None:
        return Check("skip", "gpu", "no torch to ask")
    if problems := [f"{one.name}: {one.problem}" for one in found if one.problem]:
        advice = "install a build of torch for this GPU, or end the programs that use it; device=auto takes the CPU"
        return Check("warn", "gpu", "; ".join(problems), advice)
    if found:
        return Check("ok", "gpu", f"{', '.join(one.name for one in found)}; a product was computed on each")
    text = f"torch {version_of('torch')} finds no CUDA device"
    if has_driver:
        advice = "there is a driver of a GPU: install a CUDA build of torch (https://pytorch.org/get-started/locally)"
        return Check("warn", "gpu", text, advice)
    return Check("skip", "gpu", f"{text}: the trainer runs on processors")


def compiler(name: str) -> Check:
    """Check the C++ compiler that trainer.compile=true needs."""
    if shutil.which(name) is None:
        return Check("skip", "compiler", f"no {name}: trainer.compile=true needs one", "install it, or set CXX")
    return Check("ok", "compiler", name)


def render(id: str, advice: str) -> Check:
    """Draw one frame without a display, in another process, because a graphics driver may kill the process."""
    command = [sys.executable, "-P", "-c", RENDER.format(id=id)]
    try:
        done = subprocess.run(command, env={**os.environ, **headless()}, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return Check("warn", "rendering", f"{id}: no frame within 30 s", advice)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Check("warn", "rendering", f"{id}: {reason}", advice)
    return Check("ok", "rendering", f"{id}: frames of {done.stdout.strip()} without a display")


def optional(extra: str) -> Check:
    """Check whether an extra of the package is installed."""
    if lacking := missing("drl-cli", extra):
        return Check("skip", "extra", f"{extra}: {', '.join(lacking)} not installed", f"pip install 'drl-cli[{extra}]'")
    return Check("ok", "extra", extra)


def _begin_ray() -> "RaySession":
    from drl_cli.runtime.place.launch import RaySession

    session = RaySession(80)
    session.start()
    return session


def ray(session: "RaySession | None", is_wanted: bool) -> Check:
    """Wait for the Ray session that was started earlier, and close the session."""
    if session is None:
        return Check("skip", "ray", "not installed" if is_wanted else "not started, as ray=false says")
    started = time.monotonic()
    while not session.is_up() and time.monotonic() - started < RAY_S:
        time.sleep(0.05)
    if not session.is_up():
        session.is_stuck = True
        return Check("fail", "ray", f"not there after {RAY_S:.0f} s", _ray_logs(session))
    try:
        session.wait()
    except RoleLost as error:
        return Check("fail", "ray", " ".join(str(error).split()), _ray_logs(session))
    finally:
        session.close()
    return Check("ok", "ray", f"{version_of('ray')} starts")


def _ray_logs(session: "RaySession") -> str:
    return f"its logs are in {session.folder.path}/session_latest/logs" if session.folder else ""


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras(package: str = "drl-cli") -> list[str]:
    """Return the package's extras, except those for development, or [] if the package is not installed."""
    if version_of(package) is None:
        return []
    names = distribution(package).metadata.get_all("Provides-Extra") or []
    return [name for name in names if name != "dev"]


def missing(package: str, extra: str = "") -> list[str]:
    """Return the missing dependencies of an installed package, or of its extra, including nested extras."""
    lacking: list[str] = []
    for needed in map(Requirement, distribution(package).requires or []):
        is_always = needed.marker is None or needed.marker.evaluate({"extra": ""})
        is_for_extra = needed.marker is not None and needed.marker.evaluate({"extra": extra}) and not is_always
        if not (is_for_extra if extra else is_always):
            continue
        if version_of(needed.name) is None:
            lacking.append(needed.name)
        else:
            lacking += [name for inner in sorted(needed.extras) for name in missing(needed.name, inner)]
    return list(dict.fromkeys(lacking))


if __name__ == "__main__":
    main()

import re
import shutil
import sys
from importlib.metadata import distribution
from types import SimpleNamespace

import psutil
import pytest

from drl_cli.cli import doctor
from drl_cli.cli.doctor import Check, Options, examine
from drl_cli.errors import DONE, MISSING, RESOURCES, RoleLost
from drl_cli.utils.gpu import Gpu

GIB = 2**30


class Session:
    """A Ray session that starts, or not."""

    folder = None

    def __init__(self, is_there=True, error=None, is_stuck=False):
        self.is_there, self.error, self.is_stuck, self.is_closed = is_there, error, is_stuck, False

    def is_up(self):
        return self.is_there

    def wait(self):
        if self.error:
            raise self.error

    def close(self):
        self.is_closed = True

    def leave(self, code):
        sys.exit(code)


@pytest.fixture
def free(monkeypatch):
    """Set the free bytes of every disk."""
    return lambda size: monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size))


def test_packages(monkeypatch):
    check = doctor.packages()
    assert check.status == "ok"
    assert all(word in check.text for word in ("drl-cli ", "Python 3.", "torch 2.", "ray 2.", "gymnasium 1."))
    monkeypatch.setattr(doctor, "missing", lambda package, extra="": ["ray", "rich"])
    assert doctor.packages() == Check("fail", "packages", "missing: ray, rich", "pip install ray rich", MISSING)
    monkeypatch.setattr(doctor, "version_of", lambda package: None)
    assert (doctor.packages().status, doctor.gpu([], False).status) == ("warn", "skip")


@pytest.mark.parametrize(
    ("load", "limit", "line"),
    [
        (0.5, "", "ok    processors  8 for this process, load 0.5"),
        (0.5, "max 100000", "ok    processors  8 for this process, load 0.5"),
        (0.5, "1600000 100000", "ok    processors  8 for this process, load 0.5"),
        (0.5, "250000 100000", "warn  processors  8 .*, but this container gets 2.5; say worker.num=2"),
        (5.0, "", "warn  processors  8 .*; other programs are using them.*"),
    ],
)
def test_processors_that_other_programs_use_or_a_container_limits(load, limit, line):
    assert re.fullmatch(line, str(doctor.processors(8, load, limit)))


@pytest.mark.parametrize(("gib", "status"), [(16, "ok"), (2, "warn"), (0.5, "fail")])
def test_memory(gib, status):
    check = doctor.memory(int(gib * GIB))
    assert (check.status, check.exit_code == RESOURCES) == (status, status == "fail")


def test_a_small_shared_memory_is_a_warning():
    check = doctor.shared_memory(64 * 2**20)
    assert (check.status, "--shm-size" in check.advice) == ("warn", True)
    assert doctor.shared_memory(GIB) == Check("ok", "/dev/shm", "1,024 MB free")
    assert doctor.shared_memory(None).status == "skip"


@pytest.mark.parametrize(("gib", "status"), [(10, "ok"), (1, "warn"), (0.01, "fail")])
def test_a_disk_that_is_full(free, tmp_path, gib, status):
    free(gib * GIB)
    check = doctor.disk("runs", str(tmp_path / "not" / "there"), "output_dir=...")
    assert (check.status, str(tmp_path) in check.text) == (status, True)
    assert status != "fail" or (check.exit_code, "output_dir" in check.advice) == (RESOURCES, True)


def test_a_folder_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    check = doctor.disk("temporary", str(tmp_path / "file" / "outputs"), "TMPDIR=...")
    assert (check.status, check.exit_code, "TMPDIR" in check.advice) == ("fail", RESOURCES, True)


@pytest.mark.parametrize(
    ("found", "has_driver", "expected"),
    [
        ([Gpu("0", "H1"), Gpu("1", "H2")], True, "ok    gpu         H1, H2; a product was computed on each"),
        (
            [Gpu("0", "H1"), Gpu("1", "K80", "no kernel image")],
            True,
            "warn  gpu         K80: no kernel image; install .*",
        ),
        ([], True, "warn  gpu         torch .* finds no CUDA device; .* install a CUDA build of torch .*"),
        ([], False, "skip  gpu         torch .* finds no CUDA device: the trainer runs on processors"),
    ],
)
def test_gpus_by_name_and_those_that_torch_can_not_use(found, has_driver, expected):
    assert re.fullmatch(expected, str(doctor.gpu(found, has_driver)))


def test_threads_and_a_compiler():
    for check, good, bad, status in (
        (doctor.threads, "1", "8", "warn"),
        (doctor.compiler, sys.executable, "no-such-compiler", "skip"),
    ):
        assert (check(good).status, good in check(good).text) == ("ok", True)
        assert (check(bad).status, bad in check(bad).text) == (status, True)


@pytest.mark.slow
def test_frames_without_a_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    assert str(doctor.render("CartPole-v1", "")).endswith("CartPole-v1: frames of 400x600x3 without a display")
    check = doctor.render("NoSuch-v1", "do this")
    assert (check.status, check.advice, "NoSuch" in check.text) == ("warn", "do this", True)


def test_extras_and_their_missing_packages(tmp_path, monkeypatch):
    ours = [
        *("Provides-Extra: dev", "Provides-Extra: fast", "Provides-Extra: views", "Provides-Extra: old"),
        *("Requires-Dist: here>=1", "Requires-Dist: pytest; extra == 'dev'", "Requires-Dist: here; extra == 'fast'"),
        *("Requires-Dist: absent; extra == 'views'", "Requires-Dist: here[deep]; extra == 'views'"),
        "Requires-Dist: gone; python_version < '3' and extra == 'old'",
    ]
    here = ["Provides-Extra: deep", "Requires-Dist: absent; extra == 'deep'"]
    for name, lines in (("ours", ours), ("here", here)):
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        head = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text("\n".join([*head, *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor.extras("ours") == ["fast", "views", "old"]
    lacking = {name: doctor.missing("ours", name) for name in ("", "fast", "views", "old")}
    assert lacking == {"": [], "fast": [], "views": ["absent"], "old": []}
    assert (doctor.version_of("here"), doctor.version_of("absent"), doctor.extras("absent")) == ("1.0", None, [])
    monkeypatch.setattr(doctor, "missing", lambda package, name: lacking[name])
    assert [str(doctor.optional(name)) for name in ("fast", "views")] == [
        "ok    extra       fast",
        "skip  extra       views: absent not installed; pip install 'drl-cli[views]'",
    ]


def test_every_extra_of_the_package_has_requirements():
    """An extra without requirements would always count as installed."""
    requirements = distribution("drl-cli").requires
    for name in doctor.extras():
        assert any(re.search(rf"extra == .{name}.", text) for text in requirements), name


def test_ray_that_starts_or_not(monkeypatch):
    assert doctor.ray(None, False).status == "skip"
    session = Session()
    assert (doctor.ray(session, True).status, session.is_closed) == ("ok", True)
    session = Session(error=RoleLost("Ray did not start:\n no port"))
    check = doctor.ray(session, True)
    assert (check.status, check.text, check.exit_code) == ("fail", "Ray did not start: no port", MISSING)
    assert session.is_closed
    monkeypatch.setattr(doctor, "RAY_S", 0.0)
    session = Session(is_there=False)
    assert (doctor.ray(session, True).status, session.is_stuck) == ("fail", True)


@pytest.mark.parametrize(
    ("statuses", "code", "verdict"),
    [
        (("ok", "skip"), DONE, "all that is needed is here"),
        (("ok", "warn"), DONE, "all that is needed is here, 1 warned"),
        (("warn", "fail", "fail"), RESOURCES, "2 failed, 1 warned"),
    ],
)
def test_the_exit_code_belongs_to_the_first_failure(monkeypatch, capsys, statuses, code, verdict):
    codes = iter((RESOURCES, MISSING))
    found = [Check(status, "x", "y", exit_code=next(codes) if status == "fail" else 0) for status in statuses]
    monkeypatch.setattr(doctor, "checks", lambda options, session: found)
    assert examine(Options(ray=False)) == code
    assert capsys.readouterr().out.splitlines() == [*map(str, found), verdict]


def test_a_stuck_ray_does_not_keep_the_command_from_ending(monkeypatch):
    monkeypatch.setattr(doctor, "_begin_ray", lambda: Session(is_stuck=True))
    monkeypatch.setattr(doctor, "checks", lambda options, session: [Check("fail", "ray", "")])
    with pytest.raises(SystemExit) as caught:
        examine(Options())
    assert caught.value.code == MISSING


@pytest.mark.slow
def test_the_command_without_ray(drl_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = drl_here("doctor", "ray=false")
    assert (done.returncode, done.stderr) == (0, "")
    *lines, ray, verdict = done.stdout.splitlines()
    assert all(line.split()[0] in ("ok", "skip", "warn") for line in lines)
    assert ray == "skip  ray         not started, as ray=false says"
    assert verdict.startswith("all that is needed is here")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
def test_the_command_starts_ray_and_leaves_nothing_running(drl, tmp_path):
    done = drl("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-2].startswith("ok    ray ")
    assert not [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(tmp_path)]

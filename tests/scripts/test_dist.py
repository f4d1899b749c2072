"""scripts/dist finds files that the packages lack or should not have."""

import runpy
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

DIST = Path(__file__).parents[2] / "scripts" / "dist"
FILES = {"README.md": "x", "conf/algo/sac.yaml": "lr: 1", "drl_cli/cli/train.py": "", "drl_cli/py.typed": ""}
IN_WHEEL = ["drl_cli/conf/algo/sac.yaml", "drl_cli/cli/train.py", "drl_cli/py.typed"]


@pytest.fixture
def script(tmp_path):
    """The functions of the script, in a small repository with the tracked files FILES and an untracked one."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "notes.txt").write_text("not tracked")
    functions = runpy.run_path(str(DIST))
    functions["check_files"].__globals__["ROOT"] = tmp_path
    return functions


def packages(folder, in_sdist, in_wheel):
    """Return an sdist and a wheel with these names and the files of their metadata."""
    sdist, wheel = folder / "a-1.tar.gz", folder / "a-1.whl"
    (folder / "empty").touch()
    with tarfile.open(sdist, "w:gz") as archive:
        for name in [*in_sdist, "PKG-INFO"]:
            archive.add(folder / "empty", f"a-1/{name}")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in [*in_wheel, "a-1.dist-info/METADATA"]:
            archive.writestr(name, "")
    return sdist, wheel


def test_complete_packages_have_no_problem(script, tmp_path):
    assert script["check_files"](*packages(tmp_path, FILES, IN_WHEEL)) == []


def test_missing_and_superfluous_files_are_named(script, tmp_path):
    found = script["check_files"](*packages(tmp_path, [*list(FILES)[1:], "notes.txt"], [*IN_WHEEL[1:], "tests/a.py"]))
    assert found == [
        "the sdist lacks README.md",
        "the sdist has notes.txt, which git does not track",
        "the wheel lacks drl_cli/conf/algo/sac.yaml",
        "the wheel has tests/a.py, which git does not track",
    ]


def test_a_deleted_file_is_not_asked_for(script, tmp_path):
    (tmp_path / "README.md").unlink()
    assert script["check_files"](*packages(tmp_path, list(FILES)[1:], IN_WHEEL)) == []


def test_a_command_that_fails_ends_the_script(script):
    with pytest.raises(SystemExit, match="exit code 3"):
        script["run"]("bash", "-c", "exit 3", cwd=DIST.parent)

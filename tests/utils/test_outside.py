import hashlib
import sys
from pathlib import Path

import pytest

from drl_cli.utils import outside
from drl_cli.utils.outside import ModuleRaised, NotFound


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with modules of a user, which is the current folder."""
    files = {
        "their_module.py": "class Net:\n    def fail(self):\n        raise RuntimeError('inside')\n",
        "their_bug.py": "import math\n\nmath.sqrt(\n    -1)\n",
        "their_typo.py": "def f(:\n",
        "their_need.py": "import their_absent\n",
        "their_script.py": "import sys\nsys.exit('done')\n",
        "their_package/__init__.py": "",
        "their_package/module.py": "X = 1\n",
        "their_broken/__init__.py": "raise ValueError('two\\nlines')\n",
        "their_broken/module.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[name]


def test_a_module_and_an_object_are_imported(folder):
    assert outside.import_module("their_package.module").X == 1
    assert outside.import_object("their_module:Net").__name__ == "Net"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("their_absent", "there is no module 'their_absent' to import from {folder}"),
        ("their_absent.module", "there is no module 'their_absent' to import from {folder}"),
        ("their_package.absent", "there is no module 'their_package.absent' to import from {folder}"),
        ("their_module.absent", "there is no module 'their_module.absent' to import from {folder}"),
        ("their_module.py", "'their_module.py' is no import path; say their_module"),
        ("./their_package/module.py", "'./their_package/module.py' is no import path; say their_package.module"),
        ("a b", "'a b' is no import path"),
        ("", "'' is no import path"),
    ],
)
def test_a_missing_module_is_named(folder, path, says):
    with pytest.raises(NotFound) as caught:
        outside.import_module(path)
    assert str(caught.value) == says.format(folder=folder)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("their_bug", "their_bug raised ValueError: math domain error (their_bug.py:3)"),
        ("their_typo", "their_typo raised SyntaxError: invalid syntax (their_typo.py, line 1)"),
        ("their_need", "their_need raised ModuleNotFoundError: No module named 'their_absent' (their_need.py:1)"),
        ("their_script", "their_script raised SystemExit: done (their_script.py:2)"),
        ("their_broken.module", "their_broken.module raised ValueError: two lines (their_broken/__init__.py:1)"),
    ],
)
def test_a_module_that_raises(folder, path, says):
    with pytest.raises(ModuleRaised) as caught:
        outside.import_module(path)
    assert str(caught.value) == says


def test_a_missing_object_is_named_with_the_nearest(folder):
    with pytest.raises(NotFound, match=r"^their_module has no 'Nett'\. Did you mean Net\?$"):
        outside.import_object("their_module:Nett")
    with pytest.raises(NotFound, match=r"^their_module has no ''\.$"):
        outside.import_object("their_module")


def test_the_file_of_a_module_and_its_hash(folder):
    file = outside.source_file("their_package.module")
    assert file == folder / "their_package" / "module.py"
    assert outside.source_hash(file) == hashlib.sha256(b"X = 1\n").hexdigest()
    assert outside.source_file("their_absent") is None
    assert outside.source_file("their_broken.module") is None
    assert outside.source_file("sys") is None


def test_the_module_that_raised_is_found(folder):
    net = outside.import_object("their_module:Net")()
    with pytest.raises(RuntimeError) as caught:
        net.fail()
    assert outside.raised_by(caught.value, ["their_package.module", "their_module"]) == "their_module"
    assert outside.raised_by(caught.value, ["their_package.module", "their_absent"]) is None
    error = ValueError("wrapped")
    error.__cause__ = caught.value
    assert outside.raised_by(error, ["their_module"]) == "their_module"
    text = RuntimeError(f'a text like a traceback:\n  File "{folder}/their_module.py", line 3, in fail\n')
    assert outside.raised_by(text, ["their_module"]) is None
    text.__context__ = caught.value
    assert outside.raised_by(text, ["their_module"]) == "their_module"
    text.__suppress_context__ = True
    assert outside.raised_by(text, ["their_module"]) is None


def test_the_innermost_line_of_the_users_code_is_named(folder, monkeypatch):
    code = "import json, numpy\ndef parse():\n    json.loads('{')\ndef join():\n    numpy.concatenate([])\n"
    (folder / "their_calls.py").write_text(code)
    for name, line in (("parse", 3), ("join", 5)):
        with pytest.raises(ValueError, match=r"char|array") as caught:
            outside.import_object(f"their_calls:{name}")()
        assert outside.raised(caught.value).endswith(f" (their_calls.py:{line})")
    monkeypatch.chdir(folder / "their_package")
    assert (
        outside.raised(caught.value) == "raised ValueError: need at least one array to concatenate (their_calls.py:5)"
    )


def test_only_a_line_outside_drl_cli_and_its_libraries_is_named(folder):
    with pytest.raises(ValueError, match="null") as caught:
        outside.source_hash(Path("\0"))
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # without this file
    assert outside.raised(caught.value).startswith("raised ValueError: embedded null")
    assert outside.raised(caught.value)[-1] != ")"
    lines = ["/a/site-packages/their_env/env.py", "/a/site-packages/gymnasium/core.py", "<frozen os>"]
    dump = "".join(f'File "{file}", line {i}, in f\n' for i, file in enumerate(lines))
    assert outside.place(dump) == " (env.py:0)"
    assert outside.place(f'File "{folder}/own.py", line 7, in f\n{dump}') == " (own.py:7)"


def test_a_file_of_the_current_folder_is_imported_only_if_its_module_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(outside, "folders", [])
    monkeypatch.chdir(tmp_path)
    for name in ("their_here", "yaml", "numpy", "their_other"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / name)!r} + '.ran', 'w')\n")
    with pytest.raises(NotFound):
        outside.import_module("their_here")
    outside.look_in(str(tmp_path))
    outside.look_in(str(tmp_path))
    assert outside.folders == [str(tmp_path)]
    outside.reach("numpy")
    outside.reach("their_absent")
    outside.reach("no name")
    assert str(tmp_path) not in sys.path
    assert outside.folder_of("their_here.part") == tmp_path
    assert outside.folder_of("json.decoder") != tmp_path
    assert outside.folder_of("their_absent") is None
    outside.import_module("their_here")
    assert sys.path[-1] == str(tmp_path)
    assert sorted(path.stem for path in tmp_path.glob("*.ran")) == ["their_here"]
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").write_text("")
    assert outside.folder_of("their_package.module") == tmp_path

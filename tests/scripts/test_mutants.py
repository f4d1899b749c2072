from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    loader = SourceFileLoader("mutants", str(ROOT / "scripts" / "mutants"))
    module = module_from_spec(spec_from_loader("mutants", loader))
    loader.exec_module(module)
    return module


def mutants(script, tmp_path, source):
    file = tmp_path / "code.py"
    file.write_text(source)
    return script.mutants(file)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *[("x = a < b", ["x = a <= b", "x = a >= b"]), ("x = a is b", ["x = a is not b"])],
        *[("x = a - b", ["x = a + b"]), ("x = a and b", ["x = a or b"]), ("x = True", ["x = False"])],
        *[("x = 3", ["x = 4"]), ("x = a if b else c", ["x = a if not b else c"])],
        ("x = [a for a in b if c]", ["x = [a for a in b if not c]"]),
        *[("if a:\n    b()", ["if not a:\n    b()"]), ("x = path / 'name'", []), ("x = 'a' + f'{b}'", [])],
        ("x: int | None = None", []),
    ],
)
def test_the_mutants_of_a_line(script, tmp_path, source, expected):
    assert [text for _, text in mutants(script, tmp_path, source)] == expected


def test_a_mutant_is_named_by_line_and_change_and_alters_nothing_else(script, tmp_path):
    found = mutants(script, tmp_path, "def f(a):\n    if a > 1:\n        return 2\n    return a\n")
    assert [what for what, _ in found] == [
        "2: a > 1 -> not a > 1", "2: a > 1 -> a >= 1", "2: a > 1 -> a <= 1", "2: 1 -> 2", "3: 2 -> 3",
    ]  # fmt: skip
    assert found[-1][1] == "def f(a):\n    if a > 1:\n        return 3\n    return a"


def test_the_test_files_that_name_the_module_come_first(script):
    files = script.test_files(ROOT, "runs", "find")
    assert files[0] == "tests/runs/test_find.py"
    assert "tests/cli/test_compare.py" in files
    text = (ROOT / files[1]).read_text()
    assert "runs.find " in text


@pytest.mark.parametrize(
    ("line", "alive"), [("assert True", True), ("assert False", False), ("while True: pass", False)]
)
def test_a_mutant_survives_if_all_tests_pass_in_time(script, tmp_path, line, alive):
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {line}\n")
    assert script.survives(tmp_path, ["test_one.py"], limit_s=1 if "while" in line else 60) == alive

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

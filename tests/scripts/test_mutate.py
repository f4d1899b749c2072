"""scripts/mutate on a tiny package: which mutants there are, which of them live, and what is known of them later."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutate"
SMALL = "def is_small(value):\n    return value < 3\n"
ENDS = "from tiny.small import is_small\n\n\ndef test_ends():\n    assert is_small(1)\n    assert not is_small(9)\n"


@pytest.fixture
def tree(tmp_path):
    """A package of one module, with a test that does not look at the edge."""
    for folder in ("tiny", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tiny" / "small.py").write_text(SMALL)
    (tmp_path / "tests" / "test_small.py").write_text(ENDS)
    return tmp_path


def mutate(tree, *args):
    done = subprocess.run([sys.executable, SCRIPT, *args], cwd=tree, capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_no_test_notices_is_shown_until_one_does(tree):
    code, lines = mutate(tree, "tiny")
    assert code == 1
    assert lines[:3] == [f"{i}/3 tiny/small.py:2 {what}" for i, what in enumerate(["noticed", "lived", "lived"], 1)]
    assert [line for line in lines if line.startswith("+ ")] == ["+    return value <= 3", "+    return value < 4"]
    assert lines[-2:] == ["tiny/small.py: 1 of 3 noticed", "1 of 3 noticed: 0.33"]
    assert (tree / "tiny" / "small.py").read_text() == SMALL
    verdicts = tree / ".mutate" / "verdicts.json"
    before = verdicts.stat().st_mtime_ns
    assert mutate(tree, "tiny") == (code, lines)
    assert verdicts.stat().st_mtime_ns == before  # nothing was tried again
    edge = ENDS.replace("test_ends", "test_edge").replace("9", "3")
    (tree / "tests" / "test_edge.py").write_text(edge)
    code, lines = mutate(tree, "tiny")
    assert (code, lines[-1]) == (0, "3 of 3 noticed: 1.00")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_test_may_look_at_how_long_a_module_is(tree):
    length = "\n\ndef test_length():\n    assert len(open('tiny/small.py').readlines()) == 2\n"
    (tree / "tests" / "test_small.py").write_text(ENDS + length)
    assert mutate(tree, "tiny")[1][-1] == "1 of 3 noticed: 0.33"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_tests_further_away_come_later_or_not_at_all(tree):
    (tree / "tiny" / "outer.py").write_text("from tiny import small\n\nis_small = small.is_small\n")
    outer = ENDS.replace("tiny.small", "tiny.outer").replace("9", "3").replace("(1)", "(2)")
    (tree / "tests" / "test_outer.py").write_text(outer)
    assert mutate(tree, "tiny", "--near")[1][-1] == "1 of 3 noticed: 0.33"
    assert mutate(tree, "tiny")[1][-1] == "3 of 3 noticed: 1.00"


TWO = """
def one():
    return 1


class Two:
    number = 2

    def two(self):
        return self.number
"""


@pytest.mark.slow
def test_only_tests_that_call_what_was_changed_are_run(tree):
    (tree / "tiny" / "small.py").write_text(TWO)
    ran = "\n    with open('ran', 'a') as file:\n        file.write('{0} ')\n    assert small.{1}\n"
    tests = f"from tiny import small\ndef test_a():{ran.format('one', 'one()')}"
    tests += f"def test_b():{ran.format('two', 'Two().two()')}".replace("'ran'", repr(str(tree / "ran")))
    (tree / "tests" / "test_small.py").write_text(tests.replace("'ran'", repr(str(tree / "ran"))))
    _, lines = mutate(tree, "tiny")
    assert [line.split()[-1] for line in lines[:4]] == ["noticed", "lived", "lived", "noticed"]
    calls = ["one two", "one", "one", "one two", "two"]  # without a mutant, and the number is in no function
    assert (tree / "ran").read_text().split() == " ".join(calls).split()


def test_tests_that_fail_without_a_mutant_are_an_error(tree):
    (tree / "tests" / "test_small.py").write_text(ENDS.replace("9", "1"))
    done = subprocess.run([sys.executable, SCRIPT, "tiny"], cwd=tree, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: the tests have to pass without a mutant"
    assert not (tree / ".mutate").exists()


SOURCE = '''"""Text is left alone: 1 < 2."""


class Limit:
    most: int = 10
    far = 1e9

    def passes(self, value, strict=True):
        """Whether 1 < 2."""
        if not (value >= 0 and value is not None):
            log.info("below %d", 0)
            return False
        if not value:
            return None
        for i in sorted(value, reverse=strict):
            if i + self.most in value:
                continue
            self.most -= i
        self.done(value)
        self.value = value
        return value == self.most
'''
CHANGED = """
    most: int = 11
    far = 2000000000.0
    def passes(self, value, strict=False):
        if not not (value >= 0 and value is not None):
        if value >= 0 and value is not None:
        if not (value >= 0 or value is not None):
        if not (value > 0 and value is not None):
        if not (value >= 1 and value is not None):
        if not (value >= 0 and value is None):
            return None
            return True
        if not not value:
        if value:
        for i in sorted(value):
            if not i + self.most in value:
            if i + self.most not in value:
            if i - self.most in value:
                break
            self.most += i
            pass
        pass
        pass
        return None
        return value != self.most
"""


def test_the_mutants_of_a_module(tree):
    (tree / "tiny" / "small.py").write_text(SOURCE)
    code, lines = mutate(tree, "tiny/small.py", "--list")
    assert code == 0
    assert "" not in lines  # what would change nothing is no mutant
    assert [line[1:] for line in lines if line.startswith("+ ")] == CHANGED.splitlines()[1:]
    _, drawn = mutate(tree, "tiny/small.py", "--list", "--sample", "5", "--seed", "3")
    assert drawn == mutate(tree, "tiny/small.py", "--list", "--sample", "5", "--seed", "3")[1]
    assert sum(line.startswith("@@") for line in drawn) == 5
    assert drawn != mutate(tree, "tiny/small.py", "--list", "--sample", "5", "--seed", "4")[1]

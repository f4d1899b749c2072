"""How much of our algorithms is the same text, and what docs/architecture.md says of their size."""

import ast
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("sac", "dqn", "ppo")


def source(name):
    return (ROOT / f"drl_cli/algos/{name}.py").read_text()


def code(name):
    """Its lines, without imports, docstrings and comments."""
    left_out = set()
    for node in ast.walk(ast.parse(source(name))):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= {*range(node.lineno, node.end_lineno + 1)}
    lines = (line.strip() for i, line in enumerate(source(name).splitlines(), 1) if i not in left_out)
    return Counter(line for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("pair", [*combinations((*NAMES, "sac_discrete"), 2)], ids="-".join)
def test_no_two_algorithms_share_more_than_ten_lines(pair):
    one, other = map(code, pair)
    assert (one & other).total() <= 10, "what they share belongs into algos/learner.py or algos/policy.py"


def test_the_page_says_how_long_they_are():
    text = (ROOT / "docs/architecture.md").read_text()
    said = {name: int(lines) for name, lines in re.findall(r"(\w+)\.py(?: has)? (\d+)(?: lines)?", text)}
    assert said.keys() == {*NAMES}
    for name, lines in said.items():
        assert lines == pytest.approx(len(source(name).splitlines()), abs=10)

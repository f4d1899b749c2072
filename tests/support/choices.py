"""Which cases of a test every check has; `scripts/check all` has all."""

from collections import defaultdict

import pytest


def evenly(items, most):
    """Return the tests of `items`, as a set, with at most `most` cases of each, evenly spaced and with the first."""
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    return {item for cases in tests.values() for i, item in enumerate(cases) if i * most % len(cases) < most}


def some(values, *always):
    """Return the parameters of a test, values or tuples of values. Those that are not in `always` are exhaustive."""
    return [
        value
        if value in always
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.exhaustive)
        for value in values
    ]

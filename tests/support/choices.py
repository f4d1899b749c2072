"""Parameters of tests of which most are only in `scripts/check all`."""

import pytest


def some(values, *always):
    """Return the parameters of a test, values or tuples of values. Those that are not in `always` are exhaustive."""
    return [
        value
        if value in always
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.exhaustive)
        for value in values
    ]

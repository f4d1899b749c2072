"""Command lines of tests."""


def newest(args):
    """Return the words without a `key=value` that a later word sets to another value; drl-train warns of such words."""
    last = {str(arg).split("=")[0].lstrip("+"): i for i, arg in enumerate(args) if "=" in str(arg)}
    keys = [str(arg).split("=")[0].lstrip("+") for arg in args]
    return [str(arg) for i, arg in enumerate(args) if "=" not in str(arg) or last[keys[i]] == i]

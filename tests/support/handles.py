"""Handles of roles for tests: call a method by its name, and a handle without a role."""

from types import SimpleNamespace


def by_name(handle, method, *args, results=1):
    """Call a method of a role by its name, without its protocol."""
    named = SimpleNamespace(__name__=method)
    return handle.ask(named, *args) if results == 1 else handle.ask_parts(results, named, *args)


class FakeHandle:
    """A handle whose calls the function or method `call(method, *args)` answers; `results=` has the number of parts."""

    def __init__(self, call=None):
        if call is not None:
            self.call = call

    def ask(self, method, *args):
        return self.call(method.__name__, *args)

    def ask_parts(self, num, method, *args):
        return self.call(method.__name__, *args, results=num)

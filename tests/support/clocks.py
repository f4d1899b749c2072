"""A clock for tests of the runtime, whose seconds pass only in waits or as the test says."""

import sys
import time

from drl_cli.runtime.place import handles


class Clock:
    """`now` is the time [s]. A wait passes the time until the first of its references is due, and at least `tick`."""

    def __init__(self, now=100.0, tick=0.0):
        self.now, self.tick, self.due, self.waits = now, tick, {}, []

    def wait(self, refs, timeout_s):
        self.waits.append((self.now, timeout_s))
        first = min(self.due[ref] for ref in refs)
        self.now = min(max(self.now, first), self.now + max(timeout_s, self.tick))
        return [ref for ref in refs if self.due[ref] <= self.now]

    def install(self, monkeypatch, wait=None):
        """Have all modules of the runtime read this clock, and wait by the function `wait`, if it is given."""
        for name, module in list(sys.modules.items()):
            if name.startswith("drl_cli.runtime."):
                if vars(module).get("now") is time.monotonic:
                    monkeypatch.setattr(module, "now", lambda: self.now)
                if wait is not None and module is not handles and vars(module).get("wait") is handles.wait:
                    monkeypatch.setattr(module, "wait", wait)
        return self

"""Every algorithm of conf/algo as a small case, and an update that alternates."""

import torch

from drl_cli.settings.conf import conf_dir
from drl_cli.testing.case import Case

NAMES = sorted(file.stem for file in (conf_dir() / "algo").glob("*.yaml"))


def case_of(name):
    # Batch norm makes the gradients of some biases 0 up to rounding. Adam would make whole steps of these gradients.
    return Case(name, "network.hidden=[16,16]", *(["optimizer.name=sgd"] if name in ("crossq", "xqc") else []))


class Alternating:
    """w <- w + x at even updates, and w <- w - 2 x at odd ones; keeps how often Python ran it."""

    def __init__(self):
        self.w, self.calls = torch.zeros(3), [0]

    def update(self, columns, counts):
        self.calls[0] += 1
        step = columns["x"] if counts.opt_steps % 2 == 0 else -2 * columns["x"]
        self.w.add_(step)
        return {"w": self.w.sum()}, 7, None

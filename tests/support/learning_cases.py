"""Every algorithm of conf/algo as a small case."""

from drl_cli.settings.conf import conf_dir
from drl_cli.testing.case import Case

NAMES = sorted(file.stem for file in (conf_dir() / "algo").glob("*.yaml"))


def case_of(name):
    # Batch norm makes the gradients of some biases 0 up to rounding. Adam would make whole steps of these gradients.
    return Case(name, "network.hidden=[16,16]", *(["optimizer.name=sgd"] if name in ("crossq", "xqc") else []))

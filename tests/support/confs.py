"""The yaml of an algorithm with those it builds on, for tests that do without Hydra."""

from pathlib import Path

import yaml

CONF = Path(__file__).parents[2] / "conf" / "algo"


def algo_node(name):
    """Values of conf/algo/<name>.yaml below `algo`, and of the files that its defaults name."""
    node, values = yaml.safe_load((CONF / f"{name}.yaml").read_text()), {}
    for base in node.pop("defaults", []):
        if isinstance(base, str) and base != "_self_":
            values |= algo_node(base.partition("@")[0])
    return values | node.get("algo", node)

"""The yaml of an algorithm with those it builds on, for tests that do without Hydra."""

from pathlib import Path

import yaml

from drl_cli.settings.build import Key, judge
from drl_cli.settings.first_try import with_tuned
from drl_cli.settings.value_types import group_of

CONF = Path(__file__).parents[2] / "conf" / "algo"


def algo_node(name):
    """Values of conf/algo/<name>.yaml below `algo`, and of the files that its defaults name."""
    node, values = yaml.safe_load((CONF / f"{name}.yaml").read_text()), {}
    for base in node.pop("defaults", []):
        if isinstance(base, str) and base != "_self_":
            values |= algo_node(base.removesuffix("@algo"))
    return values | node.get("algo", node)


def algo_config(name, config_class, **options):
    """Return these values, and others for `options`, as the algorithm's Config. Nulls are as with tuned values."""
    values = algo_node(name) | options
    tuned = with_tuned({"algo": values})
    filled = {key: tuned.get(f"algo.{key}") if value is None else value for key, value in values.items()}
    return judge(Key("algo", group_of(config_class)), filled, config_class)

"""The config of a search or a population, with the shipped values but for those that are given."""

import yaml

from drl_cli.runtime.sections import HpoConfig
from drl_cli.settings.conf import conf_dir


def hpo(sampler, **values):
    return HpoConfig(**yaml.safe_load((conf_dir() / "hpo" / "none.yaml").read_text()) | values | {"sampler": sampler})

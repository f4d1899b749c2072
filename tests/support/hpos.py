"""Make the config of a search or a population from our default values and other ones."""

import yaml

from drl_cli.config.sections import HpoConfig
from drl_cli.settings.conf import conf_dir


def hpo(sampler, **values):
    return HpoConfig(**yaml.safe_load((conf_dir() / "hpo" / "none.yaml").read_text()) | values | {"sampler": sampler})

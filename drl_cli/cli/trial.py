"""An algorithm of the user's, made once before anything starts: what it refuses, or does not fit, is said at once."""

from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.cli.errors import USER_CODE, UsageError
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec
from drl_cli.utils.group import Context, Group
from drl_cli.utils.lazy import torch
from drl_cli.utils.params import Refused


def try_algorithm(config: Config, spec: EnvSpec) -> None:
    """Make the learner and the policy, and give one the other's parameters; raises UsageError."""
    name, memory = config.algo.name, config.network.memory
    if name in algorithms():
        return
    module = load_algorithm(name)
    options = (config.algo, config.network, spec)
    if memory != "none" and "state" not in module.Policy.extra_columns(*options):
        raise UsageError(f"network.memory={memory}: the policy of {name} has no memory; say network.memory=none")
    context = Context(torch.device("cpu"), Group(0, config.trainer.num), optimizer=config.optimizer)
    try:
        with torch.random.fork_rng(devices=[]):
            params = module.Algorithm(*options, config.seed, context).policy_params()
            policy = module.Policy(*options, config.seed)
    except Refused as error:
        raise UsageError(f"{name}: {error}") from error
    try:
        policy.load(params)
    except ValueError as error:
        raise UsageError(f"{name}: Policy.load does not take policy_params: {error}", USER_CODE) from error

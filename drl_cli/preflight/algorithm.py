"""An algorithm, tried before anything starts: what it refuses, or does not fit, is said at once."""

import dataclasses

from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.errors import RESOURCES, USER_CODE, RunError, UsageError
from drl_cli.networks.torsos import torso_name
from drl_cli.optim.group import Context, ProcessGroup
from drl_cli.optim.params import Refused
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import torch

MOST_ROWS = 4096
"""Of the batch that is tried; a larger one takes so many times longer."""


def update_seconds(config: Config, spec: EnvSpec) -> float:
    """Make two updates on random rows, with one thread; returns what one of the run's takes, about [s].

    The first counts where it was quicker: it also loads what torch needs but once.

    Raises UsageError with the exit code that the run would have ended with.
    """
    from drl_cli.runtime.program import make_trainer
    from drl_cli.runtime.trial import random_batch, single_trainer

    config = dataclasses.replace(single_trainer(config, threads=1), load_weights=None)
    rows = min(config.trainer.batch_size, MOST_ROWS)
    scale = config.trainer.batch_size / rows
    config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, batch_size=rows))
    try:
        trainer = make_trainer(config, spec, config.device, 0)
        _, params = trainer.publish(0, 0)
        header, columns = random_batch(config, spec, params)
        return scale * min(trainer.train(header, columns)[0].seconds for _ in range(2))
    except Refused as error:
        raise UsageError(f"{config.algo.name}: {error}") from error
    except RunError as error:
        raise UsageError(str(error), error.exit_code) from error
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise UsageError(f"an update of this size does not fit in memory: {_first_line(error)}", RESOURCES) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def try_algorithm(config: Config, spec: EnvSpec) -> None:
    """Of the user's own: make the learner and the policy, and give one the other's parameters; raises UsageError.

    Of ours only a policy that needs no torch is made, which takes long to import.
    """
    name, memory = config.algo.name, config.network.memory
    module = load_algorithm(name)
    options = (config.algo, config.network, spec)
    if name in algorithms():
        if memory == "none" and torso_name(config.network, spec) is None:
            try:
                module.Policy(*options, config.seed)
            except Refused as error:
                raise UsageError(str(error)) from error
        return
    if memory != "none" and "state" not in module.Policy.extra_columns(*options):
        raise UsageError(f"network.memory={memory}: the policy of {name} has no memory; say network.memory=none")
    context = Context(torch.device("cpu"), ProcessGroup(0, config.trainer.num), optimizer=config.optimizer)
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

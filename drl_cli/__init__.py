"""Distributed deep reinforcement learning from the command line.

In Python, `train` trains, `load` returns the trained policy of a run, and `curves` returns the evaluations of runs.
Importing drl_cli does not import torch.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drl_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from drl_cli.cli.from_python import RunFailed as RunFailed
    from drl_cli.deploy.policy import TrainedPolicy
    from drl_cli.errors import UsageError as UsageError


def load(
    run: str = "latest",
    checkpoint: str | int = "best",
    output_dir: str = "outputs",
    simulations: int | None = None,
    trust: bool = False,
) -> "TrainedPolicy":
    """Return the trained policy of a run. `policy(obs)` returns the best action, in the environment's own units.

    `run` is a path, `latest`, a glob, or the start of the id or the name of a run below output_dir. `checkpoint` is
    best, last, a number of env steps, or the name of a checkpoint folder. `simulations` replaces
    the number of simulations of a policy that searches; 0 plays the prior. `trust` is needed once for a run of somebody
    else whose config names modules: they run as you. Raise UsageError if the checkpoint is missing or can't be loaded.
    """
    from drl_cli.deploy.trained import open_policy

    return open_policy(run, str(checkpoint), output_dir, simulations, trust)


def train(
    overrides: str | Sequence[str] | Mapping[str, Any] = (),
    *,
    on_evaluation: Callable[[dict[str, Any]], object] | None = None,
    **keys: Any,  # Any: the value of a key
) -> dict[str, Any]:
    """Train as `drl-train` does. Return the content of summary.json, and the run's folder as `folder`.

    Four forms mean the same: `train("env=Pendulum-v1 algo.lr=1e-3")`, `train(["env=Pendulum-v1", "algo.lr=1e-3"])`,
    `train({"env": "Pendulum-v1", "algo.lr": 1e-3})` and `train(env="Pendulum-v1", **{"algo.lr": 1e-3})`. `keys` are
    added to `overrides`. `on_evaluation` is called after each evaluation with a dict: `env_steps` (`opt_steps` in
    mode=offline), `is_best`, `mean`, `std`, `min`, `max`, `median`, `episodes` and `length_mean`. If the function
    raises, the run ends with exit code 4.

    Raise UsageError if the config is wrong, and RunFailed if the run ended with an exit code other than 0. After Ctrl-C
    a checkpoint is saved and KeyboardInterrupt is raised.
    """
    from drl_cli.cli.from_python import as_words, train

    return train([*as_words(overrides), *as_words(keys)], on_evaluation)


def curves(runs: str | Sequence[str] = "latest", output_dir: str = "outputs") -> dict[str, list[Any]]:
    """Return the evaluations of runs as columns of equal length, for example for `pandas.DataFrame(curves(RUN))`.

    `runs` is a path, `latest`, a glob, the start of the id or the name of a run, or several of these. The first columns
    are `run` (the run's id), `env`, `algo`, `mode` and `seed`, and the others are the columns of eval.csv. A value that
    a run does not have is NaN. Raise UsageError if there is no such run.
    """
    from drl_cli.run_folder.find import find_runs
    from drl_cli.run_folder.saved_run import columns_of

    return columns_of(find_runs([runs] if isinstance(runs, str) else runs, output_dir))


if not TYPE_CHECKING:  # so that a type checker refuses a misspelt name

    def __getattr__(name: str) -> Any:  # Any: an exception class
        """Import the exceptions when they are first used."""
        homes = {"UsageError": "drl_cli.errors", "RunFailed": "drl_cli.cli.from_python"}
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

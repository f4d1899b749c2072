"""The warm-up of a short run: a default that would leave no update is shortened to fit total_env_steps."""

import dataclasses
from collections.abc import Sequence

from drl_cli.runtime.config import Config
from drl_cli.settings.env_names import typed_values
from drl_cli.settings.fill import fill

SHARE = 10
"""A shortened warm-up takes 1 / SHARE of total_env_steps, and at least one batch."""
INSERTS, RANDOM = "orchestrator.min_inserts", "worker.random_steps"


def short_warm_up(config: Config, words: Sequence[str]) -> dict[str, int]:
    """Return new values for the keys of a new run's warm-up, or {} if the run makes updates with its own values.

    `words` are the words that the user typed. A typed value stays, and so does the warm-up of a run that is resumed,
    because the replay ratio counts from the end of the warm-up. A run with load_weights may be without updates.
    """
    typed = typed_values(words)
    is_typed = INSERTS in typed and config.orchestrator.min_inserts is not None
    if is_typed or config.is_on_policy or config.resume or config.load_weights or fill(config).num_updates > 0:
        return {}
    new = max(config.total_env_steps // SHARE, config.trainer.batch_size)
    if new >= config.min_inserts:
        return {}
    random_steps = config.worker.random_steps
    is_random = random_steps is not None and random_steps > new and RANDOM not in typed
    return {INSERTS: new, **({RANDOM: new} if is_random else {})}


def with_short_warm_up(config: Config, words: Sequence[str]) -> tuple[Config, list[str]]:
    """Return the config with the values of `short_warm_up`, and a line about these values if there are any."""
    values = short_warm_up(config, words)
    if not values:
        return config, []
    before = {INSERTS: config.min_inserts, RANDOM: config.random_steps}
    changes = ", ".join(f"{key}={value} (not {before[key]})" for key, value in values.items())
    line = f"warm-up: {changes}, shortened to {measure(config)}"
    orchestrator = dataclasses.replace(config.orchestrator, min_inserts=values[INSERTS])
    worker = dataclasses.replace(config.worker, random_steps=values.get(RANDOM, config.worker.random_steps))
    return dataclasses.replace(config, orchestrator=orchestrator, worker=worker), [line]


def measure(config: Config) -> str:
    """Return how long a shortened warm-up is: a tenth of total_env_steps, or one batch if a batch has more rows."""
    is_share = config.total_env_steps // SHARE >= config.trainer.batch_size
    return f"{'a tenth of' if is_share else 'one batch for'} total_env_steps={config.total_env_steps}"

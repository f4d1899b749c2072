"""`data.reference=auto`: measure the returns of a random policy, and find that of an expert."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from drl_cli.data.dataset import Dataset, reference_problem
from drl_cli.deploy.recording import Recorder, random_policy
from drl_cli.deploy.trained import acting
from drl_cli.errors import UsageError
from drl_cli.preflight.environment import environment_spec
from drl_cli.runs.auto import CHANGES, results
from drl_cli.runtime.config import Config
from drl_cli.utils.shown import score_text

EPISODES = 20


def with_measured_reference(config: Config, dataset: Dataset | None, words: Sequence[str]) -> tuple[Config, list[str]]:
    """Replace `data.reference=auto` by two returns. Return the config, and lines that say where they come from.

    The first is the mean of EPISODES episodes of random actions. The second is the best recorded result of the
    environment, or, if there is none or `words` change the task, the largest return in the dataset. Raise UsageError
    if there is neither, or if the second is not larger than the first.
    """
    if config.data.reference != "auto":
        return config, []
    plain = dataclasses.replace(config, env=dataclasses.replace(config.env, frame_storage="none"))
    spec, env = environment_spec(plain, trains=False), config.env.for_evaluation(config.manage.env_kwargs)
    recorder = Recorder(env, spec, partial(random_policy, spec, config.seed), config.manage.max_episode_steps)
    with acting(config, Path(config.env.id)):
        played = recorder.episodes(config.seed, 0, EPISODES, None)
        random = float(np.mean([episode.reward.sum() for episode in played]))
    is_changed = any(CHANGES.match(word) for word in words)
    found = [] if is_changed else [(one["return"], one["algo"]) for one in results() if one["env"] == config.env.name]
    if found:
        expert, algo = max(found)
        source = f"the recorded result of {algo}"
    elif dataset is not None and len(dataset.facts.whole_returns):
        expert, source = float(dataset.facts.whole_returns.max()), "the best episode of the dataset"
    else:
        raise UsageError(f"data.reference=auto: there is no return of an expert; say [{score_text(random)},EXPERT]")
    if line := reference_problem((random, expert)):
        raise UsageError(f"data.reference=auto: from {source}: data.{line}")
    interval = f"[{score_text(random)},{score_text(expert)}]"
    text = f"data.reference={interval}: {EPISODES} episodes of random actions, and {source}"
    data = dataclasses.replace(config.data, reference=(random, expert))
    return dataclasses.replace(config, data=data), [text]

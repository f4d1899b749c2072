"""Values of keys that neither a file nor the command line sets: for environments that nobody has tuned.

The values follow from the length of the run and from a trial of its environment, so that a command gives the same run
in every mode and on every machine. A short run makes an update with each step, because its steps are few. A long run
makes fewer, to save time. In mode=offline, the values follow from the dataset and total_updates.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drl_cli.settings.conf import option_text, read_yaml
from drl_cli.settings.env_names import trial_of, typed_values
from drl_cli.settings.value_types import value_type
from drl_cli.utils.ranges import Count

RATIO, WARM_UP, ENVS = "orchestrator.sample_insert_ratio", "orchestrator.min_inserts", "worker.envs"
EPISODES = "manage.eval_episodes"
EVAL_PERIOD, OBS, REWARD = "manage.eval_period", "env.normalize_obs", "env.normalize_reward"
EPSILON = "algo.epsilon_steps"
DISCOUNT, N_STEP, RATE = "algo.gamma", "algo.n_step", "algo.lr"
BATCH, HIDDEN = "trainer.batch_size", "network.hidden"
NOISE, REPEAT = "algo.noise_kind", "algo.epsilon_repeat"
LIMIT, EVAL_LIMIT = "env.max_episode_steps", "manage.max_episode_steps"
OF_TRIAL = {OBS, DISCOUNT, NOISE, REPEAT, LIMIT, EVAL_LIMIT, EVAL_PERIOD}
"""The values that follow from a trial of the environment."""
ROLLOUT = 2048
"""The batch size of an algorithm on policy, which PPO's file leaves open."""

_TABLES: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_suffix(".yaml"))
WITH_TUNED, PAPERS, SHORT_RUN = (_TABLES[name] for name in ("with_tuned", "papers", "short_run"))
WITHOUT_REWARDS = ("bc",)
"""The algorithms that read no rewards."""

SHORT = 50_000
"""A run of at most this many steps is short."""
ENDLESS = 1000
"""After how many steps an episode is cut in an environment whose episodes do not seem to end."""
FEW = 10_000
"""A run of at most this many steps is over before long returns matter."""

Plain = Mapping[str, Any]
"""A composed config as plain values, by group and key."""


def with_first_try(plain: Plain, choices: Mapping[str, str], is_new: bool = True) -> dict[str, Any]:
    """Return the config with values in place of null for the keys in WITH_TUNED.

    `choices` are the options of the groups. If a tuned option is among them, or if the config is that of an earlier run
    (not `is_new`), the values are WITH_TUNED. Otherwise, `values_for` gives them.
    """
    tuned = choices.get("tuned", "none")
    if not is_new or (tuned != "none" and option_text("tuned", tuned) is not None):
        found = with_tuned(plain)
    else:
        is_open = any(_is_open(plain, path) for path in OF_TRIAL)
        found = values_for(plain) | (seen_values(plain) if is_open else {})
    filled = dict(plain)
    for path, value in found.items():
        if _is_open(filled, path):
            group, _, key = path.partition(".")
            filled[group] = {**filled[group], key: value}
    return filled


def with_tuned(plain: Plain) -> dict[str, Any]:
    """Return the values of a run with tuned values, by key."""
    own = {BATCH: ROLLOUT} if _is_on_policy(plain) else PAPERS.get(str(_value(plain, "algo.name")), {})
    return {**WITH_TUNED, **own}


def values_for(plain: Plain) -> dict[str, Any]:
    """Return the values of a run without tuned values, by key.

    On-policy runs have 16 environments and no warm-up, and their updates follow from their rollouts, which are smaller
    in a short run of PPO.
    """
    is_offline, tuned = plain.get("mode") == "offline", with_tuned(plain)
    key = "total_updates" if is_offline else "total_env_steps"
    length = value_type(Count).read(plain.get(key), key, [])  # may be typed as 5e3
    if length is None:  # refused later, when the config is built
        return tuned
    tuned[EVAL_PERIOD] = max(250, min(10_000, length // 10))
    is_short = length <= SHORT
    if is_offline:
        reads_rewards = str(_value(plain, "algo.name")) not in WITHOUT_REWARDS
        return {**tuned, OBS: True, REWARD: reads_rewards, **(SHORT_RUN if is_short else {})}
    if _is_on_policy(plain):
        return {**tuned, REWARD: True, BATCH: 512 if is_short else ROLLOUT}
    ratio, envs = (1.0, 1) if is_short else (0.5, 4) if length <= 200_000 else (0.25, 16)
    warm_up, epsilon_steps = max(100, min(1000, length // 50)), max(1000, min(50_000, length // 10))
    found = {**tuned, REWARD: True, RATIO: ratio, WARM_UP: warm_up, ENVS: envs, EPSILON: epsilon_steps, RATE: 1e-3}
    found[N_STEP] = 1 if length <= FEW else 3  # longer targets reach further, and are learned from later
    return {**found, **SHORT_RUN} if is_short else found


def seen_values(plain: Plain) -> dict[str, Any]:
    """Return the values of a run without tuned values that follow from a trial of its environment, by key.

    Observations are normalised if they have an unusual size. Otherwise, normalisation slows learning. If rewards are
    sparse, exploration goes on in a direction for several steps, so that it reaches further. If no episode ends and the
    environment declares no limit, episodes are cut, because training and evaluations could wait for an end forever. In
    a long run, evaluations take no more steps than training. In mode=offline, no environment is tried, and only the
    discount follows, from the dataset.
    """
    if plain.get("mode") == "offline":
        from drl_cli.data.open import time_limit  # slow: imports gymnasium

        return {DISCOUNT: discount(time_limit(_value(plain, "data.source")))}
    # The same trial before and after the values are filled in.
    unfilled = dict.fromkeys(("normalize_obs", "normalize_reward", "max_episode_steps"))
    seen = trial_of({**(plain.get("env") or {}), **unfilled}, _value(plain, "worker.step_timeout_s"))
    if seen is None:
        return {}
    noise, repeat = ("pink", 128) if seen.is_sparse else ("gaussian", 1)
    found = {OBS: seen.is_unusual, NOISE: noise, REPEAT: repeat}
    limit = value_type(Count).read(_value(plain, LIMIT), LIMIT, []) or seen.limit
    if seen.is_endless:
        limit = limit or ENDLESS
        found |= {LIMIT: limit, EVAL_LIMIT: limit}
    length = value_type(Count).read(plain.get("total_env_steps"), "total_env_steps", [])
    episodes = value_type(Count).read(_value(plain, EPISODES), EPISODES, [])
    if None not in (limit, length, episodes):
        found[EVAL_PERIOD] = max(values_for(plain)[EVAL_PERIOD], min(episodes * limit, length // 10))
    return {**found, DISCOUNT: discount(limit)}


def discount(limit: int | None) -> float:
    """Return the discount factor for episodes of at most `limit` steps, 0.99 if there is no limit.

    The rule is that of TD-MPC2 (Hansen et al. 2024, appendix): rewards count for about a fifth of an episode.
    """
    return 0.99 if limit is None else round(min(0.995, max(0.95, 1 - 5 / limit)), 4)


def first_try_line(plain: Plain, words: Sequence[str]) -> str | None:
    """Return a line that names what was chosen for a run without tuned values, or None if nothing was chosen.

    The user typed `words`. The line leaves out what they set, and what the algorithm's file sets.
    """
    typed = typed_values(words)
    of_trial = {path for path in OF_TRIAL - typed.keys() if _value(plain, path) is not None}
    values = values_for(plain) | (seen_values(plain) if of_trial else {})
    chosen = {path: value for path, value in values.items() if path not in typed}
    chosen = {path: value for path, value in chosen.items() if value and _value(plain, path) == value}
    parts = []
    if WARM_UP in chosen:
        ratio, envs = (chosen.get(path) for path in (RATIO, ENVS))
        parts += [f"an update per {'step' if ratio == 1 else f'{1 / ratio:g} steps'}"] if ratio else []
        parts += [f"{envs} environment{'s' * (envs > 1)} per worker"] if envs else []
        parts += [f"{chosen[WARM_UP]} steps of warm-up"]
    explores = not (_value(plain, "algo.noisy") or _value(plain, "worker.exploration"))
    parts += [f"epsilon falls for {chosen[EPSILON]:,} steps"] if EPSILON in chosen and explores else []
    parts += [f"episodes cut after {chosen[LIMIT]:,} steps"] if chosen.get(LIMIT) else []
    parts += [f"discount {chosen[DISCOUNT]:g}"] if chosen.get(DISCOUNT, 0.99) != 0.99 else []
    parts += [f"targets of {chosen[N_STEP]} steps"] if chosen.get(N_STEP, 1) > 1 else []
    parts += [f"learning rate {chosen[RATE]:g}"] if chosen.get(RATE, 3e-4) != 3e-4 else []
    parts += ["pink noise"] if chosen.get(NOISE) == "pink" else []
    parts += [f"random actions for up to {chosen[REPEAT]} steps"] if chosen.get(REPEAT, 1) > 1 and explores else []
    parts += [f"batches of {chosen[BATCH]}"] if chosen.get(BATCH) == 128 else []
    parts += ["layers of 128 units"] if chosen.get(HIDDEN) == [128, 128] else []
    parts += ["rollouts of 512 steps"] if chosen.get(BATCH) == 512 else []
    own = PAPERS.get(str(_value(plain, "algo.name")), {}).keys() - {HIDDEN}
    short = [path for path in SHORT_RUN if path in own and chosen.get(path) == SHORT_RUN[path]]
    parts += [f"{path.removeprefix('algo.')} {chosen[path]:g}" for path in short]
    scaled = [name for path, name in ((OBS, "vector observations"), (REWARD, "rewards")) if path in chosen]
    parts += [f"{' and '.join(scaled)} normalised"] if scaled else []
    return f"no tuned values: {', '.join(parts)}" if parts else None


def _is_on_policy(plain: Plain) -> bool:
    return str(_value(plain, "replay.sampler")).startswith("fifo")


def _is_open(plain: Plain, path: str) -> bool:
    group, _, key = path.partition(".")
    section = plain.get(group)
    return isinstance(section, Mapping) and section.get(key, 0) is None


def _value(plain: Plain, path: str) -> Any:
    group, _, key = path.partition(".")
    return (plain.get(group) or {}).get(key)

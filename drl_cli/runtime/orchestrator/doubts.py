"""Doubts: says if a run does not learn, and what its numbers suggest."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean, stdev

from drl_cli.config.config import Config
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.utils.shown import score_text

LEAST = 5
"""Number of first episodes that tell how good an untrained policy is."""
MOST = 2
"""Number of suggestions."""
FEW_UPDATES, FEW_ROLLOUTS = 5000, 20
SURE = 0.02
"""A policy with an entropy [nats] below this takes nearly always the same actions."""
BEYOND = 3.0
"""Values are far beyond returns if they are larger by this factor."""


def doubt(config: Config, progress: Progress, losses: Mapping[str, float]) -> str:
    """Return a line if no evaluation is better than the first episodes by more than the noise, otherwise ''.

    The first episodes are those of the untrained policy. Their returns may differ so much that nothing is better by
    more than the noise: an evaluation that is better than their mean, and clearly better than the first evaluation,
    is no doubt either. Nothing can be said before a third of the run, after `load_weights`, or if evaluations are in
    another environment. `losses` are the last means of the trainer's metrics.
    """
    first, best = progress.first, progress.best
    if best is None or not progress.scores or len(first) < LEAST or 3 * progress.position < config.clock.total:
        return ""
    if config.load_weights or config.manage.env_kwargs:
        return ""
    start, noise, episodes = fmean(first), 2 * stdev(first), config.manage.eval_episodes
    over_start = start + noise * math.sqrt(1 / len(first) + 1 / episodes)
    over_first_score = progress.scores[0][1] + noise * math.sqrt(2 / episodes)
    if best.mean > min(over_start, max(start, over_first_score)):
        return ""
    causes = list(islice(suggestions(config, progress, losses), MOST))
    what = f"the first {len(first)} episodes, whose mean return is {score_text(start)}"
    line = f"no evaluation is better than {what}, by more than the noise"
    return f"{line}: {'; '.join(causes)}" if causes else line


def suggestions(config: Config, progress: Progress, losses: Mapping[str, float]) -> Iterator[str]:
    """Yield what the numbers of a run that does not learn suggest, the surest first."""
    returns = [ret for ret, _ in progress.latest]
    if len(returns) >= LEAST and len(set(returns)) == 1:
        advice = "" if config.reward.name != "none" else "; if success is rare, reward=rnd rewards what is new"
        yield f"all of the last {len(returns)} episodes returned {score_text(returns[0])}{advice}"
    if config.is_on_policy:
        rollouts = config.total_env_steps // config.trainer.batch_size
        if rollouts < FEW_ROLLOUTS:
            yield f"this run has only {rollouts} rollouts; a smaller trainer.batch_size has more"
        if 0 <= losses.get("entropy", 1.0) < SURE:
            yield f"the policy hardly varies its actions (entropy {losses['entropy']:.2g}); raise algo.entropy_coef"
        return
    ratio = config.orchestrator.sample_insert_ratio
    if ratio < 1 and config.num_updates < FEW_UPDATES:
        yield f"this run has only {config.num_updates:,} updates; orchestrator.sample_insert_ratio=1 has more"
    limit = _largest_value(config, progress.latest)
    if abs(value := losses.get("q_mean", 0.0)) > limit:
        yield f"values of {value:.2g} are far beyond all returns; lower algo.lr"


def _largest_value(config: Config, episodes: Sequence[tuple[float, int]]) -> float:
    """Return a bound for the mean value of states in the reward's units of training. It is infinite if unknown."""
    if config.env.normalize_reward or config.algo.name == "mrq" or not episodes:
        return math.inf
    endless = max(abs(ret) / max(1, length) for ret, length in episodes) / max(1e-6, 1 - config.algo.gamma)
    return BEYOND * config.env.reward_scale * max(endless, *(abs(ret) for ret, _ in episodes), 1.0)

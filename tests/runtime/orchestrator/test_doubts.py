import math
import re

import pytest
from graphs import TINY, make_config

from drl_cli.runtime.messages import EvalReport, InsertTransition
from drl_cli.runtime.orchestrator.doubts import doubt
from drl_cli.runtime.orchestrator.progress import FEWEST, FIRST, Progress
from drl_cli.types import Episode, LoadParams

FAIR = [-10.0, -12.0, -8.0, -11.0, -9.0]
"""Returns with the mean -10. With evaluations of 2 episodes, the noise is 2.6."""
LONG = ("total_env_steps=100000", "orchestrator.sample_insert_ratio=1")


def after(*overrides, first=FAIR, latest=FAIR, evaluated=None, best=-9.0, share=0.5):
    """Return the config and the progress of a run that has seen these returns in episodes of 10 steps."""
    config = make_config(*TINY, "env=Pendulum-v1", "mode=single", *overrides)
    progress = Progress(config, 0.0)
    progress.env_steps = int(share * config.total_env_steps)
    progress.first = [*first]
    progress.latest.extend((ret, 10) for ret in latest)
    for mean in filter(None, (evaluated, best)):
        progress.evaluated(EvalReport(LoadParams(1, 1, 1), 1.0, {"mean": mean}, 0, is_best=True))
    return config, progress


@pytest.mark.parametrize(
    "run",
    [
        {"best": -7.0},
        {"best": None},
        {"best": math.nan},
        {"share": 0.3},
        {"first": FAIR[:4]},
        {"first": [-100.0, 80.0, -60.0, 90.0, -60.0], "best": 200.0},
        {"first": [0.0] * 5, "best": 0.01},
        {"first": [-4900.0, -4100.0, -5000.0, -9000.0, -9000.0], "evaluated": -9700.0, "best": -3000.0},
    ],
)
def test_a_run_that_learns_or_has_not_yet_shown_anything_is_not_doubted(run):
    assert doubt(*after(*LONG, **run), {}) == ""


@pytest.mark.parametrize("word", ["load_weights=runs/one", "+manage.env_kwargs.g=5.0"])
def test_a_good_start_or_another_environment_is_not_compared(word):
    assert doubt(*after(*LONG, word), {}) == ""


def test_without_a_cause_only_the_fact_is_said():
    fact = "no evaluation is better than the first 5 episodes, whose mean return is -10.0, by more than the noise"
    assert doubt(*after(*LONG), {"entropy": 0.0, "q_mean": -15.0}) == fact
    assert doubt(*after(*LONG, best=-7.5), {}) == fact  # within the noise
    assert doubt(*after(*LONG, evaluated=-9.0, best=-7.5), {}) == fact  # nor clearly better than the first evaluation
    assert doubt(*after(*LONG, evaluated=-20.0, best=-10.5), {}) == fact  # no better than the first episodes
    assert doubt(*after("total_env_steps=4000", LONG[1]), {}) == fact  # few updates, but one for each step


PPO = ("algo=ppo", "total_env_steps=100000")


@pytest.mark.parametrize(
    ("words", "run", "losses", "cause"),
    [
        (
            LONG,
            {"latest": [0.0] * 5},
            {},
            r"all of the last 5 episodes returned 0.0; .* reward=rnd rewards what is new",
        ),
        ((*LONG, "reward=rnd"), {"latest": [-3.0] * 6}, {}, "all of the last 6 episodes returned -3.0"),
        (
            ("total_env_steps=4000",),
            {},
            {},
            r"this run has only \d+ updates; orchestrator.sample_insert_ratio=1 has more",
        ),
        (
            (*PPO, "trainer.batch_size=8192"),
            {},
            {},
            "this run has only 12 rollouts; a smaller trainer.batch_size has more",
        ),
        (PPO, {}, {"entropy": 0.01}, r"the policy hardly varies its actions \(entropy 0.01\); raise algo.entropy_coef"),
        (LONG, {}, {"q_mean": -1e4}, r"values of -1e\+04 are far beyond all returns; lower algo.lr"),
        (LONG, {}, {"q_mean": 1e4}, r"values of 1e\+04 are far"),
    ],
)
def test_each_made_failure_has_one_cause(words, run, losses, cause):
    assert re.fullmatch(
        rf".*, whose mean return is -10.0, by more than the noise: {cause}.*", doubt(*after(*words, **run), losses)
    )
    assert doubt(*after(*words, **run | {"best": 5.0}), losses) == ""


def test_scaled_rewards_say_nothing_about_values():
    assert "values" not in doubt(*after(*LONG, "env.normalize_reward=true"), {"q_mean": 1e4})
    assert "values" not in doubt(*after(*LONG, "env.reward_scale=100"), {"q_mean": 5e3})


def test_at_most_two_causes_are_named():
    words = ("total_env_steps=4000", "orchestrator.sample_insert_ratio=0.5")
    text = doubt(*after(*words, latest=[0.0] * 5), {"q_mean": 1e9})
    assert text.count(";") == 3
    assert "values" not in text


def test_the_first_episodes_end_before_the_first_update():
    _, progress = after(first=[], latest=[], best=None)

    def collect(returns):
        episodes = tuple(Episode(0, ret, 10) for ret in returns)
        progress.collected(InsertTransition((), episodes, 0.0))

    collect(range(3))
    assert progress.first == [0, 1, 2]
    collect(range(30))
    assert len(progress.first) == FIRST
    progress.first, progress.opt_steps = [0.0], 1
    collect(range(30))
    assert progress.first == [0.0, 0, 1, 2, 3]
    assert len(progress.first) == FEWEST
    other = Progress(progress.config, 0.0)
    other.load_state(progress.state(), has_replay=True)
    assert other.first == progress.first

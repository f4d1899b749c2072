import pytest
from graphs import make_config

from drl_cli.settings.fill import short_warm_up, with_short_warm_up

BASE = ("env=Pendulum-v1", "algo=sac", "mode=single")  # tuned: a warm-up of 1,000, batches of 128, a ratio of 0.5
KEY, RANDOM = "orchestrator.min_inserts", "worker.random_steps"


def values(*overrides, base=BASE):
    words = (*base, *overrides)
    return short_warm_up(make_config(*words), words)


@pytest.mark.parametrize(("budget", "new"), [(500, 50), (1000, 100), (1001, 100), (1002, None), (15_000, None)])
def test_a_tuned_warm_up_that_leaves_no_update_is_a_tenth_of_the_budget(budget, new):
    found = values("trainer.batch_size=16", f"total_env_steps={budget}")
    assert found == ({} if new is None else {KEY: new})


@pytest.mark.parametrize(("budget", "new"), [(100, 16), (101, None), (1000, None)])
def test_the_warm_up_without_tuned_values_is_100_steps_or_a_tenth(budget, new):
    found = values("tuned=none", "trainer.batch_size=16", f"total_env_steps={budget}")
    assert found == ({} if new is None else {KEY: new})


def test_every_warm_up_holds_a_batch():
    assert values("total_env_steps=500") == {KEY: 128}
    assert values("total_env_steps=1000", "trainer.batch_size=100") == {KEY: 100}
    assert values("total_env_steps=1000", "trainer.batch_size=101") == {KEY: 101}
    assert values("total_env_steps=900", "trainer.batch_size=1000") == {}


@pytest.mark.parametrize(
    "overrides",
    [
        (f"{KEY}=600",),
        (f"++{KEY}=600",),
        ("load_weights=some/run",),  # may be without updates
        ("resume=some/run",),
        ("algo=ppo", "tuned=none"),
    ],
)
def test_what_is_typed_or_begun_stays(overrides):
    assert values("total_env_steps=500", *overrides, base=("env=Pendulum-v1", "mode=single")) == {}


def test_a_typed_null_leaves_the_choice_to_the_run():
    assert values("total_env_steps=500", f"{KEY}=null") == {KEY: 128}


def test_random_steps_of_a_tuned_set_are_shortened_too():
    base = ("env=LunarLander", "algo=rainbow", "mode=single", "total_env_steps=3000")  # tuned: 4,000 and 10,000
    assert (values(base=base), values(f"{RANDOM}=301", base=base)) == ({KEY: 300, RANDOM: 300}, {KEY: 300})
    assert values(f"{KEY}=2000", base=base) == {}


def test_rows_of_several_steps_count():
    """At the end, the last rows of 8 environments are incomplete: 8 x 79 steps. The warm-up is 100 steps."""
    base = ("env=CartPole-v1", "algo=r2d2", "tuned=none", "worker.envs=8", "worker.num=1", "trainer.batch_size=16")
    assert values("total_env_steps=732", base=base) == {KEY: 73}
    assert values("total_env_steps=733", base=base) == {}


def test_the_config_and_the_line():
    words = (*BASE, "total_env_steps=500", "trainer.batch_size=32")
    config, (line,) = with_short_warm_up(make_config(*words), words)
    assert (config.min_inserts, config.random_steps, config.num_updates) == (50, 50, 225)
    assert line == f"warm-up: {KEY}=50 (not 1000), shortened to a tenth of total_env_steps=500"
    assert with_short_warm_up(config, words) == (config, [])
    _, (line,) = with_short_warm_up(make_config(*words, "trainer.batch_size=50"), words)
    assert line.endswith("=50 (not 1000), shortened to a tenth of total_env_steps=500")
    words = ("env=LunarLander", "algo=rainbow", "mode=single", "total_env_steps=300")
    config, (line,) = with_short_warm_up(make_config(*words), words)
    size = config.trainer.batch_size
    assert (config.min_inserts, config.random_steps) == (size, size)
    assert f"{RANDOM}={size} (not 10000), shortened to one batch for total_env_steps=300" in line

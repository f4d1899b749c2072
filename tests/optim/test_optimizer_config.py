"""OptimizerConfig: its defaults, the factor of the learning rates at every moment, and options that do not fit."""

import pytest

from drl_cli.optim.optimizer_config import OPTIMIZERS, OptimizerConfig, option_problems


def test_without_more_it_is_adam_with_a_constant_rate_and_nothing_else():
    config = OptimizerConfig()
    assert (config.name, config.schedule, config.max_norm, dict(config.kwargs)) == ("adam", "constant", None, {})
    assert (config.warmup_steps, config.end, config.weight_decay) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("options", "factors"),
    [  # after 0, 1, 4, 5, 15, 20, 25 and 40 of 25 steps
        ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 5}, [1 / 6, 2 / 6, 5 / 6, 1, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.96, 0.84, 0.8, 0.4, 0.2, 0, 0]),
        ({"schedule": "linear", "warmup_steps": 5}, [1 / 6, 2 / 6, 5 / 6, 1, 0.5, 0.25, 0, 0]),
        ({"schedule": "linear", "warmup_steps": 5, "end": 0.2}, [1 / 6, 2 / 6, 5 / 6, 1, 0.6, 0.4, 0.2, 0.2]),
        ({"schedule": "cosine", "warmup_steps": 5}, [1 / 6, 2 / 6, 5 / 6, 1, 0.5, 0.14644661, 0, 0]),
        ({"schedule": "cosine", "warmup_steps": 5, "end": 0.5}, [1 / 6, 2 / 6, 5 / 6, 1, 0.75, 0.5732233, 0.5, 0.5]),
    ],
)
def test_the_factor_of_the_learning_rates(options, factors):
    config = OptimizerConfig(**options)
    got = [config.factor(env_steps, 25) for env_steps in (0, 1, 4, 5, 15, 20, 25, 40)]
    assert got == pytest.approx(factors)


def test_a_run_of_no_more_than_its_warm_up_ends_at_its_end():
    config = OptimizerConfig(schedule="linear", warmup_steps=5, end=0.1)
    assert [config.factor(env_steps, 5) for env_steps in (4, 5, 6)] == pytest.approx([5 / 6, 1.0, 0.1])


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({"kwargs": {"betas": [0.8, 0.9], "eps": 1e-6}}, []),
        ({"name": "adamw", "weight_decay": 0.1}, []),
        ({"kwargs": {"momentum": 0.9}}, ["optimizer.kwargs.momentum: adam has no such option; it has betas, eps"]),
        ({"name": "sgd", "kwargs": {"momentum": 0.9, "nesterov": True}, "weight_decay": 0.1}, []),
        (
            {"name": "sgd", "kwargs": {"beta": 0.9, "lr": 1.0}},
            [
                f"optimizer.kwargs.{key}: sgd has no such option; it has dampening, momentum, nesterov"
                for key in ("beta", "lr")
            ],
        ),
        ({"name": "rprop"}, []),
        ({"name": "rprop", "kwargs": {"etas": [0.5, 1.2]}}, []),
        (
            {"name": "rprop", "weight_decay": 0.1},
            ["optimizer.weight_decay: rprop has none; say optimizer.weight_decay=0"],
        ),
    ],
)
def test_options_that_do_not_fit_are_named(options, problems):
    assert option_problems(OptimizerConfig(**options)) == problems


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_without_options_has_no_problem(name):
    assert option_problems(OptimizerConfig(name=name)) == []

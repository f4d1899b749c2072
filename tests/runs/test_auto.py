import pytest

from drl_cli.envs.apart import Seen
from drl_cli.errors import UsageError
from drl_cli.runs import auto
from drl_cli.runs.auto import choose, naming_choice, with_auto
from drl_cli.settings.command_line import read_command

RESULTS = [
    {"env": "A-v0", "algo": "dqn", "threshold": 475, "seeds": 3, "steps": 20_000, "return": 490, "seconds": 9.0},
    {"env": "A-v0", "algo": "ppo", "threshold": 475, "seeds": 3, "steps": 12_000, "return": 480, "seconds": 20.0},
    {"env": "A-v0", "algo": "c51", "threshold": 475, "seeds": 3, "steps": 15_000, "return": 478, "seconds": 11.0},
    {"env": "B-v0", "algo": "iqn", "threshold": None, "seeds": 3, "steps": 50_000, "return": 7, "seconds": 90.0},
    {"env": "B-v0", "algo": "dqn", "threshold": None, "seeds": 3, "steps": 50_000, "return": 5, "seconds": 10.0},
    {"env": "B-v0", "algo": "c51", "threshold": None, "seeds": 1, "steps": 50_000, "return": 9, "seconds": 10.0},
    {"env": "C-v0", "algo": "c51", "threshold": None, "seeds": 2, "steps": 50_000, "return": 9, "seconds": 10.0},
    {"env": "D-v0", "algo": "dqn", "threshold": 20, "seeds": 2, "steps": 50_000, "return": 21, "seconds": 10.0},
    {"env": "E-v0", "algo": "dqn", "threshold": 20, "seeds": 3, "steps": 50_000, "return": 21, "seconds": 10.0},
    {"env": "E-v0", "algo": "ppo", "threshold": 20, "seeds": 1, "steps": 9_000, "return": 21, "seconds": 12.5},
    {"env": "F-v0", "algo": "dqn", "threshold": 20, "seeds": 3, "steps": 9_000, "return": 21, "seconds": 10.0},
    {"env": "F-v0", "algo": "ppo", "threshold": 20, "seeds": 1, "steps": 9_000, "return": 29, "seconds": 12.0},
]


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(auto, "results", lambda: RESULTS)


@pytest.mark.parametrize(
    ("env", "budget", "name", "reason"),
    [
        ("A-v0", None, "c51", "reached 475 in 3 of 3 recorded runs, 15,000 steps"),  # dqn needs too many steps
        ("A-v0", 13_000, "ppo", "reached 475 in 3 of 3 recorded runs, 12,000 steps"),
        ("A-v0", 5_000, "sac", "no recorded result for A-v0 within 5,000 steps"),
        ("B-v0", None, "iqn", "return here, 7 after 50,000 steps (3 seeds); c51 had 9, but with 1 seed only"),
        ("C-v0", None, "c51", "largest recorded return here, 9 after 50,000 steps (2 seeds)"),
        ("D-v0", None, "dqn", "reached 20 in 2 of 2 recorded runs, 50,000 steps"),
        ("E-v0", None, "dqn", "50,000 steps; ppo needed 9,000 steps and 12.5 s instead of 10 s, but with 1 seed only"),
        ("Pendulum-v1", None, "sac", "no recorded result for Pendulum-v1; sac needs no tuned values for continuous"),
        ("Acrobot-v1", None, "ppo", "for Acrobot-v1; ppo needs no tuned values for discrete actions, vectors and more"),
        ("Acrobot-v1", 50_000, "dqn", "for Acrobot-v1; dqn needs no tuned values for discrete actions, vectors and at"),
        ("Acrobot-v1", 50_001, "ppo", "and more than 50,000 steps"),
        ("drl_cli.envs.probes:Switches-v0", None, "ppo", "for multi-discrete"),
        ("drl_cli.envs.probes:Frames-v0", None, "mrq", " actions and images"),
    ],
)
def test_the_choice_by_environment_budget_and_action_space(known, env, budget, name, reason):
    chosen, why = choose(env, budget)
    assert chosen == name
    assert reason in why


def test_a_result_of_few_seeds_that_would_not_be_chosen_is_not_named(known):
    assert choose("F-v0", None) == ("dqn", "reached 20 in 3 of 3 recorded runs, 9,000 steps")


@pytest.mark.parametrize(
    ("problems", "place"),
    [
        (["seed: must be >= 0, got -1", "algo.epochs: dqn has no option 'epochs'."], 1),
        (["algo.lr: must be > 0, got 0"], None),
        (["DQN can't learn from replay=fifo; say replay=uniform"], 0),
        (["seed: must be >= 0, got -1", "no set of tuned values 'dqn2'"], None),
    ],
)
def test_an_error_about_the_chosen_algorithm_names_the_choice(problems, place):
    line, cause = "algo=auto chose dqn: reached 475", ValueError()
    with pytest.raises(UsageError) as caught, naming_choice(line):
        raise UsageError(problems, 3) from cause
    error = caught.value
    assert error.problems == [f"{each}   {line}" if i == place else each for i, each in enumerate(problems)]
    assert (error.exit_code, error.__cause__) == (3, cause)


def test_auto_is_replaced_by_the_name_of_the_algorithm(known):
    command, line = with_auto(read_command(["env=A-v0", "algo=auto", "algo.gamma=0.9", "total_env_steps=1.3e4"]))
    assert command.overrides == ["env=A-v0", "algo=ppo", "algo.gamma=0.9", "total_env_steps=1.3e4"]
    assert line == "algo=auto chose ppo: reached 475 in 3 of 3 recorded runs, 12,000 steps"
    sweep, _ = with_auto(read_command(["-m", "env=A-v0", "algo=auto,dqn", "seed=0,1"]))
    assert sweep.overrides == ["env=A-v0", "algo=c51,dqn", "seed=0,1"]


@pytest.mark.parametrize(("typed", "swept"), [("auto,ppo", "ppo"), ("ppo,auto,dqn", "ppo,dqn"), ("auto", "ppo")])
def test_a_sweep_has_the_chosen_algorithm_once(known, typed, swept):
    command, line = with_auto(read_command(["-m", "env=A-v0", f"algo={typed}", "total_env_steps=13e3", "seed=0,1"]))
    assert command.overrides[1] == f"algo={swept}"
    assert line.startswith("algo=auto chose ppo")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        *[
            ("+env.kwargs.continuous=true", "sac"),
            ("env.kwargs={g:9}", "sac"),
            ("env.wrappers=[my:W]", "sac"),
            ("tuned=none", "sac"),
        ],
        ("env.max_episode_steps=9", "c51"),
    ],
)
def test_results_do_not_count_for_a_changed_environment_or_other_tuned_values(known, change, name):
    chosen, reason = choose("A-v0", None, (change,))
    assert chosen == name
    assert reason.startswith(f"no recorded result for A-v0 with {change.lstrip('+')}" if name == "sac" else "reached")


@pytest.mark.parametrize("algo", ["dqn", "my_auto", "my_pkg.auto", "auto_tuned"])
def test_other_names_stay(known, algo):
    command = read_command(["env=A-v0", f"algo={algo}"])
    assert with_auto(command) == (command, None)


def test_several_environments_are_refused():
    with pytest.raises(UsageError, match="one environment"):
        with_auto(read_command(["-m", "env=CartPole-v1,Acrobot-v1", "algo=auto"]))


def test_every_recorded_result_names_an_algorithm_that_fits():
    from drl_cli.algos.lookup import load_algorithm
    from drl_cli.settings.algorithm import action_problem, algorithm_of
    from drl_cli.settings.env_names import typed_spec

    for env in {result["env"] for result in auto.results()}:
        spec = typed_spec((f"env={env}",))
        name = algorithm_of(choose(env, None)[0])
        assert load_algorithm(name).ACTIONS
        assert spec is None or action_problem(name, spec) is None


@pytest.mark.parametrize(("seconds", "name"), [(0.1, "dqn"), (1000, "ppo")])
def test_the_time_of_a_run_limits_its_steps(monkeypatch, known, seconds, name):
    monkeypatch.setattr(auto, "trial_of", lambda env, timeout_s: Seen(50_000.0, False, False, None, False))
    chosen, why = choose("Acrobot-v1", None, ("env=Acrobot-v1", f"stop.wall_s={seconds}"))
    assert (chosen, "; one environment makes 50,000 steps/s; " in why) == (name, True)


@pytest.mark.parametrize("word", ["network=lstm", "network=gru", "network.memory=gru"])
def test_a_network_with_a_memory_is_for_ppo(known, word):
    assert choose("Pendulum-v1", None, ("env=Pendulum-v1", word))[0] == "ppo"

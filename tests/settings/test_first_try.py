"""The values of a run without tuned values: they follow from its length, and every typed value stays."""

import json
import os

import gymnasium
import numpy as np
import pytest
from composing import compose_plain
from graphs import make_config

from drl_cli.config.exploration import exponents
from drl_cli.data.open import time_limit
from drl_cli.envs.trees import space_to_json
from drl_cli.settings import first_try
from drl_cli.settings.build import to_yaml_keys
from drl_cli.settings.compose import mapping
from drl_cli.settings.first_try import (
    BATCH,
    DISCOUNT,
    ENVS,
    EPSILON,
    EVAL_LIMIT,
    EVAL_PERIOD,
    HIDDEN,
    LIMIT,
    N_STEP,
    NOISE,
    OBS,
    RATE,
    RATIO,
    REPEAT,
    REWARD,
    WARM_UP,
    WITH_TUNED,
    discount,
    first_try_line,
)
from drl_cli.types import flatten

UNTUNED = ("env=MountainCarContinuous-v0", "algo=sac")
OFFLINE = ("mode=offline", "data.source=x.npz")
OF_SOME = (BATCH, EPSILON, DISCOUNT, N_STEP, RATE, HIDDEN, NOISE, REPEAT, LIMIT, EVAL_LIMIT)
OF_ALL = {key: value for key, value in WITH_TUNED.items() if key not in OF_SOME}


def values(*words):
    config = flatten(to_yaml_keys(make_config(*words)))
    return {key: config[key] for key in OF_ALL}


@pytest.mark.parametrize(
    ("length", "ratio", "envs", "warm_up", "period"),
    [
        (1000, 1, 1, 100, 250),
        (5000, 1, 1, 100, 500),
        (5050, 1, 1, 101, 505),
        (50_000, 1, 1, 1000, 5000),
        (50_001, 0.5, 4, 1000, 5000),
        (200_000, 0.5, 4, 1000, 19_980),  # 20 episodes of 999 steps
        (200_001, 0.25, 16, 1000, 19_980),
        (150_000, 0.5, 4, 1000, 15_000),
        (1_000_000, 0.25, 16, 1000, 19_980),
    ],
)
def test_the_values_follow_from_the_length(length, ratio, envs, warm_up, period):
    wanted = {RATIO: ratio, WARM_UP: warm_up, ENVS: envs, EVAL_PERIOD: period, OBS: True, REWARD: True}
    for mode in ("single", "sync", "async"):
        assert values(*UNTUNED, f"total_env_steps={length}", f"mode={mode}") == wanted
    of_pendulum = {OBS: False, EVAL_PERIOD: min(period, 10_000)}  # episodes of 200 steps
    assert values("env=Pendulum-v1", "tuned=none", "algo=td3", f"total_env_steps={length}") == {**wanted, **of_pendulum}


@pytest.mark.parametrize(
    ("limit", "factor"),
    [(None, 0.99), (1, 0.95), (60, 0.95), (200, 0.975), (500, 0.99), (1000, 0.995), (27_000, 0.995)],
)
def test_the_discount_of_a_time_limit(limit, factor):
    assert discount(limit) == factor


OFF = "mode=offline data.source=x.npz"
SHORT_SIZES = {BATCH: 128, HIDDEN: [128, 128], RATE: 1e-3}
CQL = ("algo.actor_lr", "algo.cql_alpha", "algo.samples")


def of_cql(*values):
    return dict(zip(CQL, values, strict=True))


CHOSEN = [
    ("env=Pendulum-v1 algo=td3", {DISCOUNT: 0.975, OBS: False, NOISE: "gaussian", N_STEP: 1}),
    ("env=Pendulum-v1 algo=a2c", {DISCOUNT: 0.975}),
    ("algo=tqc", {DISCOUNT: 0.995}),  # 999 steps
    ("env=CartPole-v1 algo=r2d2", {DISCOUNT: 0.997}),  # its file says so
    (f"env=Pendulum-v1 algo=td3 {DISCOUNT}=0.9", {DISCOUNT: 0.9}),
    (f"env=Pendulum-v1 algo=td3 {DISCOUNT}=null", {DISCOUNT: 0.975}),
    ("env=Pendulum-v1 algo=td3 tuned=td3-mujoco", {DISCOUNT: 0.99}),
    (f"env=Pendulum-v1 algo=iql {OFF}", {DISCOUNT: 0.99}),
    ("algo=sac", {N_STEP: 3, NOISE: "pink"}),
    ("algo=sac total_env_steps=10_001", {N_STEP: 3}),
    ("algo=sac total_env_steps=10_000", {N_STEP: 1}),
    (f"algo=sac total_env_steps=5000 {N_STEP}=5", {N_STEP: 5}),
    ("algo=sac tuned=sac-images", {N_STEP: 1, NOISE: "gaussian"}),
    ("env=MountainCar-v0 algo=dqn", {N_STEP: 3, REPEAT: 128}),
    ("env=MountainCar-v0 algo=munchausen_dqn total_env_steps=10_000", {N_STEP: 1}),
    ("env=MountainCar-v0 algo=rainbow total_env_steps=10_000", {N_STEP: 3}),  # its file says so
    (f"algo=tqc total_env_steps=1_000_000 {OBS}=true {DISCOUNT}=0.99", {NOISE: "pink"}),
    (f"algo=sac {NOISE}=gaussian", {NOISE: "gaussian"}),
    ("algo=wsrl", {NOISE: "gaussian"}),  # its file says so
    (f"env=MountainCar-v0 algo=dqn {REPEAT}=1", {REPEAT: 1}),
    ("env=CartPole-v1 algo=c51", {REPEAT: 1}),
    ("env=Acrobot-v1 algo=c51 tuned=c51-Acrobot-v1", {REPEAT: 1}),
    ("algo=sac total_env_steps=50_000", SHORT_SIZES),
    ("algo=sac total_env_steps=50_001", {BATCH: 256, HIDDEN: [256, 256], RATE: 1e-3}),
    ("algo=td3 total_env_steps=5000", {**SHORT_SIZES, RATE: 3e-4}),
    ("algo=sac tuned=sac-images total_env_steps=5000", {BATCH: 32, HIDDEN: [256, 256], RATE: 3e-4}),
    ("algo=mrq total_env_steps=5000", {**SHORT_SIZES, RATE: 3e-4, OBS: False}),
    ("algo=ppo total_env_steps=5000", {BATCH: 512, HIDDEN: [64, 64], RATE: 3e-4}),
    (f"algo=sac {BATCH}=64 {HIDDEN}=[32] {RATE}=2e-3 total_env_steps=5000", {BATCH: 64, HIDDEN: [32], RATE: 2e-3}),
    (f"{OFF} algo=iql total_updates=50_000", SHORT_SIZES),
    (f"{OFF} algo=iql total_updates=50_001", {BATCH: 256, HIDDEN: [256, 256], RATE: 3e-4}),
    (f"{OFF} algo=cql total_updates=60_000", {BATCH: 256, HIDDEN: [256, 256, 256], RATE: 3e-4}),
    (f"{OFF} algo=rebrac total_updates=60_000", {HIDDEN: [256, 256, 256], RATE: 1e-3}),  # its file has the rate
    (f"{OFF} algo=td3 tuned=td3-mujoco total_updates=3000", {BATCH: 256, HIDDEN: [256, 256], RATE: 3e-4, OBS: False}),
    ("env=MountainCar-v0 algo=dqn total_env_steps=5000", {EPSILON: 1000}),
    ("env=MountainCar-v0 algo=c51 total_env_steps=30_000", {EPSILON: 3000}),
    ("env=MountainCar-v0 algo=munchausen_dqn total_env_steps=10_000_000", {EPSILON: 50_000}),
    (f"env=MountainCar-v0 algo=dqn total_env_steps=30_000 {EPSILON}=700", {EPSILON: 700}),
    ("env=MountainCar-v0 algo=dqn total_env_steps=30_000 tuned=rainbow-images", {EPSILON: 50_000}),
    ("env=CartPole-v1 algo=ppo", {OBS: False}),
    (f"env=CartPole-v1 algo=ppo {OBS}=true", {OBS: True}),
    ("env=MountainCar-v0 algo=ppo", {OBS: True}),  # its velocity is at most 0.02 with random actions
    (f"env=MountainCar-v0 algo=ppo {OBS}=false", {OBS: False}),
    ("env=MountainCar-v0 algo=ppo tuned=ppo-CartPole-v1", {OBS: False}),
    (f"env=CartPole-v1 algo=bc {OFF}", {OBS: True}),
    (f"env=CartPole-v1 algo=bc {OFF} {OBS}=false", {OBS: False}),
    ("algo=ppo total_env_steps=50000", {BATCH: 512}),
    ("algo=ppo total_env_steps=50001", {BATCH: 2048}),
    (f"algo=ppo total_env_steps=5000 {BATCH}=1024", {BATCH: 1024}),
    ("env=CliffWalking-v1 algo=dqn", {LIMIT: 1000, EVAL_LIMIT: 1000, DISCOUNT: 0.995}),  # its episodes do not end
    (f"env=CliffWalking-v1 algo=dqn {LIMIT}=50", {LIMIT: 50, EVAL_LIMIT: 50, DISCOUNT: 0.95}),
    (f"env=CliffWalking-v1 algo=dqn {EVAL_LIMIT}=7", {LIMIT: 1000, EVAL_LIMIT: 7, DISCOUNT: 0.995}),
    ("env=CliffWalking-v1 algo=dqn tuned=dqn-images", {LIMIT: None, EVAL_LIMIT: 100_000, DISCOUNT: 0.99}),
    ("env=MountainCar-v0 algo=dqn", {LIMIT: None, EVAL_LIMIT: 100_000, DISCOUNT: 0.975}),  # it declares a limit
    ("env=Blackjack-v1 algo=dqn", {LIMIT: None, EVAL_LIMIT: 100_000, DISCOUNT: 0.99}),  # its episodes end
    ("algo=mrq total_env_steps=5000", {RATIO: 0.5, ENVS: 8, WARM_UP: 1000}),  # its file says so
    (
        "env=LunarLanderContinuous algo=sac tuned=sac-LunarLanderContinuous total_env_steps=20000",
        {ENVS: 16, OBS: False, REWARD: False},
    ),
    ("algo=sac tuned=sac-images total_env_steps=5000", OF_ALL),
    ("algo=ppo total_env_steps=5000", {**OF_ALL, EVAL_PERIOD: 500, OBS: True, REWARD: True}),
    (f"env=Pendulum-v1 algo=iql {OFF} total_updates=3000", {OBS: True, REWARD: True, EVAL_PERIOD: 300}),
    (f"env=Pendulum-v1 algo=bc {OFF} total_updates=3000", {OBS: True, REWARD: False, EVAL_PERIOD: 300}),
    (f"env=Pendulum-v1 algo=iql {OFF} total_updates=1_000_000", {OBS: True, REWARD: True, EVAL_PERIOD: 10_000}),
    (f"algo=cql {OFF} total_updates=50_000", {**SHORT_SIZES, **of_cql(1e-3, 1.0, 4)}),
    (f"algo=cal_ql {OFF} total_updates=3000", of_cql(1e-3, 1.0, 4)),
    (f"algo=cql {OFF} total_updates=50_001", of_cql(3e-5, 10.0, 10)),
    (f"algo=cal_ql {OFF} total_updates=50_001", of_cql(3e-5, 5.0, 10)),
    ("env=Pendulum-v1 algo=cal_ql total_env_steps=3000", of_cql(1e-3, 1.0, 4)),
    (
        f"algo=cql {OFF} total_updates=3000 algo.samples=7 algo.cql_alpha=10",
        of_cql(1e-3, 10.0, 7),
    ),
    (f"algo=cql {OFF} total_updates=3000 tuned=td3-mujoco", of_cql(3e-5, 10.0, 10)),
]
"""Words, and what is chosen for them. The environment is MountainCarContinuous, without tuned values, unless named."""


@pytest.mark.parametrize(("words", "wanted"), CHOSEN, ids=lambda value: value if isinstance(value, str) else "")
def test_the_values_follow_from_the_length_the_environment_and_the_algorithm(words, wanted):
    usual = {"env": "MountainCarContinuous-v0", "tuned": "none"}
    more = [f"{key}={value}" for key, value in usual.items() if f"{key}=" not in words]
    found = flatten(compose_plain(*more, *words.split()))
    number = {
        key: float(found[key]) if isinstance(found[key], str) and key in (RATE, *CQL) else found[key] for key in wanted
    }
    assert number == wanted


@pytest.mark.parametrize("length", ["5e3", "5_000", "5000.0"])
def test_the_length_may_be_typed_in_other_ways(length):
    assert values(*UNTUNED, f"total_env_steps={length}") == values(*UNTUNED, "total_env_steps=5000")


def test_a_typed_value_stays():
    typed = {RATIO: 0.25, WARM_UP: 700, ENVS: 16, EVAL_PERIOD: 4000, OBS: False, REWARD: False}
    for key, value in typed.items():
        found = values(*UNTUNED, "total_env_steps=5000", f"{key}={str(value).lower()}")
        assert [name for name in typed if found[name] == typed[name]] == [key]


def test_null_can_be_typed():
    words = [f"{key}=null" for key in OF_ALL]
    assert values(*UNTUNED, *words, "total_env_steps=5000") == values(*UNTUNED, "total_env_steps=5000")
    for env in ("MountainCarContinuous-v0", "Pendulum-v1"):
        assert make_config(f"env={env}", "algo=sac", f"{BATCH}=null").trainer.batch_size == 256


@pytest.mark.parametrize("algo", ["apex", "r2d2"])
def test_a_ladder_of_epsilons_has_several_environments_in_a_short_run(algo):
    config = make_config("env=MountainCar-v0", f"algo={algo}", "total_env_steps=5000", "mode=single")
    assert config.num_workers * config.worker.envs == 16
    assert len(set(exponents(config.worker.exploration, 0, 1, config.worker.envs))) == 16
    assert make_config("env=MountainCar-v0", f"algo={algo}", "worker.envs=4").worker.envs == 4


def dataset(path, lengths, cut, **extra):
    """Write a dataset with episodes of these lengths, of which those with the numbers `cut` are truncated."""
    ends, steps = np.cumsum(lengths) - 1, sum(lengths)
    is_cut = np.isin(np.arange(len(lengths)), cut)
    terminations, truncations = np.zeros((2, steps), bool)
    terminations[ends[~is_cut]] = truncations[ends[is_cut]] = True
    observations = np.zeros((steps, 3), np.float32)
    given = {"observations": observations, "next_observations": observations, "rewards": np.zeros(steps)}
    actions = np.zeros((steps, 1), np.float32)
    np.savez(path, **given, actions=actions, terminations=terminations, truncations=truncations, **extra)
    return str(path)


@pytest.mark.parametrize(
    ("lengths", "cut", "factor"),
    [
        ([200, 200, 30], [0, 1], 0.975),
        ([150, 200, 200], [2], 0.975),  # one that ended at its last step, and one that was cut
        ([30, 200], [0], 0.99),  # a longer episode was not cut, so that the limit is not known
        ([60, 61], [], 0.99),
        ([1000], [0], 0.995),
    ],
)
def test_the_discount_follows_from_the_episodes_of_the_data(tmp_path, lengths, cut, factor):
    path = dataset(tmp_path / "data.npz", lengths, cut)
    words = ["env=Pendulum-v1", "algo=iql", "mode=offline"]
    assert mapping([*words, f"data.source={path}"])["algo"]["gamma"] == factor
    other = dataset(tmp_path / "other.npz", [20], [0])
    assert mapping([*words, f"data.source=[{other},{path}]"])["algo"]["gamma"] == factor
    assert mapping([*words, f"data.source={path}", f"{DISCOUNT}=0.9"])["algo"]["gamma"] == 0.9


def test_a_piece_of_an_episode_shows_no_limit(tmp_path):
    spaces = {f"{kind}_space": space_to_json(gymnasium.spaces.Box(-1, 1, (1,))) for kind in ("observation", "action")}
    metadata = {**spaces, "env": None, "has_mask": False, "reference": None, "drl_cli": {"pieces": [1]}}
    path = dataset(tmp_path / "data.npz", [200, 900], [0, 1], metadata=json.dumps(metadata))
    assert time_limit(path) == 200


def test_a_dataset_that_changes_is_read_again(tmp_path):
    path = tmp_path / "data.npz"
    assert time_limit(dataset(path, [200], [0])) == 200
    dataset(path, [300], [0])
    os.utime(path, ns=(1, 1))
    assert time_limit(str(path)) == 300


@pytest.mark.parametrize("source", [None, 7, [7], "x.npz", "run:x", "minari:none/of-these-v0"])
def test_data_that_can_not_be_read_has_no_limit(source):
    assert time_limit(source) is None


OTHERS = (
    f"{WARM_UP}=9",
    f"{DISCOUNT}=0.99",
    f"{N_STEP}=1",
    f"{RATE}=3e-4",
    f"{BATCH}=256",
    f"{HIDDEN}=[64]",
    f"{NOISE}=gaussian",
)


@pytest.mark.slow
def test_the_line_names_what_was_chosen():
    def line(*words):
        return first_try_line(mapping([*UNTUNED, *words]), words)

    pace = "1 environment per worker, 100 steps of warm-up"
    assert line("total_env_steps=5000") == (
        f"no tuned values: an update per step, {pace}, discount 0.995, learning rate 0.001, pink noise, "
        "batches of 128, layers of 128 units, vector observations and rewards normalised"
    )
    assert line("total_env_steps=100000", f"{OBS}=false") == (
        "no tuned values: an update per 2 steps, 4 environments per worker, 1000 steps of warm-up, discount 0.995, "
        "targets of 3 steps, learning rate 0.001, pink noise, rewards normalised"
    )
    assert line(f"{RATIO}=1", "total_env_steps=5000").startswith(f"no tuned values: {pace}")
    assert line(*(f"{key}={value}".lower() for key, value in OF_ALL.items() if value is not None), *OTHERS) is None
    assert line(*OFFLINE, "algo=iql", "total_updates=3000") == (
        "no tuned values: learning rate 0.001, batches of 128, layers of 128 units, expectile 0.9, beta 10, "
        "vector observations and rewards normalised"
    )
    cut = ["env=CliffWalking-v1", "algo=dqn"]
    assert "episodes cut after 1,000 steps" in str(first_try_line(mapping(cut), cut))
    repeats = "random actions for up to 128 steps"
    words = ["env=MountainCar-v0", "algo=dqn"]
    assert repeats in str(first_try_line(mapping(words), words))
    assert repeats not in str(first_try_line(mapping([*words, f"{REPEAT}=1"]), words))
    assert line(*OFFLINE, "algo=bc", f"{RATE}=3e-4") == "no tuned values: vector observations normalised"
    assert ", actor_lr 0.001, cql_alpha 1, samples 4," in str(line(*OFFLINE, "algo=cql", "total_updates=3000"))
    assert "samples" not in str(line(*OFFLINE, "algo=cql", "total_updates=3000", "algo.samples=4"))
    assert "samples" not in str(line(*OFFLINE, "algo=cql", "total_updates=60_000"))
    assert "cql_alpha" not in str(line(*OFFLINE, "algo=cql_discrete", "env=CartPole-v1", "total_updates=3000"))
    on_policy = first_try_line(mapping([*UNTUNED[:1], "algo=ppo"]), ())
    assert on_policy == "no tuned values: discount 0.995, vector observations and rewards normalised"
    short = first_try_line(mapping([*UNTUNED[:1], "algo=ppo", "total_env_steps=5000"]), ())
    assert short == "no tuned values: discount 0.995, rollouts of 512 steps, vector observations and rewards normalised"


def test_no_environment_is_tried_if_nothing_follows_from_it(monkeypatch):
    monkeypatch.setattr(first_try, "trial_of", lambda *args: pytest.fail("the environment was tried"))
    for words in (
        [f"{OBS}=false", f"{DISCOUNT}=0.9", f"{NOISE}=gaussian", f"{LIMIT}=5", f"{EVAL_LIMIT}=5", f"{EVAL_PERIOD}=9"],
        ["mode=offline", "algo=iql", "data.source=x.npz"],
    ):
        first_try_line(mapping([*UNTUNED[:1], "algo=sac", *words]), words)
    with pytest.raises(pytest.fail.Exception):
        mapping([*UNTUNED, f"{OBS}=false", f"{DISCOUNT}=0.9"])

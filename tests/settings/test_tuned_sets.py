"""conf/tuned: sets that build on another, and values that follow from an environment's rewards."""

import pytest
from graphs import make_config

from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.conf import options


@pytest.mark.parametrize(
    "algo", ["apex", "c51", "iqn", "munchausen_dqn", "munchausen_iqn", "qr_dqn", "rainbow", "rainbow_iqn", "sqn"]
)
def test_on_acrobot_the_family_has_the_values_of_dqn(algo):
    assert f"{algo}-Acrobot-v1" in options("tuned")
    own, base = make_config("env=Acrobot-v1", f"algo={algo}"), make_config("env=Acrobot-v1", "algo=dqn")
    for group in ("network", "orchestrator", "trainer", "manage"):
        assert getattr(own, group) == getattr(base, group)
    for key in ("n_step", "lr", "target_period", "epsilon_steps"):
        assert getattr(own.algo, key) == getattr(base.algo, key)
    assert own.worker.random_steps == (5000 if algo.startswith("rainbow") else base.worker.random_steps)


def test_on_acrobot_r2d2_has_its_values_of_cartpole():
    assert {"r2d2-Acrobot-v1", "r2d2-CartPole-v1"} <= set(options("tuned"))
    own, base = (make_config(f"env={env}", "algo=r2d2") for env in ("Acrobot-v1", "CartPole-v1"))
    assert (own.replay.seq_len, own.replay.burn_in) == (20, 10)
    for group in ("algo", "network", "orchestrator", "replay", "trainer", "manage"):
        assert getattr(own, group) == getattr(base, group)


@pytest.mark.parametrize("algo", ["apex", "iqn", "rainbow"])
def test_on_the_lander_they_have_the_pace_of_dqn(algo):
    assert f"{algo}-LunarLander" in options("tuned")
    own, base = make_config("env=LunarLander", f"algo={algo}"), make_config("env=LunarLander", "algo=dqn")
    for group in ("orchestrator", "trainer", "manage"):
        assert getattr(own, group) == getattr(base, group)
    assert own.algo.gamma == base.algo.gamma


@pytest.mark.parametrize("algo", ["c51", "rainbow"])
@pytest.mark.parametrize(("env", "worst", "best"), [("CartPole-v1", 0, 1), ("Acrobot-v1", -1, 0)])
def test_the_support_has_every_return_of_such_rewards(algo, env, worst, best):
    config = make_config(f"env={env}", f"algo={algo}").algo
    steps = 1 / (1 - config.gamma)
    assert (config.v_min, config.v_max) == pytest.approx((worst * steps, best * steps))


@pytest.mark.parametrize("algo", ["iqn", "qr_dqn", "rainbow"])
@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_on_minatar_they_have_the_pace_and_network_of_dqn(algo, game):
    assert f"{algo}-MinAtar-{game}" in options("tuned")
    own, base = (make_config(f"env=MinAtar-{game}", f"algo={name}") for name in (algo, "dqn"))
    for group in ("network", "orchestrator", "worker", "trainer", "manage"):
        assert getattr(own, group) == getattr(base, group)
    assert (own.algo.lr, own.algo.loss) == (base.algo.lr, "huber")
    assert base.algo.loss == ("huber" if game == "Freeway" else "mse")
    assert (own.algo.double, own.algo.noisy) == ((True, True) if algo == "rainbow" else (False, False))
    lasts = algo == "rainbow" and game in ("Asterix", "Freeway", "Seaquest")
    assert own.algo.target_period == (250 if lasts else base.algo.target_period)


@pytest.mark.parametrize(
    ("game", "most", "steps", "alpha"), [("Asterix", 10, 1, 0), ("Freeway", 10, 3, 0.5), ("Seaquest", 5, 1, 0)]
)
def test_where_episodes_last_values_of_rainbow_begin_at_0(game, most, steps, alpha):
    config = make_config(f"env=MinAtar-{game}", "algo=rainbow")
    assert (config.algo.v_min, config.algo.v_max) == (-most, most)
    assert (config.algo.n_step, config.replay.alpha) == (steps, alpha)


@pytest.mark.parametrize(("algo", "tuned"), [("rainbow", "c51-CartPole-v1"), ("c51", "rainbow-CartPole-v1")])
def test_a_set_of_a_preset_fits_its_algorithm_and_the_other_way_round(algo, tuned):
    check_command(read_command([f"algo={algo}", "env=CartPole-v1", f"tuned={tuned}"]))

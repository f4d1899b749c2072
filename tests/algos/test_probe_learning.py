import pytest
import torch
from choices import some

from drl_cli.testing import Case, check_learning
from drl_cli.testing.learning import learned

FAST = ("algo.gamma=0.9", "algo.lr=3e-3")
SOFT = (*FAST, "algo.alpha_lr=3e-3", "algo.initial_alpha=0.1")
SAC = (*SOFT, "algo.tau=0.05")
NOISE = (*FAST, "algo.tau=0.05", "algo.noise=0.3")
TARGET = (*FAST, "algo.target_period=20")
DQN = (*TARGET, "algo.epsilon_end=0.1", "algo.epsilon_steps=800")
PPO = (
    *("algo.gamma=0.9", "algo.lr=1e-2", "algo.gae_lambda=0.9", "algo.epochs=4", "algo.minibatch_size=64"),
    *("algo.entropy_coef=0", "algo.value_coef=0.5"),
)
WIDE = (*FAST, "network.hidden=[32,32]")
CHOOSE = "env=drl_cli.envs.probes:Choose-v0"
RANGE = ("algo.v_min=-20", "algo.v_max=20")
DUALS = (
    *("algo.dual_lr=0.05", "algo.target_period=10", "algo.epsilon=1", "algo.epsilon_mean=0.1"),
    "algo.epsilon_std=1e-2",
)
LEARN = {
    "sac": ("sac", SAC, 600),
    "double dqn": ("dqn", (*DQN, "algo.double=true"), 200),
    "dqn": ("dqn", (*DQN, "algo.double=false"), 200),
    "qr_dqn": ("qr_dqn", (*DQN, "algo.dueling=true", "algo.noisy=true"), 250),
    "sac_discrete": ("sac_discrete", (*SAC, "algo.target_entropy=0.3"), 250),
    "ppo box": ("ppo", PPO, 60),
    "ppo discrete": ("ppo", (*PPO, CHOOSE), 20),
    "td3": ("td3", NOISE, 300),
    "ddpg": ("ddpg", (*NOISE, "algo.critic_lr=3e-3"), 300),
    "ddpg ou": ("ddpg", (*NOISE, "algo.critic_lr=3e-3", "algo.noise_kind=ou"), 300),
    "d4pg": ("d4pg", (*NOISE, "algo.critic_lr=3e-3", *RANGE, "algo.n_step=1"), 400),
    "tqc": ("tqc", (*SAC, "algo.critics=2", "algo.quantiles=8", "algo.dropped=1"), 300),
    "redq": ("redq", (*SAC, "algo.critics=3", "algo.actor_period=2"), 400),
    "droq": ("droq", (*SAC, "algo.critics=3", "algo.actor_period=2"), 400),
    "crossq": ("crossq", (*SOFT, "algo.momentum=0.05", "algo.actor_period=1"), 400),
    "xqc": ("xqc", (*SAC, "algo.momentum=0.05", *RANGE, "algo.actor_period=1"), 400),
    "flashsac": ("flashsac", ("algo.lr=3e-3", "algo.actor_period=1"), 450),
    "mpo": ("mpo", (*FAST, *DUALS), 600),
    "mrq": ("mrq", (*TARGET, "algo.encoder_lr=3e-3", "algo.noise=0.4", "algo.target_noise=0"), 600),
    "dr_q": ("dr_q", (*TARGET, "algo.encoder_lr=3e-3", "algo.noise=0.4", "algo.target_noise=0"), 600),
    "reppo": ("reppo", (*FAST, "algo.minibatch_size=64"), 60),
    "pqn": ("pqn", WIDE, 60),
    "vmpo box": ("vmpo", (*WIDE, "algo.epsilon_kl=0.1", "algo.epsilon_std=1e-2"), 150),
    "vmpo discrete": ("vmpo", (*WIDE, CHOOSE), 60),
    **{name: (name, (*WIDE, CHOOSE), 200) for name in ("impala", "appo", "a2c", "reinforce")},
    "rainbow": ("rainbow", (*TARGET, "algo.v_min=-1", "algo.v_max=2"), 250),
    **{name: (name, TARGET, 250) for name in ("apex", "munchausen_dqn", "munchausen_iqn", "rainbow_iqn", "sqn")},
}


def learn(name, probe, updates, *overrides):
    case = Case(name, f"env=drl_cli.envs.probes:{probe}-v0", "network.hidden=[32,32]", *overrides)
    algorithm = case.algorithm()
    case.algorithm = lambda *args: algorithm
    learned(case, updates)
    return algorithm


@pytest.mark.slow
@pytest.mark.parametrize("case", some(LEARN, "sac", "double dqn", "ppo box", "ppo discrete", "rainbow", "td3"))
def test_the_best_actions_are_learned(case):
    name, options, updates = LEARN[case]
    check_learning(name, *options, updates=updates)


@pytest.mark.slow
@pytest.mark.parametrize("n_step", some([1, 3], 3))
def test_forever(n_step):
    """1 / (1 - 0.9) = 10 if and only if truncation bootstraps; else, with episodes of 5 steps, below 3.6."""
    fixed = ("algo.initial_alpha=1e-3", "algo.alpha_lr=1e-9", "algo.target_entropy=-1")
    algorithm = learn("sac", "Forever", 500, *SAC, *fixed, f"algo.n_step={n_step}", "env.max_episode_steps=5")
    actions = torch.linspace(-0.9, 0.9, 7)[:, None]
    q = algorithm.nets.critic(torch.zeros(7, 1), actions)
    assert q.min() > 9.0
    assert q.max() < 11.0


@pytest.mark.slow
@pytest.mark.parametrize("gae_lambda", some([0.9, 0.0, 1.0], 0.9))
def test_ppo_forever(gae_lambda):
    """As above: the value is 10 if and only if truncated episodes and the ends of rollouts bootstrap."""
    options = (*PPO, f"algo.gae_lambda={gae_lambda}", "env.max_episode_steps=5")
    algorithm = learn("ppo", "Forever", 80, *options)
    value = algorithm.nets.critic(torch.zeros(1, 1))
    assert value.item() == pytest.approx(10.0, abs=0.5)

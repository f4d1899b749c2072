"""Models of stable-baselines3 and sb3-contrib with the settings of a drl-cli config; see sb3.py.

Every function asserts the options of the config that these libraries do not have.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

KINDS: dict[str, type[BaseAlgorithm]] = {"dqn": DQN, "qr_dqn": QRDQN, "sac": SAC, "td3": TD3, "tqc": TQC, "ppo": PPO}
ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "elu": torch.nn.ELU}
Options = dict[str, Any]  # Any: values of the options


class Small(BaseFeaturesExtractor):
    """The convolution of Young & Tian: 16 channels, 3x3. The layer of 128 units belongs to the networks behind it."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        height, width, channels = observation_space.shape
        super().__init__(observation_space, 16 * (height - 2) * (width - 2))
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(channels, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(obs.float().permute(0, 3, 1, 2))


def envs(settings: Options, num: int, seed: int) -> Any:
    most = settings["manage"]["max_episode_steps"]
    return make_vec_env(
        settings["env"]["id"], num, seed, wrapper_class=lambda env: gymnasium.wrappers.TimeLimit(env, most)
    )


def model(settings: Options, seed: int) -> BaseAlgorithm:
    """Create the model with the settings of the config."""
    algo, network, num = settings["algo"], settings["network"], settings["worker"]["envs"]
    assert settings["env"]["reward_scale"] == 1.0
    assert not settings["env"]["normalize_obs"]
    made = envs(settings, num, seed)
    policy = {"net_arch": network["hidden"], "activation_fn": ACTIVATIONS[network["activation"]]}
    if len(made.observation_space.shape) == 3:
        policy["features_extractor_class"] = Small
    name = algo["name"]
    if name == "ppo":
        options, more = on_policy(settings)
    else:
        find = values if name in ("dqn", "qr_dqn") else continuous
        options, more = find(settings, made.action_space)
        options = off_policy(settings) | options
    options |= {"policy_kwargs": policy | more, "device": "cpu", "seed": seed}
    return KINDS[name]("MlpPolicy", made, gamma=algo["gamma"], **options)


def off_policy(settings: Options) -> Options:
    algo, pace, num = settings["algo"], settings["orchestrator"], settings["worker"]["envs"]
    updates = num * pace["sample_insert_ratio"]
    assert updates == round(updates) > 0  # per step of all environments
    return {
        "learning_rate": algo["lr"],
        "n_steps": algo["n_step"],
        "buffer_size": settings["replay"]["capacity"] or settings["total_env_steps"],  # None: all
        "learning_starts": pace["min_inserts"],
        "batch_size": settings["trainer"]["batch_size"],
        "train_freq": 1,
        "gradient_steps": round(updates),
    }


def values(settings: Options, _: gymnasium.Space[Any]) -> tuple[Options, Options]:
    """Return options of DQN or QR-DQN, and of its policy. stable-baselines3 counts its target period in steps."""
    algo = settings["algo"]
    assert not algo["double"]  # theirs is not
    assert algo["loss"] == "huber"
    policy: Options = {}
    if algo["name"] == "qr_dqn":
        assert algo["kappa"] == 1.0  # as it is there
        policy = {"n_quantiles": algo["quantiles"], "optimizer_class": torch.optim.Adam}  # named: with its own eps
    options = {
        "target_update_interval": round(algo["target_period"] / settings["orchestrator"]["sample_insert_ratio"]),
        "exploration_fraction": algo["epsilon_steps"] / settings["total_env_steps"],
        "exploration_initial_eps": algo["epsilon_start"],
        "exploration_final_eps": algo["epsilon_end"],
        "max_grad_norm": float("inf"),
    }
    return options, policy


def continuous(settings: Options, action: gymnasium.Space[Any]) -> tuple[Options, Options]:
    """Return options of SAC, TD3 or TQC, and of its policy."""
    algo, name = settings["algo"], settings["algo"]["name"]
    options: Options = {"tau": algo["tau"]}
    if name == "td3":
        assert algo["noise_kind"] == "gaussian"
        size = action.shape[0] if action.shape else 1
        return options | {
            "action_noise": NormalActionNoise(np.zeros(size), np.full(size, algo["noise"])),
            "policy_delay": algo["actor_period"],
            "target_policy_noise": algo["target_noise"],
            "target_noise_clip": algo["noise_clip"],
        }, {}
    assert algo["alpha_lr"] == algo["lr"]  # theirs has one learning rate
    options |= {"ent_coef": f"auto_{algo['initial_alpha']}"}
    options |= {"target_entropy": "auto" if algo["target_entropy"] is None else algo["target_entropy"]}
    if name == "sac":
        return options, {}
    assert algo["actor_period"] == 1
    policy = {"n_quantiles": algo["quantiles"], "n_critics": algo["critics"]}
    return options | {"top_quantiles_to_drop_per_net": algo["dropped"]}, policy


def on_policy(settings: Options) -> tuple[Options, Options]:
    """Return options of PPO, and of its policy."""
    algo, optimizer = settings["algo"], settings["optimizer"]
    assert optimizer["schedule"] in ("constant", "linear")
    assert algo["kl_coef"] == 0 == optimizer["end"]
    assert not algo["squash"]
    assert algo["entropy_end"] is None
    lr: float | Callable[[float], float] = algo["lr"]
    if optimizer["schedule"] == "linear":
        lr = lambda left: algo["lr"] * left  # noqa: E731  # `left` falls from 1 to 0 over the run
    options = {
        "learning_rate": lr,
        "n_steps": settings["trainer"]["batch_size"] // settings["worker"]["envs"],
        "batch_size": algo["minibatch_size"] or settings["trainer"]["batch_size"],
        "n_epochs": algo["epochs"],
        "gae_lambda": algo["gae_lambda"],
        "clip_range": algo["clip"],
        "clip_range_vf": algo["value_clip"],
        "normalize_advantage": algo["normalize_advantage"],
        "ent_coef": algo["entropy_coef"],
        "vf_coef": algo["value_coef"],
        "max_grad_norm": optimizer["max_norm"],
        "target_kl": algo["target_kl"],
    }
    return options, {"ortho_init": settings["network"]["init"] == "orthogonal"}

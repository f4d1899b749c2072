"""Train stable-baselines3's DQN or sb3-contrib's QR-DQN on MinAtar with the settings of a drl-cli config, for learn.py.

    PEERS/bin/python scripts/bench/sb3_dqn.py SETTINGS.json FOLDER --seed 0 [--minutes 8] [--scored-from 750000]

The config names the algorithm, `dqn` or `qr_dqn`. The run continues from FOLDER and ends with its budget or after
some minutes; FOLDER then has everything for the next call. Every manage.eval_period steps from --scored-from on, or
at the end of the budget, the policy is evaluated. The last line is JSON: `env_steps`, `seconds` (of learning, over
all calls) and `returns`, the mean of the greedy episodes of each evaluation.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import torch
from minatar.gym import register_envs
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

KINDS = {"dqn": DQN, "qr_dqn": QRDQN}


class Small(BaseFeaturesExtractor):
    """The convolution of Young & Tian: 16 channels, 3x3. The layer of 128 units belongs to the Q network."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        height, width, channels = observation_space.shape
        super().__init__(observation_space, 16 * (height - 2) * (width - 2))
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(channels, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(obs.permute(0, 3, 1, 2))


class Scoring(BaseCallback):
    """Append the mean of an evaluation to `returns` periodically from step `start` on. Stop at the time `end`.

    `seconds` is the time of evaluations. Times are from `perf_counter`.
    """

    def __init__(self, settings: dict[str, Any], seed: int, returns: list[float], start: int, end: float) -> None:
        super().__init__()
        self.period, self.episodes = settings["manage"]["eval_period"], settings["manage"]["eval_episodes"]
        self.returns, self.start, self.end, self.seconds = returns, start, end, 0.0
        self.make_envs = lambda: envs(settings, 20, 10**6 + seed)

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.start + len(self.returns) * self.period:
            began = time.perf_counter()
            mean, _ = evaluate_policy(self.model, self.make_envs(), self.episodes, warn=False)
            self.returns.append(float(mean))
            self.seconds += time.perf_counter() - began
        return time.perf_counter() < self.end


def envs(settings: dict[str, Any], num: int, seed: int) -> Any:
    most = settings["manage"]["max_episode_steps"]
    return make_vec_env(
        settings["env"]["id"], num, seed, wrapper_class=lambda env: gymnasium.wrappers.TimeLimit(env, most)
    )


def model(settings: dict[str, Any], seed: int) -> DQN | QRDQN:
    """Create the model with the settings of the config. stable-baselines3 counts its target period in steps."""
    algo, pace, num = settings["algo"], settings["orchestrator"], settings["worker"]["envs"]
    assert not algo["double"]  # theirs is not
    assert algo["loss"] == "huber"
    ratio = pace["sample_insert_ratio"]
    policy = {"features_extractor_class": Small, "net_arch": settings["network"]["hidden"]}
    if algo["name"] == "qr_dqn":
        assert algo["kappa"] == 1.0  # as it is there
        policy |= {"n_quantiles": algo["quantiles"], "optimizer_class": torch.optim.Adam}  # named: with its own eps
    return KINDS[algo["name"]](
        "MlpPolicy",
        envs(settings, num, seed),
        learning_rate=algo["lr"],
        gamma=algo["gamma"],
        n_steps=algo["n_step"],
        buffer_size=settings["replay"]["capacity"],
        learning_starts=pace["min_inserts"],
        batch_size=settings["trainer"]["batch_size"],
        train_freq=1,
        gradient_steps=round(num * ratio),
        target_update_interval=round(algo["target_period"] / ratio),
        exploration_fraction=algo["epsilon_steps"] / settings["total_env_steps"],
        exploration_initial_eps=algo["epsilon_start"],
        exploration_final_eps=algo["epsilon_end"],
        max_grad_norm=float("inf"),
        policy_kwargs=policy,
        device="cpu",
        seed=seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--after", type=int, default=0, help="steps of a new run before the clock starts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scored-from", type=int)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    register_envs()
    settings, state = json.loads(args.settings.read_text()), args.folder / "state.json"
    if state.exists():
        done = json.loads(state.read_text())
        kind, num = KINDS[settings["algo"]["name"]], settings["worker"]["envs"]
        dqn = kind.load(args.folder / "model", envs(settings, num, args.seed + done["env_steps"]))
        dqn.load_replay_buffer(args.folder / "replay")
    else:
        args.folder.mkdir(parents=True, exist_ok=True)
        done, dqn = {"env_steps": 0, "seconds": 0.0, "returns": []}, model(settings, args.seed)
        if args.after:
            dqn.learn(args.after)
    budget = settings["total_env_steps"]
    if done["env_steps"] < budget:
        started = time.perf_counter()
        scoring = Scoring(settings, args.seed, done["returns"], args.scored_from or budget, started + 60 * args.minutes)
        dqn.learn(budget - done["env_steps"], scoring, reset_num_timesteps=False)
        seconds = done["seconds"] + time.perf_counter() - started - scoring.seconds
        done = {"env_steps": dqn.num_timesteps, "seconds": seconds, "returns": scoring.returns}
        dqn.save(args.folder / "model")
        dqn.save_replay_buffer(args.folder / "replay")
        state.write_text(json.dumps(done))
    print(json.dumps(done))


if __name__ == "__main__":
    main()

"""Environment steps/s of another library's on-policy training, for onpolicy.py.

    PEER_VENV/bin/python scripts/bench/onpolicy_peers.py {sf,sb3,rllib} TASK [--seconds 20] [--warm 10]

`sf` is Sample Factory's APPO, `sb3` is stable-baselines3's PPO, and `rllib` is RLlib's APPO. All of them have the
sizes of onpolicy.py: rollouts of `--unroll` steps in each environment, batches of `--batch` transitions, `--epochs`
passes with the whole batch as one minibatch, separate actor and critic with two hidden layers of 64 (tanh), and
flattened observations without normalisation. The last line is JSON: environment steps per second, and processor
microseconds (of all processes) per environment step, both after `--warm` seconds.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.spaces import Box

IS_OLD = gymnasium.__version__.startswith("0.")  # Sample Factory 2.1.1 needs gymnasium 0.29
NAMES = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v2" if IS_OLD else "LunarLander-v3"}


class Sleeper(gymnasium.Env):
    """Sleep 1 ms in each step, as drl_cli.envs.probes:Sleeper-v0."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = (Box(-1.0, 1.0, (size,), np.float32) for size in (2, 1))
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.001)
        self.count += 1
        return np.zeros(2, np.float32), 0.0, False, self.count >= 100, {}


class Flat(gymnasium.ObservationWrapper):
    """Return images as flat float32 vectors."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = Box(0.0, 1.0, (int(np.prod(env.observation_space.shape)),), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation, np.float32).ravel()


def make(task: str) -> gymnasium.Env:
    if task == "Sleeper":
        return Sleeper()
    if task == "Breakout":
        from minatar.gym import BaseEnv  # MinAtar/Breakout-v1: the actions that have an effect

        return Flat(BaseEnv(game="breakout", use_minimal_action_set=True))
    return gymnasium.make(NAMES[task])


class Clock:
    """Measures from the first call after `warm` seconds until `seconds` later."""

    def __init__(self, warm: float, seconds: float) -> None:
        self.warm, self.seconds = warm, seconds
        self.created = time.perf_counter()
        self.first: tuple[float, int, float] | None = None
        self.figures: dict[str, float] = {}

    def tell(self, steps: int) -> bool:
        """Take the number of steps so far. Return whether the measurement is over."""
        moment = time.perf_counter()
        if self.first is None and steps and moment - self.created >= self.warm:
            self.first = moment, steps, cpu_s()
        if self.first is None or moment - self.first[0] < self.seconds:
            return bool(self.figures)
        if not self.figures:
            began, before, used = self.first
            taken = steps - before
            self.figures = {"env steps/s": taken / (moment - began), "us/step": 1e6 * (cpu_s() - used) / taken}
        return True


def cpu_s() -> float:
    main = psutil.Process()
    total = 0.0
    for process in (main, *main.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:  # a helper process that has just ended
            continue
    return total


def make_for_sf(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> gymnasium.Env:
    return make(name)


def sf(args: argparse.Namespace, clock: Clock) -> None:
    from sample_factory.algo.runners.runner import AlgoObserver, Runner
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    class Observer(AlgoObserver):
        def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
            if clock.tell(sum(runner.env_steps.values())):
                runner.cfg.train_for_env_steps = 0  # ends the run

    register_env(args.task, make_for_sf)
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            "--algo=APPO", f"--env={args.task}", "--experiment=bench", f"--train_dir={folder}", "--device=cpu",
            f"--num_workers={args.workers}", f"--num_envs_per_worker={args.envs}", f"--rollout={args.unroll}",
            f"--batch_size={args.batch}", "--num_batches_per_epoch=1", f"--num_epochs={args.epochs}",
            "--use_rnn=False", "--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh",
            "--actor_critic_share_weights=False", "--normalize_input=False", "--normalize_returns=False",
            "--train_for_env_steps=1000000000000", "--save_every_sec=1000000", "--env_frameskip=1",
        ]  # fmt: skip
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(Observer())
        runner.init()
        runner.run()


def sb3(args: argparse.Namespace, clock: Clock) -> None:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    class Observer(BaseCallback):
        def _on_step(self) -> bool:
            return not clock.figures

        def _on_rollout_start(self) -> None:
            clock.tell(self.num_timesteps)

    torch.set_num_threads(1)
    is_slow = args.task == "Sleeper"  # one process per worker, and one environment in each process
    kind, num = (SubprocVecEnv, args.workers) if is_slow else (DummyVecEnv, args.workers * args.envs)
    envs = kind([lambda: make(args.task)] * num)
    model = PPO(
        "MlpPolicy", envs, n_steps=args.batch // num, batch_size=args.batch, n_epochs=args.epochs, device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
    )  # fmt: skip
    model.learn(10**12, Observer())
    envs.close()


def rllib(args: argparse.Namespace, clock: Clock) -> None:
    import logging

    import ray
    import torch
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.tune.registry import register_env

    torch.set_num_threads(1)
    ray.init(
        address="local", include_dashboard=False, num_cpus=args.workers + 2, logging_level=logging.ERROR,
        log_to_driver=False,
    )  # fmt: skip
    register_env(args.task, lambda config: make(args.task))
    config = (
        APPOConfig()
        .environment(args.task)
        .env_runners(
            num_env_runners=args.workers, num_envs_per_env_runner=args.envs, rollout_fragment_length=args.unroll
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=args.batch, num_epochs=args.epochs, minibatch_size=args.batch,
            use_circular_buffer=False,  # which serves every batch twice
        )
        .rl_module(
            model_config={
                "fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "head_fcnet_hiddens": [],
                "vf_share_layers": False,
            }
        )
        .reporting(min_time_s_per_iteration=1)
    )  # fmt: skip
    algorithm = config.build_algo()
    # RLlib's count of trained steps includes every epoch and padding.
    while not clock.tell(int(algorithm.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0))):
        pass
    algorithm.stop()
    ray.shutdown()


PEERS: dict[str, Callable[[argparse.Namespace, Clock], None]] = {"sf": sf, "sb3": sb3, "rllib": rllib}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("task", choices=["CartPole", "LunarLander", "Breakout", "Sleeper"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--unroll", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries goes to stderr
    clock = Clock(args.warm, args.seconds)
    PEERS[args.peer](args, clock)
    print(json.dumps(clock.figures), file=replies, flush=True)


if __name__ == "__main__":
    main()

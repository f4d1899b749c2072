"""Environment steps/s and updates/s of whole runs in mode=async, against RLlib's SAC at RLlib's actual replay ratio.

    python scripts/bench/rllib.py --peers PEERS_VENV [--rounds 3] [--seconds 60] [--ratio 0.125] [--env-runners 1]

LunarLanderContinuous, batches of 256, two hidden layers of 128, 5-step returns, uniform replay of 200,000 rows, 16
environments. RLlib (new API stack) uses its defaults otherwise, is built once and continues in each round. `--ratio`
sets its `training_intensity`; drl-cli uses the ratio that RLlib actually reaches. `--replay
PrioritizedEpisodeReplayBuffer` is RLlib's default. Other programs disturb the numbers per second of processor time
(of all processes) less.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from alternate import Figures, Side, peer_python, serve, table

BATCH, ENVS, ROWS, WARM_UP = 256, 16, 200_000, 2000


def rllib(args: argparse.Namespace) -> Callable[[], Figures]:
    import logging

    import psutil
    import ray
    import torch
    from ray.rllib.algorithms.sac import SACConfig

    torch.set_num_threads(args.threads)
    ray.init(address="local", include_dashboard=False, num_cpus=4, logging_level=logging.ERROR, log_to_driver=False)
    steps = args.fragment * ENVS * max(1, args.env_runners)  # of one sampling, after which it learns
    natural = BATCH / (args.fragment * ENVS * (args.env_runners + 1))  # as calculate_rr_weights of its DQN has it
    config = (
        SACConfig()
        .environment("LunarLanderContinuous-v3")
        .env_runners(
            num_env_runners=args.env_runners,
            num_envs_per_env_runner=ENVS,
            rollout_fragment_length=args.fragment,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=BATCH,
            n_step=5,
            training_intensity=args.ratio * steps * natural,
            replay_buffer_config={"type": args.replay, "capacity": ROWS},
            num_steps_sampled_before_learning_starts=WARM_UP,
        )
        .rl_module(model_config={"fcnet_hiddens": [128, 128], "fcnet_activation": "relu", "head_fcnet_hiddens": []})
        .reporting(min_time_s_per_iteration=5)
    )
    algorithm = config.build_algo()
    updates, update = 0, algorithm.learner_group.update

    def counted(*positional, **named):
        nonlocal updates
        updates += 1
        return update(*positional, **named)

    algorithm.learner_group.update = counted
    taken = 0

    def train() -> None:
        nonlocal taken
        taken = algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"]

    while updates == 0:
        train()

    def cpu_s() -> float:
        main = psutil.Process()
        return sum(sum(process.cpu_times()[:2]) for process in (main, *main.children(recursive=True)))

    def play() -> Figures:
        before, used, started = (taken, updates), cpu_s(), time.perf_counter()
        while time.perf_counter() - started < args.seconds:
            train()
        elapsed, used = time.perf_counter() - started, cpu_s() - used
        steps, done = taken - before[0], updates - before[1]
        return {"env steps/s": steps / elapsed, "updates/s": done / elapsed, "updates/CPU s": done / used}

    return play


def ours(args: argparse.Namespace, ratio: float) -> Figures:
    from runs import QUIET, watch

    values = ("env=LunarLanderContinuous", "algo=sac", "mode=async", "network.hidden=[128,128]", "algo.n_step=5")
    values += (f"trainer.batch_size={BATCH}", f"worker.envs={ENVS}", f"replay.capacity={ROWS}")
    values += (f"orchestrator.min_inserts={WARM_UP}", f"orchestrator.sample_insert_ratio={ratio:.6g}", *QUIET)
    seen = watch([*values, *args.set], args.seconds, lambda lines: bool(lines) and lines[-1]["perf/opt_steps"] >= 100)
    rates = {f"{name}/s": rate for name, rate in seen["rates"].items()}
    return rates | {"updates/CPU s": rates["updates/s"] / sum(seen["cpu"].values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ratio", type=float, default=0.125, help="updates per environment step that RLlib aims at")
    parser.add_argument("--env-runners", type=int, default=1, help="processes; 0: in the learner's")
    parser.add_argument("--fragment", type=int, default=32, help="steps of each environment per sampling")
    parser.add_argument("--threads", type=int, default=1, help="of RLlib's learner")
    parser.add_argument("--replay", default="EpisodeReplayBuffer", help="RLlib's kind of buffer")
    parser.add_argument("--only-rllib", action="store_true", help="to try settings")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="config of ours")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(rllib(args))
        return
    command = [peer_python(args.peers), *sys.argv, "--side"]
    side = Side(command, os.sched_getaffinity(0), {"OMP_NUM_THREADS": str(args.threads), "PYTHONWARNINGS": "ignore"})
    results: dict[str, list[Figures]] = {"ours": [], "rllib": []}
    try:
        for _ in range(args.rounds):
            theirs = side.play()
            results["rllib"].append(theirs)
            print(theirs, file=sys.stderr, flush=True)
            if not args.only_rllib:
                results["ours"].append(ours(args, theirs["updates/s"] / theirs["env steps/s"]))
    finally:
        side.close()
    for figures in (one for rounds in results.values() for one in rounds):
        figures["updates/step"] = figures["updates/s"] / figures["env steps/s"]
    print(table(results, "rllib" if args.only_rllib else "ours"))


if __name__ == "__main__":
    main()

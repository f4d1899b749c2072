"""Environment steps/s of one worker, against a loop with only `env.step` and against stable-baselines3's rollouts.

    python scripts/bench/collect.py [--peers PEERS_VENV] [--envs 1 8 16 32] [--backend envpool]
    python scripts/bench/collect.py --backend ale --envs 16 --steps 2560
    python scripts/bench/collect.py --before CHECKOUT      # against another commit, checked out there

LunarLanderContinuous, a policy with two hidden layers of 256, 5-step rows, one thread. The bare loop repeats the
worker's episodes with the same seeds and actions. stable-baselines3 collects with an equally large SAC into its own
replay buffer. The numbers are per second of wall time and of processor time; other programs disturb processor time
less. `--backend envpool` compares the worker with EnvPool, the worker with Gymnasium, and a bare loop over EnvPool.
`--backend ale` compares the worker with ale-py's vector environment, the worker with drl-cli's own games, and a bare
loop over the vector environment. The game is Pong, and the policy is the untrained network of `tuned=dqn-Pong`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from alternate import Figures, alternate, peer_python, serve, table

SIDES = {
    "gymnasium": ("ours", "bare loop"),
    "envpool": ("ours", "gymnasium", "bare envpool"),
    "ale": ("ours", "gymnasium", "bare ale"),
}
PACKAGES = {"envpool": ("envpool", "envpool"), "ale": ("ale_py", "atari")}
"""For a backend: the module that it needs, and the extra of drl-cli that installs it."""
LANDER = ("env=LunarLanderContinuous", "algo=sac", "tuned=none", "network.hidden=[256,256]", "algo.n_step=5", "seed=1")
PONG = ("env=Pong", "algo=dqn", "seed=1")


def timed(steps: int, play: Callable[[], None]) -> Figures:
    started, used = time.perf_counter(), time.process_time()
    play()
    return {"steps/s": steps / (time.perf_counter() - started), "steps/CPU s": steps / (time.process_time() - used)}


def ours(task: Sequence[str], num: int, steps: int, backend: str, is_bare: bool) -> Callable[[], Figures]:
    """The worker continues its episodes. The bare loop repeats the episodes of another worker."""
    from parts import Collecting

    from drl_cli.envs.make import read_spec
    from drl_cli.runtime.trial_update import lone_trainer, single_trainer
    from drl_cli.settings.compose import compose

    config = single_trainer(compose([*task, f"worker.envs={num}", f"env.backend={backend}"]), threads=1)
    spec = read_spec(config.env)
    both = Collecting(config, spec, *lone_trainer(config, spec).publish(0, 0))
    both.by_bare_loop()

    def play() -> Figures:
        rate = both.by_worker(-(-steps // config.rows_per_collect))
        rate = both.by_bare_loop() if is_bare else rate
        return {"steps/s": rate.per_s, "steps/CPU s": rate.per_cpu_s}

    return play


def sb3(num: int, steps: int) -> Callable[[], Figures]:
    import warnings

    warnings.simplefilter("ignore")
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

    torch.set_num_threads(1)
    envs = make_vec_env("LunarLander-v3", num, seed=1, env_kwargs={"continuous": True})
    model = SAC("MlpPolicy", envs, buffer_size=100_000, learning_starts=0, device="cpu", seed=1)
    _, callback = model._setup_learn(10**9)
    frequency = TrainFreq(steps // num, TrainFrequencyUnit.STEP)
    return lambda: timed(steps, lambda: model.collect_rollouts(envs, callback, frequency, model.replay_buffer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--before", type=Path, help="a checkout of another commit of ours, to compare with")
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--steps", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", choices=SIDES, default="gymnasium")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        (num,) = args.envs
        backend = "gymnasium" if args.side == "gymnasium" else args.backend
        is_bare = args.side.startswith("bare")
        task = PONG if args.backend == "ale" else LANDER
        serve(sb3(num, args.steps) if args.side == "sb3" else ours(task, num, args.steps, backend, is_bare))
        return
    module, extra = PACKAGES.get(args.backend, ("gymnasium", ""))
    if find_spec(module) is None:
        parser.error(f"--backend {args.backend} needs a package:  pip install 'drl-cli[{extra}]'")
    if args.peers and args.backend == "ale":
        parser.error("--backend ale has no comparison with stable-baselines3")
    for num in args.envs:
        options = ["--envs", num, "--steps", args.steps, "--backend", args.backend, "--side"]
        commands = {side: [sys.executable, __file__, *options, side] for side in SIDES[args.backend]}
        if args.before:
            script = (args.before / "scripts/bench/collect.py").resolve()
            commands["before"] = ["env", f"PYTHONPATH={script.parents[2]}", sys.executable, script, *options, "ours"]
        if args.peers:
            commands["sb3"] = [peer_python(args.peers), __file__, *options, "sb3"]
        print(f"\n{num} environments\n\n{table(alternate(commands, args.rounds))}", flush=True)


if __name__ == "__main__":
    main()

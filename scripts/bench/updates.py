"""Gradient updates per second, including the sampling of batches from a full replay table, against other libraries.

    python scripts/bench/updates.py --peers PEERS_VENV [--case sac] [--threads 1] [--set trainer.threads=2 ...]
    python scripts/bench/updates.py --before CHECKOUT --set trainer.compile=replay --set-before trainer.compile=false

One update of drl-cli is `TrajectoryManager.sample` and `Trainer.train`. stable-baselines3 and SBX run their own
`train()` on their own buffers, and d3rlpy its own `update()` (offline_peers.py). The numbers are updates per second of
wall time and of processor time; other programs disturb processor time less.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from alternate import Figures, alternate, peer_python, serve, table

SIDES = ("ours", "sb3", "sbx", "d3rlpy")
ROOT = Path(__file__).resolve().parents[2]
ROWS = 100_000  # in the replay table
DISCRETE = ("dqn", "c51", "qr_dqn", "iqn", "sac_discrete", "pqn")
MINIBATCHES = ("ppo", "pqn", "reppo")
ON_POLICY = (*MINIBATCHES, "impala", "vmpo")
PER_CALL = 16  # updates in one train call: ours, and what the peers are told to make in one `train()`


@dataclass(frozen=True)
class Case:
    """Observations of 8 numbers and actions of 2 (DQN: 4 choices), or boards of 10x10x4 booleans and 3 choices."""

    algo: str
    batch: int
    hidden: tuple[int, ...]
    board: bool = False
    ours: tuple[str, ...] = ()
    """Words of our command that give our algorithm the peers' default values."""
    peer: tuple[tuple[str, Any], ...] = ()
    """Arguments of the peers' algorithm."""
    sides: tuple[str, ...] = ("sb3", "sbx")
    """The peers that have the algorithm."""

    @property
    def name(self) -> str:
        what = ", MinAtar's boards" if self.board else ""
        return f"{self.algo}{what}, batch {self.batch}, hidden {'x'.join(map(str, self.hidden))}"


CASES = {
    "sac": Case("sac", 256, (256, 256)),
    "sac-small": Case("sac", 64, (64, 64)),
    "sac-1024": Case("sac", 1024, (256, 256)),
    "sac-400-300": Case("sac", 256, (400, 300)),
    "dqn": Case("dqn", 256, (256, 256)),
    "dqn-small": Case("dqn", 32, (64, 64)),
    "dqn-board": Case("dqn", 32, (128,), board=True, sides=("sb3",)),
    "ppo": Case("ppo", 64, (64, 64)),
    "td3": Case("td3", 256, (256, 256)),
    "td3-small": Case("td3", 64, (64, 64)),
    "ddpg": Case("ddpg", 256, (256, 256)),
    "tqc": Case("tqc", 256, (256, 256), ours=("algo.critics=2",)),
    "crossq": Case("crossq", 256, (256, 256)),
    "mrq": Case("mrq", 128, (128, 128), sides=()),
    "c51": Case("c51", 128, (128, 128), sides=()),
    "qr_dqn": Case("qr_dqn", 128, (128, 128), sides=()),
    "iqn": Case("iqn", 128, (128, 128), sides=()),
    "sac_discrete": Case("sac_discrete", 64, (64, 64), sides=()),
    "impala": Case("impala", 512, (64, 64), sides=()),
    "vmpo": Case("vmpo", 512, (64, 64), sides=()),
    "pqn": Case("pqn", 128, (128, 128), sides=()),
    "reppo": Case("reppo", 128, (128, 128), sides=()),
    "droq": Case("droq", 256, (256, 256), peer=(("policy_delay", 20),), sides=("sbx",)),
    "iql": Case("iql", 256, (256, 256), sides=("d3rlpy",)),
    "td3_bc": Case("td3_bc", 256, (256, 256), sides=("d3rlpy",)),
    "cql": Case("cql", 256, (256, 256), sides=("d3rlpy",)),
}
"""PPO learns from rollouts of 2048 rows in 10 epochs of minibatches; `sac` and `ppo` have their authors' sizes, and
`dqn-board` those of MinAtar's: ours plays Breakout (extra minatar), and stable-baselines3 is the only peer. TQC and
CrossQ of the side `sb3` are those of sb3-contrib. DroQ of SBX is its SAC with dropout and layer norm."""


def timed(train: Callable[[], int], seconds: float) -> Callable[[], Figures]:
    """Return a function that calls `train` for at least `seconds` and measures its updates."""

    def play() -> Figures:
        updates, started, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - started < seconds:
            updates += train()
        return {
            "updates/s": updates / (time.perf_counter() - started),
            "updates/CPU s": updates / (time.process_time() - used),
        }

    return play


def ours(case: Case, threads: int, overrides: list[str]) -> Callable[[], int]:
    from parts import Replaying, Updating

    from drl_cli.envs.make import read_spec
    from drl_cli.runtime.trial_update import lone_trainer
    from drl_cli.settings.compose import compose

    env = "MinAtar-Breakout" if case.board else "LunarLander" if case.algo in DISCRETE else "LunarLanderContinuous"
    values = [f"env={env}", f"algo={case.algo}", "tuned=none", f"network.hidden=[{','.join(map(str, case.hidden))}]"]
    values += ["mode=single", f"trainer.threads={threads}", "device=cpu", f"replay.capacity={ROWS}"]
    values += (
        [f"algo.minibatch_size={case.batch}"] if case.algo in MINIBATCHES else [f"trainer.batch_size={case.batch}"]
    )
    values += ["algo.double=false"] if case.algo == "dqn" else []  # the peers' DQN is not double
    values += [] if case.algo in ON_POLICY else [f"trainer.updates_per_call={PER_CALL}"]
    values += case.ours
    config = compose(values + overrides)
    spec = read_spec(config.env)
    params = lone_trainer(config, spec).publish(0, 0)
    return Updating(Replaying(config, spec, *params, seconds=60.0), spec, threads).train


def peer(package: str, case: Case, threads: int) -> Callable[[], int]:
    import torch

    torch.set_num_threads(threads)
    if package == "d3rlpy":
        from offline_peers import d3rlpy_updates

        update = d3rlpy_updates(case.algo, case.batch, case.hidden, ROWS)
        return lambda: len([update() for _ in range(PER_CALL)])
    import gymnasium
    import numpy as np

    if package == "sb3":
        import sb3_contrib
        import stable_baselines3

        library = sb3_contrib if case.algo in ("tqc", "crossq") else stable_baselines3
        torso = torch.nn.Tanh if case.algo == "ppo" else torch.nn.ReLU
    else:
        import flax.linen
        import sbx as library

        torso = flax.linen.tanh if case.algo == "ppo" else flax.linen.relu

    class Nothing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
        action_space = (
            gymnasium.spaces.Discrete(4) if case.algo == "dqn" else gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        )
        if case.board:
            observation_space = gymnasium.spaces.Box(0, 1, (10, 10, 4), np.bool_)
            action_space = gymnasium.spaces.Discrete(3)

        def reset(self, **_):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), float(np.random.randn()), False, False, {}

    options = {"policy_kwargs": {"net_arch": list(case.hidden), "activation_fn": torso}, "batch_size": case.batch}
    options |= {"device": "cpu", "seed": 0}
    if case.board:
        from sb3_models import Small

        options["policy_kwargs"]["features_extractor_class"] = Small
    if case.algo == "droq":
        options["policy_kwargs"] |= {"dropout_rate": 0.01, "layer_norm": True}
    options |= dict(case.peer)
    kind = getattr(library, {"crossq": "CrossQ", "droq": "SAC"}.get(case.algo, case.algo.upper()))
    if case.algo == "ppo":
        model = kind("MlpPolicy", Nothing(), n_steps=2048, n_epochs=10, **options)
        model.learn(2048)  # fills the rollout buffer
    else:
        model = kind("MlpPolicy", Nothing(), buffer_size=ROWS, learning_starts=200, **options)
        model.learn(100)  # makes the logger
        fill(model.replay_buffer, case)

    def train() -> int:
        if case.algo == "ppo":
            model.train()
            return 10 * 2048 // case.batch
        model.train(gradient_steps=PER_CALL, batch_size=case.batch)
        return PER_CALL

    return train


def fill(buffer: Any, case: Case) -> None:
    """Fill every row of a peer's replay buffer."""
    import numpy as np

    rng = np.random.default_rng(0)
    for array in (buffer.observations, buffer.next_observations, buffer.rewards):
        array[:] = rng.standard_normal(array.shape).clip(-1, 1)  # of a board: nearly all True
    shape = buffer.actions.shape
    buffer.actions[:] = (
        rng.integers(3 if case.board else 4, size=shape) if case.algo == "dqn" else rng.uniform(-1, 1, shape)
    )
    buffer.full = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="virtual environment of the peers; none: ours alone")
    parser.add_argument("--before", type=Path, help="a checkout of another commit of ours, to compare with")
    parser.add_argument("--case", choices=CASES, action="append", help="several may be given; all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="config of ours")
    parser.add_argument("--set-before", action="append", metavar="KEY=VALUE", help="config of the other commit; --set")
    parser.add_argument("--only", choices=SIDES, action="append", help="sides to run, beside ours")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()

    if args.side:
        case = CASES[args.case[0]]
        is_ours = args.side == "ours"
        train = ours(case, args.threads, args.set) if is_ours else peer(args.side, case, args.threads)
        train()
        serve(timed(train, args.seconds))
        return
    sides = ["ours", *(args.only or SIDES[1:])] if args.peers else ["ours"]
    for name in args.case or CASES:
        bare = [Path(__file__), "--case", name, "--threads", str(args.threads), "--seconds", str(args.seconds)]
        own = bare + [part for value in args.set for part in ("--set", value)]
        taken = [side for side in sides if side in ("ours", *CASES[name].sides)]
        pythons = {side: sys.executable if side == "ours" else peer_python(args.peers) for side in taken}
        commands = {side: [python, *own, "--side", side] for side, python in pythons.items()}
        if args.before:
            for side, tree in (("ours", ROOT), ("before", args.before.resolve())):
                words = args.set if side == "ours" or args.set_before is None else args.set_before
                given = [part for value in words for part in ("--set", value)]
                script = [Path(__file__), *bare[1:], *given, "--side", "ours"]
                commands[side] = ["env", f"PYTHONPATH={tree}", sys.executable, *script]
        print(f"\n{CASES[name].name}, {args.threads} thread{'s' if args.threads > 1 else ''}\n", flush=True)
        print(table(alternate(commands, args.rounds, args.threads)), flush=True)


if __name__ == "__main__":
    main()

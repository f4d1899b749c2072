"""Time to a mean return of 200 on LunarLanderContinuous, per seed, against stable-baselines3.

    python scripts/bench/time_to.py --peers PEERS_VENV [--runs async single-1 sb3-zoo sb3-ours] [--seeds 0 1 2 3 4]

Every run is a separate process. Seconds count from the start of the process. For drl-cli they are `time_to_return_s`
of summary.json and include evaluations (20 episodes, and 100 to confirm). For stable-baselines3 evaluations are
subtracted, and 20 episodes suffice. A run that has not reached 200 after `--cap` seconds is stopped and counts as
longer.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from alternate import peer_python

TUNED = Path(__file__).parents[2] / "conf" / "tuned" / "sac.yaml"
RUNS = {
    "async": ["mode=async"],
    "sync": ["mode=sync"],
    "single": ["mode=single"],
    "single-1": ["mode=single", "worker.envs=1", "orchestrator.sample_insert_ratio=1"],
    "sb3-zoo": None,
    "sb3-ours": None,
}
"""single-1: one environment, one update per step. sb3-zoo: settings of its zoo. sb3-ours: settings of conf/tuned."""
ENVS = 8  # of sb3-ours
EVAL_PERIOD, EVAL_EPISODES = 8000, 20

Result = dict[str, float | None]  # "seconds" (None: not reached), "env_steps", "updates"


def ours(overrides: list[str], seed: int, cap_s: float) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        values = ["env=LunarLanderContinuous", "algo=sac", "stop.return=200", f"stop.wall_s={cap_s}"]
        values += [f"seed={seed}", "total_env_steps=10_000_000", f"output_dir={folder}", *overrides]
        command = [sys.executable, "-m", "drl_cli.cli.train", *values]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}")
        summary = json.loads(next(Path(folder).glob("*/*/*/summary.json")).read_text())
    steps = summary["time_to_return_env_steps"] or summary["env_steps"]
    return {"seconds": summary["time_to_return_s"], "env_steps": steps, "updates": summary["opt_steps"]}


def sb3(side: str, settings: dict, seed: int, cap_s: float) -> Result:
    """Run stable-baselines3 in the peers' Python."""
    started, evaluating = time.perf_counter(), 0.0
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    trial = _lunar_landers(1, seed=1000 + seed)

    class Evaluate(BaseCallback):
        result: Result | None = None
        due = EVAL_PERIOD

        def _on_step(self) -> bool:
            nonlocal evaluating
            began = time.perf_counter()
            seconds = began - started - evaluating
            if self.num_timesteps >= self.due:
                self.due += EVAL_PERIOD
                mean, _ = evaluate_policy(self.model, trial, EVAL_EPISODES, deterministic=True, warn=False)
                evaluating += time.perf_counter() - began
                if mean >= 200:
                    self.note(seconds)
            return self.result is None and seconds < cap_s

        def note(self, seconds: float | None) -> None:
            self.result = {"seconds": seconds, "env_steps": self.num_timesteps, "updates": self.model._n_updates}

    evaluate = Evaluate()
    model, total = _of_the_zoo(seed) if side == "sb3-zoo" else _like_ours(settings, seed)
    model.learn(total, evaluate)
    if evaluate.result is None:
        evaluate.note(None)
    return evaluate.result


def _lunar_landers(num: int, seed: int, **options: Any) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env("LunarLander-v3", num, seed=seed, env_kwargs={"continuous": True}, **options)


def _of_the_zoo(seed: int) -> tuple[Any, int]:
    """Return a SAC with the zoo's settings, and its number of steps."""
    from stable_baselines3 import SAC

    options = {"learning_rate": lambda left: 7.3e-4 * left, "tau": 0.01, "learning_starts": 10_000}
    options |= {"policy_kwargs": {"net_arch": [400, 300]}, "device": "cpu", "seed": seed}
    return SAC("MlpPolicy", _lunar_landers(1, seed), **options), 500_000


def _like_ours(settings: dict, seed: int) -> tuple[Any, int]:
    """Return a SAC with the settings of conf/tuned that it supports, and a large number of steps."""
    import gymnasium
    import torch
    from stable_baselines3 import SAC

    algo, pace, scale = settings["algo"], settings["orchestrator"], settings["env"]["reward_scale"]

    class Temperature(torch.optim.Adam):
        """Adam with the learning rate of the temperature; stable-baselines3 has one rate for all optimizers."""

        def step(self, closure=None):
            (group,) = self.param_groups
            lr, group["lr"] = group["lr"], algo["alpha_lr"]
            super().step(closure)
            group["lr"] = lr

    options = {"learning_rate": algo["lr"], "gamma": algo["gamma"], "tau": algo["tau"], "n_steps": algo["n_step"]}
    options |= {"target_entropy": algo["target_entropy"], "ent_coef": f"auto_{algo['initial_alpha']}"}
    options |= {"batch_size": settings["trainer"]["batch_size"]}
    options |= {"buffer_size": settings["replay"]["capacity"], "learning_starts": pace["min_inserts"]}
    options |= {"train_freq": 16, "gradient_steps": round(16 * ENVS * pace["sample_insert_ratio"])}
    options |= {"policy_kwargs": {"net_arch": settings["network"]["hidden"]}, "device": "cpu", "seed": seed}
    envs = _lunar_landers(
        ENVS, seed, wrapper_class=lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: scale * reward)
    )
    model = SAC("MlpPolicy", envs, **options)
    model.ent_coef_optimizer = Temperature([model.log_ent_coef])
    return model, 10_000_000


def play(name: str, seed: int, cap_s: float, peers: Path | None) -> Result:
    if RUNS[name] is not None:
        return ours(RUNS[name], seed, cap_s)
    from omegaconf import OmegaConf

    settings = json.dumps(OmegaConf.to_container(OmegaConf.load(TUNED).LunarLanderContinuous))
    command = [peer_python(peers), __file__, "--side", name, "--seeds", seed, "--cap", cap_s, "--settings", settings]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(results: dict[str, dict[int, Result]], cap_s: float) -> str:
    """Return a markdown table of seconds by seed. A median among stopped runs is only a lower bound."""
    seeds = sorted({seed for runs in results.values() for seed in runs})
    lines = [f"| run | {' | '.join(f'seed {seed}' for seed in seeds)} | median | / async | env steps | updates |"]
    lines.append("| --- |" + " --- |" * (len(seeds) + 4))
    base = _median(results["async"], "seconds", cap_s) if "async" in results else None
    for name, runs in results.items():
        middle = _median(runs, "seconds", cap_s)
        at_least = "> " if middle >= cap_s else ""
        seconds = " | ".join(_seconds(runs[seed]["seconds"], cap_s) if seed in runs else "" for seed in seeds)
        ratio = f"{at_least}{middle / base:.1f}" if base else ""
        others = " | ".join(f"{at_least}{_median(runs, key, 0):,.0f}" for key in ("env_steps", "updates"))
        lines.append(f"| {name} | {seconds} | {at_least}{middle:.0f} | {ratio} | {others} |")
    return "\n".join(lines)


def _median(runs: dict[int, Result], key: str, otherwise: float) -> float:
    return median(otherwise if run[key] is None else run[key] for run in runs.values())


def _seconds(value: float | None, cap_s: float) -> str:
    return f"> {cap_s:.0f}" if value is None else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["async", "single-1", "sb3-zoo", "sb3-ours"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--cap", type=float, default=1200.0, help="seconds after which a run is given up")
    parser.add_argument("--side", choices=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(sb3(args.side, args.settings, args.seeds[0], args.cap)))
        return
    results: dict[str, dict[int, Result]] = {name: {} for name in args.runs}
    for seed in args.seeds:
        for name in args.runs:
            result = results[name][seed] = play(name, seed, args.cap, args.peers)
            print(f"seed {seed}, {name}: {result}", file=sys.stderr, flush=True)
    print(table(results, args.cap))


if __name__ == "__main__":
    main()

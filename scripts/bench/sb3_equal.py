"""Check that DQN and QR-DQN learn the same as stable-baselines3 and sb3-contrib from the same batches.

    PEERS/bin/python scripts/bench/sb3_equal.py RUN/config.yaml [--updates 2000] [--seed 0] [--single]

RUN is any run on MinAtar of DQN with `algo.loss=huber`, or of QR-DQN. Both programs start with the same weights and
learn from the same batches of a random player in float64. In float32 (`--single`) rounding errors grow to 0.01 and
more on some seeds. At each copy of the target network, a line of JSON shows the largest difference (`apart`) of the
values of 512 states, and the largest value.
"""

import argparse
import json
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from minatar.gym import register_envs
from sb3_models import envs, model
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from drl_cli.algos.base import Counts
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim import params
from drl_cli.types import ActionSpec, Column, EnvSpec

Rows = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--single", action="store_true", help="in single precision, as runs are")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.single:
        in_double()
    register_envs()
    settings = yaml.safe_load(args.config.read_text())
    period, size = settings["algo"]["target_period"], settings["trainer"]["batch_size"]
    rows = random_play(settings, args.seed)
    theirs, ours = model(settings, args.seed), learner(settings, rows, args.seed)
    theirs.set_logger(Logger(None, []))
    theirs.replay_buffer = Given(rows)
    online, target = networks(theirs)
    online.load_state_dict(weights(ours, theirs))
    target.load_state_dict(online.state_dict())
    rng, obs = np.random.default_rng(args.seed), torch.from_numpy(rows["obs"][:512]).float()
    for start in range(0, args.updates, period):
        drawn = rng.integers(0, len(rows["action"]), (min(period, args.updates - start), size))
        theirs.replay_buffer.drawn = iter(drawn)
        theirs.train(len(drawn), size)
        for i, slots in enumerate(drawn):
            batch = {name: torch.from_numpy(column[slots]) for name, column in rows.items()}
            ours.learn(batch, Counts(opt_steps=start + i, env_steps=0))
        with torch.no_grad():
            value = online(obs)
            target.load_state_dict(weights(ours, theirs))
            apart = (target(obs) - value).abs().max().item()
        target.load_state_dict(online.state_dict())  # theirs is copied here; ours has just been, by its own count
        said = {"updates": start + len(drawn), "apart": apart, "largest_value": value.abs().max().item()}
        print(json.dumps(said), flush=True)


def in_double() -> None:
    """Make both programs use float64, also if they convert with `float()`."""
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    params.check_module = lambda *_: None  # that parameters are float32


def random_play(settings: dict[str, Any], seed: int, steps: int = 20_000) -> Rows:
    """Return transitions of a random player as columns of a drl-cli batch."""
    env, rng = envs(settings, 1, seed), np.random.default_rng(seed)
    obs, seen = env.reset(), []
    for action in rng.integers(0, env.action_space.n, steps):
        after, reward, done, infos = env.step([action])
        ended = done[0] and not infos[0].get("TimeLimit.truncated", False)
        last = infos[0]["terminal_observation"] if done[0] else after[0]
        seen.append((obs[0], action, reward[0], last, 0.0 if ended else settings["algo"]["gamma"]))
        obs = after
    columns = [np.stack(column) for column in zip(*seen, strict=True)]
    real = torch.empty(0).numpy().dtype
    columns[2], columns[4] = columns[2].astype(real), columns[4].astype(real)
    return dict(zip(("obs", "action", "reward", "next_obs", "discount"), columns, strict=True))


def learner(settings: dict[str, Any], rows: Rows, seed: int) -> Any:
    """Return the drl-cli algorithm."""
    algo, network = settings["algo"], settings["network"]
    module = import_module(f"drl_cli.algos.{algo['name']}")
    actions = int(rows["action"].max()) + 1
    spec = EnvSpec("", Column(rows["obs"].shape[1:], "bool"), ActionSpec("discrete", actions, f"Discrete({actions})"))
    config = module.Config(**{field.name: algo[field.name] for field in fields(module.Config)})
    layers = NetworkConfig(tuple(network["hidden"]), network["activation"], network["init"])
    return module.Algorithm(config, layers, spec, seed, Context(torch.device("cpu")))


class Given:
    """A replay buffer of stable-baselines3 that returns the rows `drawn`."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.drawn = rows, iter(())

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        slots = next(self.drawn)
        assert len(slots) == batch_size
        part = {name: torch.from_numpy(column[slots]) for name, column in self.rows.items()}
        action, reward, discount = (part[name].unsqueeze(1) for name in ("action", "reward", "discount"))
        ended = (discount == 0).float()
        return ReplayBufferSamples(part["obs"].float(), action, part["next_obs"].float(), ended, reward, None)


def networks(theirs: Any) -> list[torch.nn.Module]:
    """Return stable-baselines3's online and target networks."""
    name = "q_net" if hasattr(theirs.policy, "q_net") else "quantile_net"
    return [getattr(theirs.policy, name), getattr(theirs.policy, f"{name}_target")]


def weights(ours: Any, theirs: Any) -> dict[str, torch.Tensor]:
    """Return drl-cli's online network as stable-baselines3's state dict: torso unchanged, head layers transposed."""
    flat = torch.cat([ours.params[name].flat for name in ("torso", "online")])
    state, start = {}, 0
    for name, tensor in networks(theirs)[0].state_dict().items():
        part = flat[start : start + tensor.numel()]
        start += tensor.numel()
        state[name] = part.view(tensor.shape[::-1]).t() if tensor.ndim == 2 else part.view(tensor.shape)
    *_, weight, bias = state  # our outputs are [actions, quantiles], theirs [quantiles, actions]
    order = torch.arange(len(state[bias])).view(theirs.action_space.n, -1).t().flatten()
    return state | {weight: state[weight][order], bias: state[bias][order]}


if __name__ == "__main__":
    main()

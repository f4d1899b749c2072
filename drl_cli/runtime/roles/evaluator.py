"""Evaluator: plays one fixed version greedily on environments of its own, all episodes at once."""

from dataclasses import dataclass

import numpy as np

from drl_cli.envs.make import Env
from drl_cli.runtime.config import Config
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import Array, EnvSpec, Last, leaves


@dataclass(frozen=True)
class Score:
    """Undiscounted, unscaled returns and lengths `[episodes]`; `cut` episodes reached manage.max_episode_steps."""

    returns: Array
    lengths: Array
    cut: int

    def __add__(self, other: "Score") -> "Score":
        returns, lengths = (self.returns, other.returns), (self.lengths, other.lengths)
        return Score(np.concatenate(returns), np.concatenate(lengths), self.cut + other.cut)

    def standard_error(self) -> float:
        """Of the mean return."""
        return float(self.returns.std() / np.sqrt(len(self.returns)))

    def statistics(self) -> dict[str, float]:
        """mean, std, min, max, median, episodes, length_mean."""
        return {
            "mean": float(self.returns.mean()),
            "std": float(self.returns.std()),
            "min": float(self.returns.min()),
            "max": float(self.returns.max()),
            "median": float(np.median(self.returns)),
            "episodes": len(self.returns),
            "length_mean": float(self.lengths.mean()),
        }


class Evaluator:
    """Episode i always starts from `seeds[i]`, so equal weights give equal scores."""

    def __init__(self, config: Config, spec: EnvSpec, seeds: list[int]) -> None:
        self.spec, self.seeds, self.max_steps = spec, seeds, config.manage.max_episode_steps
        self.policy = make_policy(config, spec, 0)
        self.envs = [Env(config.env.for_evaluation(), spec) for _ in seeds]

    def evaluate(self, params: Array) -> Score:
        """One whole episode per seed; each counts once, however long the others take."""
        self.policy.load(params)
        first = [env.reset(seed) for env, seed in zip(self.envs, self.seeds, strict=True)]
        columns = leaves(self.spec.obs)
        parts = {p: np.stack([each[p] for each in first]).astype(column.dtype) for p, column in columns.items()}
        obs = parts.get("", parts)
        returns, lengths = np.zeros(len(self.envs)), np.zeros(len(self.envs), np.int64)
        running = np.arange(len(self.envs))
        last, rewards = Last.none(self.spec, len(self.envs)), np.zeros(len(self.envs), np.float32)
        for _ in range(self.max_steps):
            chosen = self.policy.greedy(obs, last)
            actions = self.envs[0].to_env(chosen)
            still = np.ones(len(running), np.bool_)
            for k, i in enumerate(running):
                raw, reward, terminated, truncated, info = self.envs[i].raw.step(actions[i])
                for path, part in self.envs[i].read(raw, info).items():
                    parts[path][i] = part
                rewards[i] = reward
                returns[i] += reward
                lengths[i] += 1
                still[k] = not (terminated or truncated)
            running = running[still]
            last = Last.of(chosen, rewards, ())
            if len(running) == 0:
                break
        return Score(returns, lengths, len(running))

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

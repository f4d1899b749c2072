"""Play episodes and keep their steps in the units of the environment, for datasets."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from drl_cli.algos.policy import random_actions
from drl_cli.data.episode import Episode, Written
from drl_cli.data.write import Header
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.faults import as_fault, reset_result
from drl_cli.envs.make import Env
from drl_cli.envs.recorded import StepMap
from drl_cli.envs.trees import parts_of
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import MASK, Array, Columns, EnvSpec, Obs, PreviousStep, leaves
from drl_cli.utils.seeding import generator, integers

Act = Callable[[Obs, PreviousStep], Array]
"""Returns the policy's actions `[E, ...]` for observations `[E, ...]` and the previous steps."""
MAX_TOGETHER = 16
ROUND_BYTES = 1 << 30
"""Episodes that are played at the same time may need this much memory."""


def random_policy(spec: EnvSpec, seed: int, done: int = 0) -> Act:
    """Return a policy of uniformly random actions, with other random numbers after `done` episodes."""
    rng = generator(seed, "record", incarnation=1 + done)
    return lambda obs, _: random_actions(spec.action, obs, rng)


def run_policy(trained: TrainedPolicy, kind: str, seed: int, done: int = 0) -> Act:
    """Return the greedy policy of a run, or, if `kind` is stochastic, the policy that explores as in training.

    After `done` episodes, the exploration has other random numbers.
    """
    if kind == "greedy":
        return trained.policy.greedy
    if done:
        (seed,) = integers(seed, "record", 1, incarnation=1 + done)
    policy = make_policy(trained.config, trained.spec, seed)
    policy.load(trained.params)
    policy.explore(trained.manifest["exploration"])
    return lambda obs, last: policy.act(obs, last)["action"]


def header_of(config: EnvConfig, spec: EnvSpec) -> tuple[Header, StepMap]:
    """Return the header of recordings in an environment, and the map of its spaces."""
    raw = Env(config, spec).raw
    raw.close()
    spaces = raw.observation_space, raw.action_space
    has_mask = MASK in leaves(spec.obs) and MASK not in (getattr(spaces[0], "spaces", None) or {})
    return Header(config.id, spaces, raw.spec, has_mask), StepMap(*spaces, spec)


class Recorder:
    """Plays episodes of an environment with a policy.

    `policy` returns the policy, given the number of episodes that were recorded before. An episode ends after
    `max_steps`; then it is truncated. Raise EnvFault if the environment raises.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec, policy: Callable[[int], Act], max_steps: int) -> None:
        self.config, self.spec, self.policy, self.max_steps = config, spec, policy, max_steps
        self.header, _ = header_of(config, spec)

    def episodes(
        self, seed: int, index: int, episodes: int | None, steps: int | None, done: Written | None = None
    ) -> Iterator[Episode]:
        """Yield this number of episodes, or episodes with this number of steps in all: the last one may be cut.

        The seeds of the episodes follow from `seed` and `index`. The episodes of `done` count, but are not yielded.
        """
        row = sum(
            int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize for column in leaves(self.spec.obs).values()
        )
        together = max(1, min(MAX_TOGETHER, ROUND_BYTES // (row * self.max_steps)))
        done = done or Written()
        self.act, number, recorded = self.policy(done.episodes), done.episodes, done.steps
        for first in count(number // together * together, together):  # the same rounds as without an interruption
            size = together if episodes is None else min(together, episodes - first)
            if size <= number - first or (steps is not None and recorded >= steps):
                return
            seeds = integers(seed, "record", first + size, index)[first:]  # the first ones do not depend on the rounds
            for episode in islice(self.play(seeds), number - first, None):
                if steps is not None and recorded + len(episode.reward) >= steps:
                    yield cut(episode, steps - recorded)
                    return
                recorded += len(episode.reward)
                number += 1
                yield episode

    def play(self, seeds: Sequence[int]) -> Iterator[Episode]:
        """Play one episode per seed, all at the same time. Yield an episode once it and those before it have ended."""
        envs = [Env(self.config, self.spec) for _ in seeds]
        try:
            yield from self._play(envs, seeds)
        finally:
            for env in envs:
                env.close()

    def _play(self, envs: Sequence[Env], seeds: Sequence[int]) -> Iterator[Episode]:
        columns = leaves(self.spec.obs)
        parts = {path: np.zeros((len(envs), *column.shape), column.dtype) for path, column in columns.items()}
        takes = [_Take(seed) for seed in seeds]
        ended = 0  # episodes that were yielded
        for i, (env, seed) in enumerate(zip(envs, seeds, strict=True)):
            try:
                raw, info = reset_result(env.raw.reset(seed=seed))
            except Exception as error:
                raise as_fault("reset", error) from error
            self._observe(env, i, raw, info, parts, takes[i])
        last, rewards, running = (
            PreviousStep.none(self.spec, len(envs)),
            np.zeros(len(envs), np.float32),
            [*range(len(envs))],
        )
        for t in range(self.max_steps):
            chosen = self.act(parts.get("", parts), last)
            actions = envs[0].to_env(chosen)
            for i in list(running):
                try:
                    raw, reward, terminated, truncated, info = envs[i].raw.step(actions[i])
                    rewards[i] = reward = float(reward)
                except Exception as error:
                    raise as_fault("step", error) from error
                self._observe(envs[i], i, raw, info, parts, takes[i])
                is_over = bool(truncated) or (t == self.max_steps - 1 and not terminated)
                takes[i].step(actions[i], reward, bool(terminated), is_over)
                if terminated or is_over:
                    running.remove(i)
            while ended < (running[0] if running else len(takes)):
                yield takes[ended].episode()
                takes[ended] = _Take(0)  # frees the memory
                ended += 1
            if not running:
                return
            last = PreviousStep.of(chosen, rewards, ())

    def _observe(self, env: Env, i: int, raw: Any, info: Any, parts: Columns, take: "_Take") -> None:
        """Keep an observation in the environment's units, and write it as the policy's i-th observation."""
        read = env.read(raw, info)
        for path, part in read.items():
            parts[path][i] = part
        own = {path: np.array(part) for path, part in parts_of(raw).items()}  # environments may reuse their arrays
        if self.header.has_mask:
            own = {path or "obs": part for path, part in own.items()} | {MASK: np.array(read[MASK])}
        take.obs.append(own)


class _Take:
    """An episode that is being recorded."""

    def __init__(self, seed: int) -> None:
        self.seed, self.obs, self.actions = seed, list[Columns](), list[Columns]()
        self.steps: list[tuple[float, bool, bool]] = []

    def step(self, action: Any, *step: Any) -> None:
        self.actions.append({path: np.array(part) for path, part in parts_of(action).items()})
        self.steps.append(step)

    def episode(self) -> Episode:
        reward, terminated, truncated = (np.array(column) for column in zip(*self.steps, strict=True))
        obs, action = (
            {path: np.stack([each[path] for each in rows]) for path in rows[0]} for rows in (self.obs, self.actions)
        )
        return Episode(obs, action, reward, terminated, truncated, self.seed)


def cut(episode: Episode, steps: int) -> Episode:
    """Return the first steps of an episode. If the episode goes on, the last one is truncated."""
    if steps == len(episode.reward):
        return episode
    obs, action = (
        {path: part[:end] for path, part in parts.items()}
        for parts, end in ((episode.obs, steps + 1), (episode.action, steps))
    )
    terminated, truncated = episode.terminated[:steps], episode.truncated[:steps].copy()
    truncated[-1] |= not terminated[-1]
    return Episode(obs, action, episode.reward[:steps], terminated, truncated, episode.seed, is_whole=False)

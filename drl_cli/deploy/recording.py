"""Episodes for datasets, in the units of the environment: of a policy, or of a saved replay; and reference returns."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.algos.torch_policy import random_actions
from drl_cli.config.config import Config
from drl_cli.config.rows import stackings_of
from drl_cli.data.dataset import Dataset, reference_problem
from drl_cli.data.draft import Episode, Written
from drl_cli.data.write import Header
from drl_cli.deploy.play import Game
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.trained import acting
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import Env
from drl_cli.envs.recorded import StepMap
from drl_cli.envs.trees import parts_of
from drl_cli.errors import UsageError
from drl_cli.preflight.environment import environment_spec
from drl_cli.run_folder.checkpoint import read_manifest
from drl_cli.run_folder.replay_files import has_lost_rows, read_states, saved_rows
from drl_cli.runs.auto import CHANGES, results
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import MASK, Array, Columns, EnvSpec, Obs, PreviousStep, leaves
from drl_cli.utils.seeding import generator, integers
from drl_cli.utils.shown import score_text

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
        columns = leaves(spec.obs).values()
        row = sum(int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize for column in columns)
        self.together = max(1, min(MAX_TOGETHER, ROUND_BYTES // (row * max_steps)))  # episodes at the same time

    def episodes(
        self, seed: int, index: int, episodes: int | None, steps: int | None, done: Written | None = None
    ) -> Iterator[Episode]:
        """Yield this number of episodes, or episodes with this number of steps in all: the last one may be cut.

        The seeds of the episodes follow from `seed` and `index`. The episodes of `done` count, but are not yielded.
        """
        together, done = self.together, done or Written()
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
        games = [Game(self.config, self.spec, seed) for seed in seeds]
        try:
            yield from self._play(games, seeds)
        finally:
            for game in games:
                game.raw.close()

    def _play(self, games: Sequence[Game], seeds: Sequence[int]) -> Iterator[Episode]:
        columns = leaves(self.spec.obs)
        parts = {path: np.zeros((len(games), *column.shape), column.dtype) for path, column in columns.items()}
        takes = [_Take(seed) for seed in seeds]
        for i, game in enumerate(games):
            self._observe(game, i, parts, takes[i])
        last, rewards = PreviousStep.none(self.spec, len(games)), np.zeros(len(games), np.float32)
        running, ended = [*range(len(games))], 0  # episodes that run, and the number of those that were yielded
        for t in range(self.max_steps):
            chosen = self.act(parts.get("", parts), last)
            actions = games[0].env.to_env(chosen)
            for i in list(running):
                game = games[i]
                game.step(actions[i])
                rewards[i] = game.reward
                self._observe(game, i, parts, takes[i])
                is_over = game.truncated or (t == self.max_steps - 1 and not game.terminated)
                takes[i].step(actions[i], game.reward, game.terminated, is_over)
                if game.terminated or is_over:
                    running.remove(i)
            while ended < (running[0] if running else len(takes)):
                yield takes[ended].episode()
                takes[ended] = _Take(0)  # frees the memory
                ended += 1
            if not running:
                return
            last = PreviousStep.of(chosen, rewards, ())

    def _observe(self, game: Game, i: int, parts: Columns, take: "_Take") -> None:
        """Keep an observation in the environment's units, and write it as the policy's i-th observation."""
        read = game.env.read(game.obs, game.info)
        for path, part in read.items():
            parts[path][i] = part
        own = {path: np.array(part) for path, part in parts_of(game.obs).items()}  # environments may reuse their arrays
        if self.header.has_mask:
            own = {path or "obs": part for path, part in own.items()} | {MASK: np.array(read[MASK])}
        take.obs.append(own)


class _Take:
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


def check_replay(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if the run's replay does not hold single steps in order."""
    reason = config.replay.lacks_steps(config.algo.n_step)
    if reason is None and stackings_of(config, spec):
        reason = "images are stored as frames"
    elif reason is None and config.env.reward_clip is not None:
        reason = f"env.reward_clip={config.env.reward_clip:g} has changed the rewards"
    if reason is not None:
        raise UsageError(f"replay=true: {reason}. To record episodes of the policy: drl-record run=RUN episodes=100")


def replay_episodes(config: Config, steps: StepMap, checkpoint: Path) -> Iterator[Episode]:
    """Yield the episodes of each environment in the replay of a checkpoint, in the units of the environment.

    An episode is truncated if its end or its next step is not in the replay. It is not whole if its end or its
    beginning is not in the replay. Raise CheckpointError if the replay was not saved or is damaged.
    """
    manifest = read_manifest(checkpoint)
    pieces = [*saved_rows(checkpoint, manifest)]
    rows = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    rows = {name: column[np.argsort(rows["source"], kind="stable")] for name, column in rows.items()}
    ends = episode_ends(rows)
    whole = whole_episodes(rows, ends, has_lost_rows(read_states(checkpoint, manifest)))
    for (first, last), is_whole in zip(pairwise([0, *ends]), whole, strict=True):
        yield _episode(config, steps, {name: column[first:last] for name, column in rows.items()}, is_whole)


def whole_episodes(rows: Columns, ends: list[int], has_lost_rows: bool) -> list[bool]:
    """Return for each episode that ends before a row of `ends` whether `rows` has its beginning and its end.

    With `has_lost_rows`, the first row of an environment may be in the middle of an episode.
    """
    is_over, source = rows["terminated"] | rows["truncated"], rows["source"]
    follows = np.append(False, source[1:] == source[:-1])
    begins = np.where(follows, np.append(False, is_over[:-1]), not has_lost_rows)
    return [bool(begins[first] and is_over[last - 1]) for first, last in pairwise([0, *ends])]


def episode_ends(rows: Columns) -> list[int]:
    """Return the indices after the last steps of episodes, for rows `[rows, ...]` of one environment after another."""
    goes_on = ~(rows["terminated"] | rows["truncated"])[:-1] & (rows["source"][1:] == rows["source"][:-1])
    for name in rows:
        kind, dot, path = name.partition(".")
        if kind == "next_obs":
            same = rows[name][:-1] == rows[f"obs{dot}{path}"][1:]
            goes_on &= same.reshape(len(same), -1).all(1)
    return [*(np.flatnonzero(~goes_on) + 1).tolist(), len(rows["source"])]


def _episode(config: Config, steps: StepMap, rows: Columns, is_whole: bool) -> Episode:
    obs = {path: _with_last(rows, f".{path}" if path else "") for path in leaves(steps.spec.obs)}
    truncated = rows["truncated"].copy()
    truncated[-1] |= not rows["terminated"][-1]
    reward = rows["reward"] / np.float64(config.env.reward_scale)
    actions = steps.raw_actions(rows["action"])
    return Episode(steps.raw_obs(obs), actions, reward, rows["terminated"], truncated, is_whole=is_whole)


def _with_last(rows: Columns, path: str) -> Array:
    return np.concatenate([rows[f"obs{path}"], rows[f"next_obs{path}"][-1:]])


EPISODES = 20


def with_measured_reference(config: Config, dataset: Dataset | None, words: Sequence[str]) -> tuple[Config, list[str]]:
    """Replace `data.reference=auto` by two returns. Return the config, and lines that say where they come from.

    The first is the mean of EPISODES episodes of random actions. The second is the best recorded result of the
    environment, or, if there is none or `words` change the task, the largest return in the dataset. Raise UsageError
    if there is neither, or if the second is not larger than the first.
    """
    if config.data.reference != "auto":
        return config, []
    plain = dataclasses.replace(config, env=dataclasses.replace(config.env, frame_storage="none"))
    spec, env = environment_spec(plain, trains=False), config.env.for_evaluation(config.manage.env_kwargs)
    recorder = Recorder(env, spec, partial(random_policy, spec, config.seed), config.manage.max_episode_steps)
    with acting(config, Path(config.env.id)):
        played = recorder.episodes(config.seed, 0, EPISODES, None)
        random = float(np.mean([episode.reward.sum() for episode in played]))
    is_changed = any(CHANGES.match(word) for word in words)
    found = [] if is_changed else [(one["return"], one["algo"]) for one in results() if one["env"] == config.env.name]
    if found:
        expert, algo = max(found)
        source = f"the recorded result of {algo}"
    elif dataset is not None and len(dataset.facts.whole_returns):
        expert, source = float(dataset.facts.whole_returns.max()), "the best episode of the dataset"
    else:
        raise UsageError(f"data.reference=auto: there is no return of an expert; say [{score_text(random)},EXPERT]")
    if line := reference_problem((random, expert)):
        raise UsageError(f"data.reference=auto: from {source}: data.{line}")
    interval = f"[{score_text(random)},{score_text(expert)}]"
    text = f"data.reference={interval}: {EPISODES} episodes of random actions, and {source}"
    data = dataclasses.replace(config.data, reference=(random, expert))
    return dataclasses.replace(config, data=data), [text]

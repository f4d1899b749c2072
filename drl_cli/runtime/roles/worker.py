"""Worker: steps E environments with a copy of the policy and builds rows for replay."""

import logging
import time
from collections.abc import Sequence

import numpy as np

from drl_cli import types
from drl_cli.algos.base import Policy
from drl_cli.config.config import Config
from drl_cli.config.exploration import describe, worker_values
from drl_cli.config.rows import data_columns, most_open_steps, stackings_of
from drl_cli.convert.program import Program
from drl_cli.envs.config import EnvFault
from drl_cli.envs.faults import endless, hang_limit
from drl_cli.envs.stepping.ale_batch import AleBatch
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.envs.stepping.envpool_batch import EnvPoolBatch
from drl_cli.errors import EnvironmentFailed
from drl_cli.replay.builders import Builder, EpisodeBuilder
from drl_cli.replay.frames import FrameBuilder, make_codec
from drl_cli.runtime.messages import Block, InsertTransition, Told
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import Array, Columns, EnvSpec, LoadParams, PreviousStep, State
from drl_cli.utils.machine import num_cores
from drl_cli.utils.outside import raised
from drl_cli.utils.seeding import globals_state, integers, seed_globals, set_globals_state

log = logging.getLogger(__name__)

ENDLESS_STEPS = 1000
"""A worker warns if its environments have taken this number of steps each, and no episode has ended."""


class Worker:
    """Answers each `collect` call with one block of rows. A restarted worker has new seeds."""

    def __init__(
        self, config: Config, spec: EnvSpec, index: int, incarnation: int, program: Program | None = None
    ) -> None:
        self.config, self.index, self.incarnation = config, index, incarnation
        self.num_steps = config.rows_per_collect // config.worker.envs
        seeds = integers(config.seed, "worker", config.worker.envs, index, incarnation)
        policy_seed, globals_seed = integers(config.seed, "policy", 2, index, incarnation)
        seed_globals(globals_seed)
        self.policy = make_policy(config, spec, policy_seed, program)
        self.builder = make_builder(config, spec, self.policy, index, incarnation)
        try:
            self.envs = make_envs(config, spec, seeds)
        except EnvFault as error:
            raise EnvironmentFailed(f"worker {index} {error}") from error
        except Exception as error:
            raise EnvironmentFailed(f"worker {index}: {config.env.id} {raised(error)}") from error
        self.last = PreviousStep.none(spec, config.worker.envs)
        self.source = types.sources(index, config.worker.envs)
        self.params_header: LoadParams | None = None
        self.params: Array | None = None
        self.blocks = self.env_steps = 0
        self.running_steps = 0  # of the running collect call
        self.env_s = self.policy_s = 0.0
        self.awaits_end = index == 0 and not spec.is_limited  # whether a warning is due if no episode ends
        if config.worker.exploration is not None:
            text = describe(config.worker.exploration, index, config.num_workers, config.worker.envs)
            log.info("worker %d explores by %s", index, text)

    def collect(self, params_header: LoadParams, params: Array | None = None) -> tuple[InsertTransition, Columns]:
        """Take `num_steps` steps in every environment. Return a header and the columns `[rows, ...]` of complete rows.

        `params` is None if the worker keeps its parameters. The exploration values of `params_header` are used in both
        cases. Before the worker has parameters, `params_header` must ask for random actions.
        """
        started = time.perf_counter()
        self.env_s = self.policy_s = 0.0
        if params is not None:
            self.policy.load(params)
            self.params_header, self.params = params_header, params
        assert self.params_header is not None or (params_header.version < 0 and params_header.random_actions)
        acting = self.params_header or params_header
        if params_header.version >= 0:
            worker, values, num = self.config.worker, params_header.exploration, self.config.num_workers
            if worker.exploration is not None:
                values = worker_values(worker.exploration, values, self.index, num, worker.envs)
            self.policy.explore(values)
        self.running_steps, open_rows = 0, self.builder.open_rows
        try:
            with hang_limit(self.config.worker.step_timeout_s, self.envs.calls):
                for _ in range(self.num_steps):
                    self.running_steps += self._step(params_header.random_actions)
        except EnvFault as error:
            raise EnvironmentFailed(f"worker {self.index} {error}") from error
        columns = self.builder.take()
        num_steps, self.running_steps = self.running_steps, 0
        first_env_step, self.env_steps = self.env_steps, self.env_steps + num_steps
        block = Block(
            worker=self.index,
            incarnation=self.incarnation,
            number=self.blocks,
            rows=open_rows + num_steps - self.builder.open_rows,
            first_env_step=first_env_step,
            last_env_step=self.env_steps,
            version=acting.version,
            opt_steps=acting.opt_steps,
        )
        self.blocks += 1
        seconds, (episodes, faults) = time.perf_counter() - started, self.envs.take_news()
        header = InsertTransition(
            (block,),
            episodes,
            seconds,
            faults=tuple(f"worker {self.index} {fault}" for fault in faults),
            notes=self._notes(bool(episodes)) if self.awaits_end else (),
            work_s=seconds,
            env_s=self.env_s,
            policy_s=self.policy_s,
        )
        return header, columns

    def _notes(self, has_ended: bool) -> tuple[str, ...]:
        """Return a warning if no episode has ended after ENDLESS_STEPS steps in every environment of worker 0."""
        self.awaits_end = not has_ended
        if has_ended or self.env_steps < ENDLESS_STEPS * self.config.worker.envs:
            return ()
        self.awaits_end = False
        return (f"worker 0: {endless(self.config.env.id, self.env_steps)}",)

    def told_steps(self) -> list[Told]:
        """Return the steps of this worker so far. Another thread may call this during `collect`."""
        return [Told(self.index, self.env_steps, self.running_steps)]

    def _step(self, random_actions: bool) -> int:
        """Step all environments. Return the number of environments that took the step."""
        obs = self.envs.obs  # a copy, because `step` changes it in place
        obs = obs.copy() if isinstance(obs, np.ndarray) else {path: part.copy() for path, part in obs.items()}
        started = time.perf_counter()
        columns = self.policy.random(obs, self.last) if random_actions else self.policy.act(obs, self.last)
        acted = time.perf_counter()
        step = self.envs.step(columns["action"])
        self.env_s += time.perf_counter() - acted
        self.policy_s += acted - started
        step_columns = step.columns()
        if (limit := self.config.env.reward_clip) is not None:
            step_columns = {**step_columns, "reward": step.reward.clip(-limit, limit)}
        self.builder.append({**types.flat_columns("obs", obs), **columns, **step_columns, "source": self.source})
        self.last = PreviousStep.of(columns["action"], step.reward, self.envs.begun)
        return int(np.count_nonzero(step.valid))

    def state(self) -> State:
        """Return the whole state between two collect calls, with the parameters."""
        state = {"counters": np.array([self.incarnation, self.blocks, self.env_steps])}
        if (header := self.params_header) is not None and self.params is not None:
            counts = np.array([header.version, header.opt_steps, header.env_steps])
            state |= {"held": counts, "params": self.params.copy()}
        state |= types.nested("policy", self.policy.state()) | types.nested("builder", self.builder.state())
        state |= types.nested("last", self.last._asdict())
        return state | types.nested("envs", self.envs.state()) | types.nested("globals", globals_state())

    def load_state(self, state: State) -> None:
        """Continue from `state()` bit for bit. If an environment can't be restored, replace it and log a warning.

        Raise ValueError if the state has another number of environments.
        """
        with hang_limit(self.config.worker.step_timeout_s, self.envs.calls):
            faults = self.envs.load_state(types.within(state, "envs"))
        for line in faults:
            log.warning("worker %d %s", self.index, line)
        self.incarnation, self.blocks, self.env_steps = state["counters"].tolist()
        self.awaits_end = False  # episodes may have ended before
        if "held" in state:
            self.params_header, self.params = LoadParams(*state["held"].tolist()), state["params"]
            self.policy.load(self.params)
        self.policy.load_state(types.within(state, "policy"))
        self.builder.load_state(types.within(state, "builder"))
        self.last = PreviousStep(**types.within(state, "last"))
        set_globals_state(types.within(state, "globals"))

    def close(self) -> None:
        self.envs.close()


def make_envs(config: Config, spec: EnvSpec, seeds: Sequence[int]) -> EnvBatch | EnvPoolBatch | AleBatch:
    """Create the worker's environments with the library of `env.backend`.

    In mode=single, ale-py steps its games with one thread per processor, because the other processors are idle. In the
    other modes, the other workers and the trainer use them.
    """
    if config.env.backend == "ale":
        num_threads = min(num_cores(), len(seeds)) if config.mode == "single" else 1
        return AleBatch(config.env, spec, seeds, config.worker.max_restarts, num_threads)
    batch: type[EnvBatch | EnvPoolBatch] = EnvPoolBatch if config.env.backend == "envpool" else EnvBatch
    return batch(config.env, spec, seeds, config.worker.max_restarts)


def make_builder(
    config: Config, spec: EnvSpec, policy: Policy, index: int, incarnation: int, is_recorded: bool = False
) -> Builder:
    """Create the builder that turns environment steps into rows for this run's replay.

    Recorded steps have their returns. Otherwise, if rows need returns, the builder adds them at an episode's end.
    """
    replay, gamma, scale = config.replay, config.algo.gamma, config.env.reward_scale

    def prioritize(rows: Columns) -> Array:
        return policy.priorities(types.gathered(rows))

    stackings, rate = stackings_of(config, spec), prioritize if config.replay.worker_priorities else None
    builder, open_steps = replay.make_builder(config.algo.n_step, gamma, scale, rate)
    if most_open_steps(config) and not is_recorded:
        open_steps = most_open_steps(config)
        builder = EpisodeBuilder(
            lambda: replay.make_builder(config.algo.n_step, gamma, scale, rate)[0],
            open_steps,
            data_columns(config),
            config.algo.n_step,
        )
    if stackings:
        codec = make_codec(replay.frame_codec)
        return FrameBuilder(builder, stackings, codec, index, incarnation, open_steps)
    return builder

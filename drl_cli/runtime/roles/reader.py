"""Reader: hands the recorded steps of a dataset to replay, through the same builder as a worker."""

import time

import numpy as np

from drl_cli import types
from drl_cli.config.config import Config
from drl_cli.config.rows import data_columns, fits, row_schema
from drl_cli.data.columns import DataColumns
from drl_cli.data.dataset import Dataset, ReadAhead
from drl_cli.replay.store import row_bytes
from drl_cli.runtime.messages import Block, InsertTransition
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.runtime.roles.worker import make_builder
from drl_cli.types import Array, Column, Columns, EnvSpec, LoadParams, State
from drl_cli.utils.seeding import integers

LANES = 32
"""A dataset is cut into at most this number of lanes, which are read side by side as the environments of a worker."""
MOST_STEPS, MOST_BYTES = 512, 64 << 20
"""A block has at most this number of steps of each lane, and about this number of bytes."""
SHARE = 16
"""If the table can't hold the whole dataset, a block has at most 1 / SHARE of the table's transitions."""


class Reader:
    """Answers each `collect` call with the rows of the next steps of every lane.

    A lane has consecutive episodes, and the lanes are about equally long. So a block has steps from all parts of the
    dataset. After the last step, the reader begins again with the first steps. The blocks count as inserts, and not as
    environment steps. While the trainer works, a thread reads the steps of the next block. They are no part of the
    state: a resumed reader reads them again.
    """

    def __init__(self, config: Config, spec: EnvSpec, dataset: Dataset) -> None:
        self.config, self.dataset = config, dataset
        self.first, self.last = cut(dataset.ends)
        self.length = int((self.last - self.first).max())  # steps of the longest lane
        self.num_steps = steps_per_block(config, spec, dataset)
        (seed,) = integers(config.seed, "policy", 1)
        self.policy = make_policy(config, spec, seed)
        self.builder = make_builder(config, spec, self.policy, 0, 0, is_recorded=True)
        self.source = types.sources(0, len(self.first))
        self.schema = row_schema(config, spec)
        algo, env = config.algo, config.env
        options = (algo.n_step, algo.gamma, env.reward_scale, env.reward_clip)
        self.columns = DataColumns(data_columns(config), dataset, *options)
        self.ahead = ReadAhead(self._read)
        self.is_read_once = fits(config, dataset)
        self.blocks = self.position = 0  # position: steps of each lane that were read in this pass over the dataset

    def collect(self, params_header: LoadParams, params: Array | None = None) -> tuple[InsertTransition, Columns]:
        """Read up to `num_steps` steps of every lane. Return a header and the columns `[rows, ...]` of complete rows.

        The parameters are used only to compute the first priorities of rows.
        """
        started = time.perf_counter()
        if params is not None and self.config.replay.worker_priorities:
            self.policy.load(params)
        stop = min(self.position + self.num_steps, self.length)
        open_rows, is_first_pass = self.builder.open_rows, self.blocks * self.num_steps < self.length
        steps, valid = self.ahead.take(self.position, stop)
        notes = self._notes() if is_first_pass and stop == self.length else ()
        self.position = stop % self.length
        for i in range(len(valid)):
            self.builder.append({name: column[i] for name, column in steps.items()})
        del steps  # the builder keeps what it needs
        columns = self.builder.take()
        if self.position or not self.is_read_once:  # after `take`, whose copies need memory
            self.ahead.begin(self.position, min(self.position + self.num_steps, self.length))
        block = Block(
            worker=0,
            incarnation=0,
            number=self.blocks,
            rows=open_rows + int(valid.sum()) - self.builder.open_rows,
            first_env_step=0,
            last_env_step=0,
            version=params_header.version,
            opt_steps=params_header.opt_steps,
        )
        self.blocks += 1
        seconds = time.perf_counter() - started
        header = InsertTransition((block,), (), seconds, notes=notes, work_s=seconds)
        return header, columns

    def state(self) -> State:
        """Return the whole state between two collect calls."""
        counters = {"counters": np.array([self.blocks, self.position])}
        return counters | types.nested("builder", self.builder.state())

    def load_state(self, state: State) -> None:
        """Continue from `state()` bit for bit."""
        self.blocks, self.position = state["counters"].tolist()
        self.builder.load_state(types.within(state, "builder"))

    def close(self) -> None:
        """End the thread that reads ahead."""
        self.ahead.close()

    def _read(self, start: int, stop: int) -> tuple[Columns, Array]:
        """Return the steps start..stop-1 of all lanes, `[steps, lanes, ...]`, and which of these steps exist."""
        num, lanes = stop - start, len(self.first)
        valid = np.arange(start, stop)[:, None] < self.last - self.first
        steps: Columns = {}
        for lane, (first, last) in enumerate(zip(self.first.tolist(), self.last.tolist(), strict=True)):
            if first + start >= last:
                continue
            part = first + start, min(first + stop, last)
            for name, column in {**self.dataset.read(*part), **self.columns.read(*part)}.items():
                if name not in steps:
                    steps[name] = np.zeros((num, lanes, *column.shape[1:]), column.dtype)
                steps[name][: len(column), lane] = column
        if (limit := self.config.env.reward_clip) is not None:
            steps["reward"] = steps["reward"].clip(-limit, limit)
        steps["source"] = np.broadcast_to(self.source, valid.shape)
        if "state" in self.schema:  # a recurrent policy begins every recorded sequence with an empty memory
            steps["state"] = np.zeros((num, lanes, *self.schema["state"].shape), self.schema["state"].dtype)
        return steps | {"valid": valid}, valid

    def _notes(self) -> tuple[str, ...]:
        if not self.dataset.clamped:
            return ()
        values = f"{self.dataset.clamped:,} values of its actions"
        return (f"{self.dataset.facts.source}: {values} were outside the action space and are clamped to its bounds",)


def cut(ends: Array, lanes: int = LANES) -> tuple[Array, Array]:
    """Return the first step of each lane, and the index after its last step. A lane has one episode or more."""
    wanted = ends[-1] * np.arange(1, lanes + 1) / lanes
    last = np.unique(ends[np.searchsorted(ends, wanted.round())])
    return np.append(0, last[:-1]), last


def steps_per_block(config: Config, spec: EnvSpec, dataset: Dataset) -> int:
    """Return the number of steps of each lane in a block."""
    lanes = len(cut(dataset.ends)[0])
    columns: dict[str, Column] = types.transition_schema(spec)
    fitting = MOST_BYTES // row_bytes(columns)
    if not fits(config, dataset):
        fitting = min(fitting, config.replay.num_transitions // SHARE)
    return int(max(1, min(MOST_STEPS, fitting // lanes)))

"""Trainer: makes gradient updates from the batches that it receives, and publishes parameter versions."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from drl_cli.algos.base import Algorithm, Batch, Counts, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.chains.process_group import PeerLost
from drl_cli.errors import AlgorithmFailed, AlgorithmRefused, Refused, memory_problem
from drl_cli.optim.modules import load_tensors, misfit
from drl_cli.replay.frames import UNIQUE, FrameBatch, Stacking, Stacks
from drl_cli.runtime.messages import BatchTrainingData, TrainReport, UpdatePriority
from drl_cli.runtime.place.ray_runtime import node_address
from drl_cli.runtime.roles.divergence import check_drift, check_metrics, check_state
from drl_cli.runtime.roles.normalization import BatchNormalizer
from drl_cli.types import Array, Columns, LoadParams, State, column_name, gathered, nested, within
from drl_cli.utils.lazy import torch
from drl_cli.utils.outside import raised
from drl_cli.utils.torch_ops import keep_freed_memory, no_subnormals


class Made(NamedTuple):
    """A result of `Algorithm.update`; `values` are its metrics, one tensor `[len(names)]`."""

    names: tuple[str, ...]
    values: "torch.Tensor"
    priorities: "torch.Tensor | None" = None
    steps: int = 1
    skipped: int = 0
    columns: "Mapping[str, torch.Tensor]" = MappingProxyType({})


class Trainer:
    """Runs the algorithm with its optimizers. Other roles control the pace, write logs and evaluate."""

    def __init__(
        self,
        build: Callable[[AlgoContext], Algorithm],
        context: AlgoContext,
        normalizer: BatchNormalizer | None = None,
        stackings: Mapping[str, Stacking] = MappingProxyType({}),
    ) -> None:
        # Batches in shared memory are read-only. torch warns of this, although the trainer never writes to a batch.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        keep_freed_memory()
        if context.compiles and context.device.type == "cpu":
            _use_cpp_wrapper()
        self.device, self.group, self.products = context.device, context.group, context.products
        self.algorithm = build(context)
        self.normalizer, self.stackings = normalizer, stackings
        self.when = context.chain
        self.context = context
        self.chain: Callable[..., Any] | None = None  # Any: see Context.chain_of
        if (context.replays or context.chain) and self.algorithm.is_one_step and not stackings:
            self.chain = context.chain_of(
                self._for_chain, self.algorithm, lambda: (Made((), torch.zeros(0), skipped=1, steps=0), None)
            )
        # Makes the updates of a call at once. A skipped update is no step, so that the counts are not known before.
        self.several = None if context.skips else getattr(self.chain, "many", None)
        self.opt_steps = self.calls = 0

    def listen(self) -> tuple[str, int]:
        host = node_address()
        return host, self.group.listen(host)

    def join(self, address: tuple[str, int]) -> None:
        """Connect to the other trainers. Raise PeerLost if a trainer is missing."""
        self.group.join(*address, self.device)

    def describe(self) -> dict[str, Any]:
        products = dict(self.products.chosen())
        return {"device": str(self.device), "threads": torch.get_num_threads(), "products": products}

    def load_policy(self, vector: Array) -> None:
        """Start from a published vector. Raise ValueError with both sizes if the vector does not fit."""
        self.algorithm.load_policy(self.normalizer.load(vector) if self.normalizer else vector)

    def load_networks(self, networks: State) -> str | None:
        """Start from all networks of another run. If they do not fit, change nothing and return why."""
        tensors = self.algorithm.params.tensors()
        if line := misfit(tensors, networks):
            return line
        load_tensors(tensors, {name: torch.tensor(array) for name, array in networks.items()})
        return None

    @no_subnormals()
    def train(self, header: BatchTrainingData, columns: Columns) -> tuple[TrainReport, UpdatePriority | None]:
        """Make one update per batch of `columns` `[U, B, ...]`. Return the report, and priorities if replay needs them.

        Raise ValueError if replay needs priorities and the algorithm has none.
        """
        started = time.perf_counter()
        batches = {name: torch.from_numpy(column) for name, column in columns.items() if name != "source"}
        if self.device.type != "cpu":
            batches = {name: self._to_device(tensor) for name, tensor in batches.items()}
        frames = {path: batches.pop(column_name(UNIQUE, path)) for path in self.stackings}
        if self.normalizer is not None:
            self.normalizer.receive(header)
            batches = self.normalizer(batches)
        batch_s = time.perf_counter() - started
        updates = self._updates(batches, frames, header.env_steps)
        means = self._means(updates, columns)
        num_updates = sum(update.steps for update in updates)
        self.opt_steps += num_updates
        if means:
            means |= self.algorithm.optimizer.metrics()
        if self.group.size > 1:
            self.calls += 1
            if self.calls & (self.calls - 1) == 0 or self.calls % 64 == 0:  # calls 1, 2, 4, ... 64, then every 64th
                check_drift(self.algorithm.params, self.group, self.opt_steps)
        priorities = None
        if header.row_ids is not None:
            priorities = new_values(header.row_ids, updates, header.needs_priorities, columns)
        elif written := sorted({name for update in updates for name in update.columns}):
            raise AlgorithmRefused(f"algo: Update.columns has {', '.join(written)}; list these columns in WRITES")
        report = TrainReport(
            opt_steps=self.opt_steps,
            num_updates=num_updates,
            skipped=sum(update.skipped for update in updates),
            metrics=means,
            seconds=time.perf_counter() - started,
            num_batches=header.num_batches,
            waiting=header.waiting,
            repeats=header.repeats,
            replay=header.stats,
            sample_s=header.seconds,
            batch_s=batch_s,
            notes=() if self.when is None else self.when.take_notes(),
        )
        return report, priorities

    def train_and_publish(
        self, header: BatchTrainingData, columns: Columns, newest: LoadParams
    ) -> tuple[TrainReport, UpdatePriority | None, LoadParams | None, Array | None]:
        """Train, then publish the version after `newest`. Return the results of both, which saves a call.

        The last two results are None if there was no update since `newest`, or if the batch will be served again.
        """
        report, priorities = self.train(header, columns)
        if header.repeats or self.opt_steps == newest.opt_steps:
            return report, priorities, None, None
        return report, priorities, *self.publish(newest.version + 1, header.env_steps)

    def _to_device(self, tensor: "torch.Tensor") -> "torch.Tensor":
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def publish(self, version: int, env_steps: int) -> tuple[LoadParams, Array]:
        """Return the policy's parameters as one flat float32 vector. Raise Diverged if a parameter is not finite."""
        position = self.context.clock.of(Counts(self.opt_steps, env_steps))
        exploration = dict(self.algorithm.exploration(position))
        params_header = LoadParams(version, self.opt_steps, env_steps, exploration=exploration)
        params = self.algorithm.policy_params()
        if self.normalizer is not None:
            self.normalizer.adopt()
            params = self.normalizer.statistics.join(params)
        if not np.isfinite(params).all():
            check_state({"a parameter of the policy": params}, self.opt_steps)
        return params_header, params

    def state(self) -> State:
        """Return the state from which training continues exactly. Raise Diverged if a value is not finite."""
        state = {"opt_steps": np.array(self.opt_steps), "torch": torch.get_rng_state().numpy()}
        state |= {f"algorithm.{name}": tensor.numpy() for name, tensor in self.algorithm.state().items()}
        if self.normalizer is not None:
            state |= nested("normalizer", self.normalizer.state())
        check_state(state, self.opt_steps)
        return state

    def load_state(self, state: State) -> None:
        """Continue from `state()`. If the state does not fit, raise ValueError and change nothing."""
        if problems := _misfits(self.state(), state):
            raise ValueError("the saved trainer does not fit this run: " + "; ".join(problems))
        self.algorithm.load_state({name: torch.tensor(array) for name, array in within(state, "algorithm").items()})
        torch.set_rng_state(torch.tensor(state["torch"]))
        for replays in self.context.recorded:
            replays.reset()
        if self.when is not None:
            self.when.reset()
        if self.normalizer is not None:
            self.normalizer.load_state(within(state, "normalizer"))
        self.opt_steps = int(state["opt_steps"])

    def _with_stacks(self, columns: "dict[str, Any]", frames: "Mapping[str, torch.Tensor]") -> FrameBatch:
        """Return the columns `[B, ...]` of an update as a batch, whose image stacks are joined when they are read."""
        for path, stacking in self.stackings.items():
            for name in (column_name("obs", path), column_name("next_obs", path)):
                columns[name] = Stacks(frames[path], columns[name], stacking)
        return FrameBatch(gathered(columns))

    def _updates(
        self, batches: "dict[str, torch.Tensor]", frames: "Mapping[str, torch.Tensor]", env_steps: int
    ) -> "list[Made]":
        """Make an update with each of the batches `[U, B, ...]`."""
        optimizer, clock = self.algorithm.optimizer, self.context.clock
        try:
            if self.several is not None and (clock.unit == "env_steps" or optimizer.config.is_constant):
                num = len(next(iter(batches.values())))
                several = [Counts(self.opt_steps + i, env_steps) for i in range(num)]
                optimizer.schedule(clock.of(several[0]))
                made = self.several(batches, several)
                optimizer.norm = made[-1][1]
                return [Made(*fields) for fields, _ in made]
            updates, opt_steps = list[Made](), self.opt_steps
            for rows in zip(*(batch.unbind() for batch in batches.values()), strict=True):
                columns, counts = dict(zip(batches, rows, strict=True)), Counts(opt_steps, env_steps)
                if self.chain is not None:
                    optimizer.schedule(clock.of(counts))
                    fields, optimizer.norm = self.chain(columns, counts)
                    updates.append(Made(*fields))
                else:
                    batch: Batch = self._with_stacks(columns, frames) if self.stackings else gathered(columns)
                    updates.append(_made(self.algorithm.learn(batch, counts)))
                opt_steps += updates[-1].steps
            return updates
        except Refused as error:
            raise AlgorithmRefused(f"algo: {error}") from error
        except Exception as error:
            module = type(self.algorithm).__module__
            if module.startswith("drl_cli.") or isinstance(error, PeerLost) or memory_problem(error):
                raise
            raise AlgorithmFailed(f"algo={module}: update {raised(error)}") from error

    def _for_chain(self, columns: "Mapping[str, torch.Tensor]", counts: Counts) -> "tuple[Made, torch.Tensor | None]":
        """Make an update. Return everything that it computes: the norm of the gradient, too."""
        made = _made(self.algorithm.learn(gathered(dict(columns)), counts))
        return made, self.algorithm.optimizer.norm

    def _means(self, updates: "Sequence[Made]", columns: Columns) -> dict[str, float]:
        """Return means of metrics over updates and trainers. Raise Diverged if a metric is not finite."""
        names = list(dict.fromkeys(name for update in updates for name in update.names))
        if not names:
            return {}
        if all(len(update.names) == len(names) for update in updates):
            values = torch.stack([update.values for update in updates]).detach()
        else:
            zero = torch.zeros((), device=self.device)
            found = [dict(zip(update.names, update.values, strict=True)) for update in updates]
            rows = [torch.stack([values.get(name, zero) for name in names]) for values in found]
            values = torch.stack(rows).detach()
        if self.group.size > 1:
            self.group.mean_(values)
        values = values.cpu()
        counts = [sum(name in update.names for update in updates) for name in names]
        if not values.isfinite().all():
            cause = "the batch was finite"
            if self.normalizer is not None and not np.isfinite(self.normalizer.statistics.mean).all():
                cause = "an observation or reward was not finite, and neither are the normaliser's statistics"
            check_metrics(names, values.numpy(), self.opt_steps, columns, cause)
        return dict(zip(names, (values.sum(0) / torch.tensor(counts)).tolist(), strict=True))


def _made(update: Update) -> Made:
    metrics = update.metrics
    values = torch.stack([*metrics.values()]) if metrics else torch.zeros(0)
    return Made((*metrics,), values, update.priorities, update.steps, update.skipped, dict(update.columns))


def new_values(
    row_ids: Array, updates: Sequence[Made], has_priorities: bool, batches: Columns
) -> UpdatePriority | None:
    """Return new priorities and columns for the rows of all updates that were made, or None if all were skipped.

    Raise AlgorithmRefused if the columns do not have the shapes of the columns of `batches` `[U, B, ...]`.
    """
    if has_priorities and any(update.steps and update.priorities is None for update in updates):
        raise ValueError("replay=prioritized needs priorities, and this algorithm gives none; say replay=uniform")
    made = [i for i, update in enumerate(updates) if update.steps]
    if not made:
        return None

    def stacked(values: "list[torch.Tensor]") -> Array:
        array: Array = torch.stack([value.detach() for value in values]).cpu().numpy()
        return array

    priorities = [update.priorities for update in updates if update.steps and update.priorities is not None]
    columns = {name: stacked([updates[i].columns[name] for i in made]) for name in updates[made[0]].columns}
    for name, values in columns.items():
        needed = batches[name].shape[1:] if name in batches else f"no column; it has {', '.join(batches)}"
        if values.shape[1:] != needed:
            raise AlgorithmRefused(f"algo: Update.columns: {name} has shape {values.shape[1:]}, the batch has {needed}")
    return UpdatePriority(row_ids[made], stacked(priorities) if has_priorities else None, columns)


def _use_cpp_wrapper() -> None:
    """Let compiled CPU code call its kernels from C++, to save a tenth of an update's time. Needs torch >= 2.8."""
    if hasattr(torch.compiler, "skip_guard_on_globals_unsafe"):
        from torch._inductor import config

        config.cpp_wrapper = True


def _misfits(own: State, saved: State) -> list[str]:
    """Return a line for each array that is missing, unknown, or of another shape or type.

    The shards' moments are not compared, because a new trainer has none. The optimizer checks its extra arrays itself.
    The state of a generator has another size on another device, from which a run may come.
    """

    def kind(name: str, array: Array) -> str:
        return f"{array.dtype}{[] if name.startswith('algorithm.generator.') else list(array.shape)}"

    needed, found = (
        {name: kind(name, array) for name, array in state.items() if ".shards." not in name} for state in (own, saved)
    )
    return [
        f"{name} is {found.get(name, 'missing')}, needed is {needed.get(name, 'nothing')}"
        for name in sorted(needed.keys() | found.keys())
        if needed.get(name) != found.get(name) and not (name not in needed and name.startswith("algorithm.optimizer."))
    ]

"""The parts of drl-bench: collect, replay, updates, end and tune."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from drl_cli.bench import collect, end_to_end, replay, updates
from drl_cli.bench.end_to_end import Pace, overridden
from drl_cli.bench.figures import Figure, Rate, middle, short
from drl_cli.bench.replay import Replaying
from drl_cli.bench.tune import ENVS, Setting, bound, choose, promising, thread_counts
from drl_cli.bench.updates import Updating, lone_trainer
from drl_cli.runtime.config import Config
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.trial import single_trainer
from drl_cli.types import Array, EnvSpec


@dataclass
class Suite:
    """Measure the parts of a run. Each measurement takes `seconds`, and its result is passed to `show`.

    `config` was composed from `command`, the arguments of drl-train. Only `end` and `tune` start other processes.
    """

    config: Config
    spec: EnvSpec
    command: Sequence[str]
    cores: int
    seconds: float
    show: Callable[[Figure], None]
    worker_rates: dict[int, Rate] = field(default_factory=dict)
    """The rate of environment steps of one worker, by its number of environments."""
    trainer_rates: dict[int, Rate] = field(default_factory=dict)
    """The highest rate of environment steps that all trainers can keep up with, by the number of threads of each."""
    updates_per_batch: float = 1.0

    @property
    def own(self) -> Setting:
        return Setting(self.config.num_workers, self.config.num_threads, self.config.worker.envs)

    @cached_property
    def params(self) -> tuple[LoadParams, Array]:
        """The header and the parameters of the untrained policy."""
        return lone_trainer(self.config, self.spec).publish(0, 0)

    @cached_property
    def replaying(self) -> Replaying:
        """A full replay table. `end` and `tune` delete it, because the runs that they start need the memory."""
        return Replaying(single_trainer(self.config, 1), self.spec, *self.params, self.seconds)

    def collect(self) -> None:
        """Measure one worker with several numbers of environments."""
        for num in sorted({1, *ENVS, self.own.envs}):
            ours, bare = collect.measure(self.config, self.spec, *self.params, num, self.seconds)
            self.worker_rates[num] = middle(ours)
            share = median(a.per_s / b.per_s for a, b in zip(ours, bare, strict=True))
            note = f"{share:.2f} of the bare loop's {short(middle(bare).per_s)}"
            what = f"one worker, {num} environment{'s' if num > 1 else ''}"
            self.show(Figure.of("collect", what, "env steps/s", ours, note))

    def replay(self) -> None:
        """Measure how fast transitions are inserted and batches are drawn."""
        rates, config = replay.measure(self.replaying, self.seconds), self.replaying.config
        rows, capacity = len(self.replaying.replay.table), config.replay.num_rows
        if "insert" in rates:
            note = "" if self.replaying.is_full else f"{rows:,} of {capacity:,} rows are filled"
            self.show(Figure.of("replay", f"insert, {config.replay.sampler}", "rows/s", rates["insert"], note))
        of = "" if config.is_on_policy else f" of {rows:,}"
        what = f"draw {config.trainer.batch_size}{of} rows, {config.replay.sampler}"
        note = "their insertion included" if config.is_on_policy else f"{config.updates_per_call} at once"
        self.show(Figure.of("replay", what, "batches/s", rates["draw"], note))

    def updates(self) -> None:
        """Measure the trainer with several numbers of threads."""
        config, own = self.replaying.config, self.own.threads
        on_gpu = updates.lone_trainer(config, self.spec).device.type != "cpu"
        counts = [own] if on_gpu else sorted({own, *thread_counts(self.cores)})
        sides = [Updating(self.replaying, self.spec, threads) for threads in counts]
        rates = updates.measure(sides, self.seconds)
        self.updates_per_batch = sides[0].updates_per_batch
        for threads, rounds in rates.items():
            rate, num = middle(rounds), self.config.trainer.num
            paid = rate.per_s / self.asked_ratio
            self.trainer_rates[threads] = Rate(paid, rate.per_cpu_s / self.asked_ratio / num)
            note = f"pays for {short(paid)} env steps/s at ratio {self.asked_ratio:.3g}"
            what = f"{config.trainer.batch_size} rows, {threads} thread{'s' if threads > 1 else ''}"
            what += f", one of {num} trainers" if num > 1 else ""
            self.show(Figure.of("updates", what, "updates/s", rounds, note))

    @property
    def asked_ratio(self) -> float:
        """The configured number of updates per environment step."""
        config, pace = self.config, self.config.orchestrator  # on-policy, a queue serves each transition
        queue_ratio = config.replay.servings / config.trainer.batch_size
        ratio = queue_ratio if config.is_on_policy else pace.sample_insert_ratio
        return ratio * self.updates_per_batch

    def end(self) -> None:
        """Measure a real run with the config."""
        config = self.config
        vars(self).pop("replaying", None)  # to free its memory
        pace = end_to_end.measure(self.command, config, self.seconds)
        note = self._against(config.mode, self.own, pace)
        what = f"environment steps, mode={config.mode}"
        self.show(Figure("end", what, "env steps/s", pace.env_steps_per_s, pace.rounds, note))
        self.show(Figure("end", "updates", "updates/s", pace.opt_steps_per_s))
        asked = f"{self.asked_ratio:.4g} asked for" if self.trainer_rates or not config.is_on_policy else ""
        asked = asked if config.is_on_policy or config.orchestrator.limiter == "ratio" else "both sides run free"
        self.show(Figure("end", "updates per environment step", "", pace.ratio, note=asked))
        if config.reanalyzer.num:
            per_step = pace.reanalyzed_per_s / max(1e-9, pace.env_steps_per_s)
            note = f"{per_step:.3g} per environment step, {config.reanalyzer.ratio:g} asked for"
            self.show(Figure("end", "re-analysed steps", "steps/s", pace.reanalyzed_per_s, note=note))
        self.show(Figure("end", "workers wait", "%", 100 * pace.worker_wait))
        self.show(Figure("end", "trainer waits", "%", 100 * pace.trainer_wait))
        self.show(Figure("end", "start-up to the first step", "s", pace.start_up_s))

    def tune(self, fits: Callable[[Config], bool]) -> tuple[Setting, Pace]:
        """Return the best setting for which `fits` is true, and its pace. Call `collect` and `updates` first."""
        vars(self).pop("replaying", None)
        workers = range(1, self.cores + 1)
        every = (Setting(num, threads, envs) for num in workers for threads in self.trainer_rates for envs in ENVS)
        tried = promising({one: self._bound("async", one)[0] for one in every if fits(one.of(self.config))})
        paces: dict[Setting, Pace] = {}
        for one in dict.fromkeys([*tried, self.own] if self.config.mode == "async" else tried):
            command = overridden(self.command, "mode=async", *one.keys)
            pace = paces[one] = end_to_end.measure(command, one.of(self.config), self.seconds)
            note = self._against("async", one, pace)
            self.show(Figure("tune", " ".join(one.keys), "env steps/s", pace.env_steps_per_s, pace.rounds, note))
        chosen = choose({one: pace.env_steps_per_s for one, pace in paces.items()})
        return chosen, paces[chosen]

    def _bound(self, mode: str, one: Setting) -> tuple[float, str]:
        rates = self.worker_rates[one.envs], self.trainer_rates[one.threads]
        return bound(mode, one.workers, self.cores, *rates)

    def _against(self, mode: str, one: Setting, pace: Pace) -> str:
        """Return a note that compares a run with its upper bound, or '' if the bound was not measured."""
        if one.envs not in self.worker_rates or one.threads not in self.trainer_rates:
            return ""
        least, whose = self._bound(mode, one)
        return f"{pace.env_steps_per_s / least:.2f} of the bound {short(least)} of the {whose}"

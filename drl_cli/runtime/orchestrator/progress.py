"""Progress: the counters of a run, and the reports and the summary that are computed from the counters."""

import dataclasses
import json
import logging
import math
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from drl_cli.config.config import Config
from drl_cli.metrics.aggregation import Means, over_shards, spread
from drl_cli.metrics.status import MAX_SCORES
from drl_cli.runtime.messages import EvalReport, InsertTransition, MessageCounts, ReanalysisReport, TrainReport
from drl_cli.runtime.place.usage import Usage
from drl_cli.utils.clock import Waiting, now
from drl_cli.utils.files import regular
from drl_cli.utils.shown import tell

log = logging.getLogger(__name__)

FIRST, FEWEST = 20, 5
"""The returns of up to FIRST episodes are kept, those that end before the first update, and in any case of FEWEST."""
LATEST = 100
"""The displayed training return is the mean of this many episodes. Often, no episode ends in a report period."""
SAVED = (
    "worker_restarts",
    "env_restarts",
    "reanalyzer_restarts",
    "reanalyzed_steps",
    "skipped_updates",
    "warm_env_steps",
    "peak_rss_mb",
    "first",
)
"""Attributes that a checkpoint stores in addition to `counts()`."""
SUMMARY = (
    *("env_steps", "opt_steps", "inserts", "samples", "loads", "start_up_s"),
    *("worker_restarts", "env_restarts", "reanalyzer_restarts", "reanalyzed_steps", "peak_rss_mb"),
)
"""Attributes that are copied to summary.json."""
REPORTS = ("time_to_return", "best", "last")
"""Attributes with evaluation reports, which a checkpoint stores."""


class Progress:
    """Counts the steps of all workers (`env_steps`) and gradient steps (`opt_steps`), by the same rules in every mode.

    `inserts` counts transitions inserted into replay, `samples` counts batches drawn, and `loads` counts published
    versions. `started` is the start time of the process [s since the epoch]. `latest` has (return, length) of the last
    training episodes, and `scores` has (position, mean return) of the last evaluations. `first` has the returns of the
    first episodes. `goal_reached` is True if an evaluation in this process has reached stop.return. `doubt` is a line
    if the run does not learn.
    """

    def __init__(self, config: Config, started: float, trace_file: Path | None = None) -> None:
        self.config, self.started = config, started
        self.trace = MessageCounts(self._write_message if trace_file else None)
        self.trace_file = open(trace_file, "a", buffering=1, opener=regular) if trace_file else None  # noqa: SIM115
        self.env_steps = self.opt_steps = self.inserts = self.samples = self.loads = 0
        self.reanalyzed_steps = self.reanalyzer_restarts = 0
        self.num_episodes = self.worker_restarts = self.env_restarts = self.skipped_updates = 0
        self.warm_env_steps: float | None = None
        self.wall_before_s = 0.0
        self.start_up_s: float | None = None
        self.time_to_return: EvalReport | None = None
        self.best: EvalReport | None = None
        self.last: EvalReport | None = None
        self.goal_reached = False
        self.latest: deque[tuple[float, int]] = deque(maxlen=LATEST)
        self.first: list[float] = []
        self.doubt = ""
        self.scores: deque[tuple[int, float]] = deque(maxlen=MAX_SCORES)
        self.work_s = self.env_s = self.policy_s = self.update_s = 0.0  # [s] since this process started
        self.peak_rss_mb = 0.0
        self.usage = Usage()
        self.most_rows = config.replay.num_transitions
        self.workers, self.members = config.num_workers, config.worker.num_proxies or config.num_workers
        self.trainer_idle = Waiting()
        self.train_started: float | None = None
        self.collect_started: float | None = None
        self.ended: float | None = None
        self._lags = [0, 0, 0]  # sum, number and maximum of the policy lags
        self._episodes: deque[tuple[float, int]] = deque()
        self._means = Means()
        self._skipped_warned = 0
        self._replay: dict[int, Mapping[str, float]] = {}
        self._worker_steps: Counter[int] = Counter()  # steps of each worker since the last report
        self.finished: dict[int, int] = {}  # steps of each worker in the blocks that have arrived
        self.began = now()
        self._last_report = (self.began, self.counts())
        self.training_before_s = self.evaluation_s = 0.0
        # (env_steps since the warm-up, inserts) when this process resumed without a saved replay; otherwise zeros
        self._before_empty = (0.0, 0)

    @property
    def position(self) -> int:
        """The position of the run's clock."""
        return self.config.clock.of(self)

    def process_s(self) -> float:
        return time.time() - self.started

    def wall_s(self) -> float:
        return self.wall_before_s + self.process_s()

    def _write_message(self, route: int, count: int, detail: Mapping[str, int]) -> None:
        assert self.trace_file is not None
        line = {"wall_s": self.wall_s(), "route": route, "count": count, "env_steps": self.env_steps, **detail}
        self.trace_file.write(json.dumps(line) + "\n")

    def collected(self, header: InsertTransition) -> None:
        if self.collect_started is None:
            self.collect_started = now() - header.seconds
            self.start_up_s = self.process_s() - header.seconds
        self.env_steps += header.env_steps
        self.inserts += header.rows
        self.worker_restarts += header.restarts
        self.env_restarts += len(header.faults)
        self.num_episodes += len(header.episodes)
        ended = [(episode.ret, episode.length) for episode in header.episodes]
        self._episodes.extend(ended)
        self.latest.extend(ended)
        room = (FIRST if self.opt_steps == 0 else FEWEST) - len(self.first)
        self.first += [ret for ret, _ in ended[: max(0, room)]]
        for episode in header.episodes:
            self._means.add({f"rollout/{name}": value for name, value in episode.info.items()})
        self.work_s += header.work_s
        self.env_s += header.env_s
        self.policy_s += header.policy_s
        for block in header.blocks:
            self.finished[block.worker] = block.last_env_step
            if block.last_env_step == block.first_env_step:  # recorded steps, which no policy of this run made
                continue
            lag = self.opt_steps - block.opt_steps
            self._lags = [self._lags[0] + lag, self._lags[1] + 1, max(self._lags[2], lag)]
            self._means.add({"async/policy_lag": lag})
            self._worker_steps[block.worker] += block.last_env_step - block.first_env_step
        if self.warm_env_steps is None and self.env_steps and (missing := self.missing_inserts()) <= 0:
            self.warm_env_steps = self.env_steps + missing - self._before_empty[0]

    def missing_inserts(self) -> int:
        """Return how many transitions the warm-up still needs. The number is negative after the warm-up."""
        return self.config.min_inserts - (self.inserts - self._before_empty[1])

    def lost(self, header: InsertTransition) -> None:
        """Correct the counters after a block was lost on its way to replay."""
        self.env_steps -= header.env_steps
        self.inserts -= header.rows
        self.num_episodes -= len(header.episodes)
        for block in header.blocks:
            self._worker_steps[block.worker] -= block.last_env_step - block.first_env_step

    def trained(self, report: TrainReport, shard: int = 0) -> None:
        self.opt_steps = report.opt_steps
        self.samples += report.num_batches
        self._replay[shard] = report.replay
        self.skipped_updates += report.skipped
        self.update_s += report.seconds - report.batch_s
        if self.skipped_updates and self._skipped_warned == 0:
            self._warn_of_skipped()
        for level, note in report.notes:
            (log.warning if level >= logging.WARNING else tell)(f"update {self.opt_steps}: {note}")
        if report.num_batches:
            self._means.add({"perf/sample_ms": 1000 * report.sample_s / report.num_batches}, report.num_batches)
        if report.num_updates == 0:
            return
        self._means.add({f"train/{name}": value for name, value in report.metrics.items()}, report.num_updates)
        self._means.add({"perf/update_ms": 1000 * report.seconds / report.num_updates}, report.num_updates)

    def reanalyzed(self, report: ReanalysisReport) -> None:
        self.reanalyzed_steps += report.steps
        if report.steps:
            self._means.add({"perf/reanalyze_ms": 1000 * report.seconds / report.steps}, report.steps)

    def _warn_of_skipped(self) -> None:
        self._skipped_warned = self.skipped_updates
        log.warning("%d non-finite updates were skipped (trainer.on_nonfinite=skip)", self._skipped_warned)

    def evaluated(self, report: EvalReport) -> None:
        """Record an evaluation. Set `goal_reached` if the mean return has reached stop.return."""
        self.last = report
        if math.isfinite(report.mean):
            self.scores.append((self.config.clock.of(report.params_header), report.mean))
        if self.best is None or report.mean > self.best.mean:
            self.best = report
        if self.config.stop.return_ is not None and report.mean >= self.config.stop.return_:
            self.goal_reached = True
            self.time_to_return = self.time_to_return or report

    def updates_per_env_step(self) -> float | None:
        """Return the updates per environment step since the warm-up, or None during the warm-up."""
        if self.warm_env_steps is None or self.env_steps <= self.warm_env_steps:
            return None
        return self.opt_steps / (self.env_steps - self.warm_env_steps)

    def counts(self) -> dict[str, int]:
        names = ("env_steps", "opt_steps", "inserts", "samples", "loads", "num_episodes")
        return {name: getattr(self, name) for name in names}

    def state(self) -> dict[str, Any]:
        """Return the values from which a resumed run continues, as JSON data."""
        reports = {name: getattr(self, name) for name in REPORTS}
        return {
            **self.counts(),
            **{name: getattr(self, name) for name in SAVED},
            "wall_s": self.wall_s(),
            "training_s": self.training_s(),
            "messages": self._messages(),
            "scores": list(self.scores),
            **{name: report and dataclasses.asdict(report) for name, report in reports.items()},
        }

    def load_state(self, state: Mapping[str, Any], has_replay: bool) -> None:
        """Continue from `state()`. Without a saved replay, the warm-up is repeated."""
        for name in (*self.counts(), *SAVED):
            setattr(self, name, state[name])
        self.wall_before_s = state["wall_s"]
        self.scores.extend((position, mean) for position, mean in state["scores"])
        for name in REPORTS:
            setattr(self, name, state[name] and EvalReport.of(state[name]))
        self.trace.counts.update({int(route): count for route, count in state["messages"].items()})
        self.training_before_s = state["training_s"]
        self._last_report = (now(), self.counts())
        if not has_replay:
            paid = 0.0 if self.warm_env_steps is None else self.env_steps - self.warm_env_steps
            self._before_empty, self.warm_env_steps = (paid, self.inserts), None

    def forget_scores(self, position: int) -> None:
        """Remove the scores from `position` on, because these versions are evaluated again."""
        while self.scores and self.scores[-1][0] >= position:
            self.scores.pop()

    def end(self) -> float:
        """End the measured time of the run, and return the present time [s]."""
        self.ended = now()
        self.trainer_idle.end(self.ended)
        return self.ended

    def elapsed_s(self) -> float:
        return 0.0 if self.collect_started is None else (self.ended or now()) - self.collect_started

    def waited_for_evaluation(self, seconds: float) -> None:
        """Leave out of the training time that the run has waited so long [s] for an evaluation."""
        if self.collect_started is not None and self.ended is None:
            self.evaluation_s += seconds

    def training_s(self) -> float:
        """Return the time [s] in training, over all parts of a resumed run: without starts and waits for evaluations.

        This time begins with the first environment step and includes the warm-up.
        """
        return self.training_before_s + max(0.0, self.elapsed_s() - self.evaluation_s)

    def mean_rates(self) -> dict[str, float]:
        """Return the steps per second in training. They are 0 before the first collect call has ended."""
        elapsed = self.training_s() or math.inf
        return {"env_steps_per_s": self.env_steps / elapsed, "opt_steps_per_s": self.opt_steps / elapsed}

    def wait_fracs(self, worker_wait_s: float) -> tuple[float, float]:
        """Return the fractions of time that the workers and the trainer (since its first update) spent waiting."""
        moment = self.ended or now()
        worker_time = max(1e-9, self.elapsed_s() * self.members)
        trainer = 0.0
        if self.train_started is not None:
            trainer = self.trainer_idle.seconds(moment) / max(1e-9, moment - self.train_started)
        return min(1.0, worker_wait_s / worker_time), min(1.0, trainer)

    def report(self, worker_wait_s: float) -> dict[str, float]:
        """Return scalars by tag: means and rates since the last report, and counters since the start of the run."""
        moment = now()
        since, before = self._last_report
        self._last_report = (moment, self.counts())
        if self.skipped_updates > self._skipped_warned:
            self._warn_of_skipped()
        elapsed = max(1e-9, moment - since)
        gone = {name: count - before[name] for name, count in self.counts().items()}
        worker_wait, trainer_wait = self.wait_fracs(worker_wait_s)
        episodes, self._episodes = list(self._episodes), deque()
        steps, self._worker_steps = self._worker_steps, Counter(dict.fromkeys(self._worker_steps, 0))
        ratio, rss_mb = self.updates_per_env_step(), self.usage.sample() / 2**20
        self.peak_rss_mb = max(self.peak_rss_mb, rss_mb)
        return {
            **self._means.take(),
            **spread("rollout/return", (ret for ret, _ in episodes)),
            **spread("rollout/length", (length for _, length in episodes)),
            "rollout/episodes": self.num_episodes,
            "train/skipped_updates": self.skipped_updates,
            "perf/env_steps_per_s": gone["env_steps"] / elapsed,
            **{f"perf/env_steps_per_s/worker_{i}": steps[i] / elapsed for i in sorted(steps)},
            "perf/opt_steps_per_s": gone["opt_steps"] / elapsed,
            "perf/samples_per_s": gone["samples"] * self.config.trainer.batch_size / elapsed,
            "perf/loads_per_s": gone["loads"] / elapsed,
            "perf/updates_per_env_step": 0.0 if ratio is None else ratio,
            "perf/updates_per_env_step_window": gone["opt_steps"] / max(1, gone["env_steps"]),
            "perf/worker_wait_frac": worker_wait,
            "perf/worker_wait_s": worker_wait_s,
            "perf/trainer_wait_frac": trainer_wait,
            "perf/trainer_wait_s": self.trainer_idle.seconds(moment),
            "perf/opt_steps": self.opt_steps,
            "perf/wall_s": self.wall_s(),
            "replay/size": min(self.inserts, self.most_rows),
            "replay/inserts": self.inserts,
            "replay/samples": self.samples,
            **{f"replay/{name}": value for name, value in over_shards(list(self._replay.values())).items()},
            "system/rss_mb": rss_mb,
            "system/cpu_percent": psutil.cpu_percent(),
            "system/load": os.getloadavg()[0],
        }

    def summary(self, worker_wait_s: float, evals_skipped: int) -> dict[str, Any]:
        self.peak_rss_mb = max(self.peak_rss_mb, self.usage.sample() / 2**20)
        worker_wait, trainer_wait = self.wait_fracs(worker_wait_s)
        best, last, reached = self.best, self.last, self.time_to_return
        return {
            **{name: getattr(self, name) for name in SUMMARY},
            "episodes": self.num_episodes,
            "updates_per_env_step": self.updates_per_env_step(),
            "wall_s": self.wall_s(),
            "training_s": self.training_s(),
            "time_to_return_s": reached.wall_s if reached else None,
            "time_to_return_env_steps": reached.params_header.env_steps if reached else None,
            "final_return": last.mean if last else None,
            "best_return": best.mean if best else None,
            "best_step": self.config.clock.of(best.params_header) if best else None,
            "eval_episodes": self.config.manage.eval_episodes,
            "doubt": self.doubt or None,
            **self.mean_rates(),
            "policy_lag_mean": self._lags[0] / max(1, self._lags[1]),
            "policy_lag_max": self._lags[2],
            "worker_wait_frac": worker_wait,
            "trainer_wait_frac": trainer_wait,
            "evals_skipped": evals_skipped,
            "processes": self.usage.by_role(),
            "nodes": self.usage.by_node(),
            "messages": self._messages(),
        }

    def _messages(self) -> dict[str, int]:
        return {str(route): count for route, count in sorted(self.trace.counts.items())}

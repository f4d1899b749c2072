"""Progress: the counters of a run, what is reported of them while it runs, and its summary."""

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

from drl_cli.metrics.aggregation import Means, over_shards, spread
from drl_cli.metrics.status import MOST_SCORES
from drl_cli.runtime.config import Config
from drl_cli.runtime.messages import EvalReport, InsertTransition, MessageCounts, TrainReport
from drl_cli.runtime.orchestrator.recent import Totals
from drl_cli.runtime.place.usage import Usage
from drl_cli.utils.clock import Waiting, now

log = logging.getLogger(__name__)

LATEST = 100
"""Episodes of training over which a return is shown: between two reports there may be none."""


class Progress:
    """The counters mean the same in every mode: env_steps are over all workers, opt_steps are gradient updates.

    `inserts` are transitions that have landed in replay, `samples` batches drawn, `loads` versions published. Times
    are in seconds; `started` is when the process began, since the epoch. `latest` are the returns and lengths of the
    last episodes of training, `scores` the env_steps and mean returns of the last evaluations.
    """

    def __init__(self, config: Config, started: float, trace_file: Path | None = None) -> None:
        self.config, self.started = config, started
        self.trace = MessageCounts(self._write_message if trace_file else None)
        self.trace_file = trace_file.open("a", buffering=1) if trace_file else None
        self.env_steps = self.opt_steps = self.inserts = self.samples = self.loads = 0
        self.num_episodes = self.worker_restarts = self.env_restarts = self.skipped_updates = 0
        self.warm_env_steps: float | None = None
        self.wall_before_s = 0.0
        self.start_up_s: float | None = None
        self.time_to_return: EvalReport | None = None
        self.best: EvalReport | None = None
        self.last: EvalReport | None = None
        self.latest: deque[tuple[float, int]] = deque(maxlen=LATEST)
        self.scores: deque[tuple[int, float]] = deque(maxlen=MOST_SCORES)
        self.work_s = self.env_s = self.policy_s = self.update_s = 0.0  # of workers and trainer, in this process
        self.peak_rss_mb = 0.0
        self.usage = Usage()
        self.trainer_idle = Waiting()
        self.train_started: float | None = None
        self.collect_started: float | None = None
        self.ended: float | None = None
        self._lags = [0, 0, 0]  # sum, count, maximum
        self._episodes: deque[tuple[float, int]] = deque()
        self._means = Means()
        self._skipped_said = 0
        self._replay: dict[int, Mapping[str, float]] = {}
        self._worker_steps: Counter[int] = Counter()  # since the last report
        self._began = now()
        self._last_report = (self._began, self.counts())
        self._first = (0, 0)  # env_steps and opt_steps of the run before this process
        self._anew = (0.0, 0)  # env_steps that paid for updates, and inserts, before replay was last empty

    def process_s(self) -> float:
        """Seconds since this process started."""
        return time.time() - self.started

    def wall_s(self) -> float:
        """Seconds that the run took so far, those before it was resumed included."""
        return self.wall_before_s + self.process_s()

    def _write_message(self, route: int, count: int, detail: Mapping[str, int]) -> None:
        assert self.trace_file is not None
        line = {"wall_s": self.wall_s(), "route": route, "count": count, "env_steps": self.env_steps, **detail}
        self.trace_file.write(json.dumps(line) + "\n")

    def collected(self, header: InsertTransition) -> None:
        """Count what a worker (or proxy) handed over."""
        if self.collect_started is None:
            self.collect_started = now() - header.collect_s
            self.start_up_s = self.process_s() - header.collect_s
        self.env_steps += header.env_steps
        self.inserts += header.rows
        self.worker_restarts += header.restarts
        self.env_restarts += len(header.faults)
        self.num_episodes += len(header.episodes)
        ended = [(episode.ret, episode.length) for episode in header.episodes]
        self._episodes.extend(ended)
        self.latest.extend(ended)
        for episode in header.episodes:
            self._means.add({f"rollout/{name}": value for name, value in episode.info.items()})
        self.work_s += header.work_s
        self.env_s += header.env_s
        self.policy_s += header.policy_s
        self.usage.tell(header.uses)
        for block in header.blocks:
            lag = self.opt_steps - block.opt_steps
            self._lags = [self._lags[0] + lag, self._lags[1] + 1, max(self._lags[2], lag)]
            self._means.add({"async/policy_lag": lag})
            self._worker_steps[block.worker] += block.last_env_step - block.first_env_step
        missing = self.missing_inserts()
        if self.warm_env_steps is None and missing <= 0:
            self.warm_env_steps = self.env_steps + missing - self._anew[0]

    def missing_inserts(self) -> int:
        """Transitions that have to land until min_inserts have; negative beyond that."""
        return self.config.orchestrator.min_inserts - (self.inserts - self._anew[1])

    def lost(self, header: InsertTransition) -> None:
        """Count a block out again that was lost on its way to replay."""
        self.env_steps -= header.env_steps
        self.inserts -= header.rows
        self.num_episodes -= len(header.episodes)
        for block in header.blocks:
            self._worker_steps[block.worker] -= block.last_env_step - block.first_env_step

    def trained(self, report: TrainReport, shard: int = 0) -> None:
        """Count a train call whose batches came from this shard."""
        self.opt_steps = report.opt_steps
        self.samples += report.num_batches
        self._replay[shard] = report.replay
        self.skipped_updates += report.skipped
        self.update_s += report.seconds - report.batch_s
        if self._skipped_said == 0:
            self._say_skipped()
        if report.num_batches:
            self._means.add({"perf/sample_ms": 1000 * report.sample_s / report.num_batches}, report.num_batches)
        if report.num_updates == 0:
            return
        self._means.add({f"train/{name}": value for name, value in report.metrics.items()}, report.num_updates)
        self._means.add({"perf/update_ms": 1000 * report.seconds / report.num_updates}, report.num_updates)

    def _say_skipped(self) -> None:
        if self.skipped_updates > self._skipped_said:
            self._skipped_said = self.skipped_updates
            log.warning("%d updates were left out, not being finite (trainer.on_nonfinite=skip)", self._skipped_said)

    def evaluated(self, report: EvalReport) -> bool:
        """An evaluation is done; returns whether it reached stop.return."""
        self.last = report
        if math.isfinite(report.mean):
            self.scores.append((report.params_header.env_steps, report.mean))
        if self.best is None or report.mean > self.best.mean:
            self.best = report
        goal = self.config.stop.return_
        reached = goal is not None and report.mean >= goal
        if reached and self.time_to_return is None:
            self.time_to_return = report
        return reached

    def updates_per_env_step(self) -> float | None:
        """Updates per environment step since min_inserts were there; None before."""
        if self.warm_env_steps is None or self.env_steps <= self.warm_env_steps:
            return None
        return self.opt_steps / (self.env_steps - self.warm_env_steps)

    def counts(self) -> dict[str, int]:
        """The counters that tell how far the run is."""
        names = ("env_steps", "opt_steps", "inserts", "samples", "loads", "num_episodes")
        return {name: getattr(self, name) for name in names}

    def state(self) -> dict[str, Any]:
        """All that a resumed run goes on from, as json."""
        reports = {"time_to_return": self.time_to_return, "best": self.best, "last": self.last}
        return {
            **self.counts(),
            "worker_restarts": self.worker_restarts,
            "env_restarts": self.env_restarts,
            "skipped_updates": self.skipped_updates,
            "warm_env_steps": self.warm_env_steps,
            "wall_s": self.wall_s(),
            "peak_rss_mb": self.peak_rss_mb,
            "messages": {str(route): count for route, count in self.trace.counts.items()},
            "scores": list(self.scores),
            **{name: report and dataclasses.asdict(report) for name, report in reports.items()},
        }

    def load_state(self, state: Mapping[str, Any], has_replay: bool) -> None:
        """Go on from `state()`; without the replay that belongs to it, min_inserts are waited for again."""
        others = ("worker_restarts", "env_restarts", "skipped_updates", "warm_env_steps", "peak_rss_mb")
        for name in (*self.counts(), *others):
            setattr(self, name, state[name])
        self.wall_before_s = state["wall_s"]
        self.scores.extend((env_steps, mean) for env_steps, mean in state.get("scores", ()))
        for name in ("time_to_return", "best", "last"):
            setattr(self, name, state[name] and EvalReport.of(state[name]))
        self.trace.counts.update({int(route): count for route, count in state["messages"].items()})
        self._first = (self.env_steps, self.opt_steps)
        self._last_report = (now(), self.counts())
        if not has_replay:
            paid = 0.0 if self.warm_env_steps is None else self.env_steps - self.warm_env_steps
            self._anew, self.warm_env_steps = (paid, self.inserts), None

    def end(self) -> None:
        """Collecting and training are over: rates and waits stand still from here."""
        self.ended = now()

    def elapsed_s(self) -> float:
        """Seconds from the first environment step until now or the end."""
        return 0.0 if self.collect_started is None else (self.ended or now()) - self.collect_started

    def wait_fracs(self, worker_wait_s: float) -> tuple[float, float]:
        """Share of their time that the workers, and since the first update the trainer, had nothing to do.

        `worker_wait_s` is summed over the members of the pool.
        """
        moment = self.ended or now()
        worker_time = max(1e-9, self.elapsed_s() * (self.config.num_proxies or self.config.num_workers))
        trainer = 0.0
        if self.train_started is not None:
            trainer = self.trainer_idle.seconds(moment) / max(1e-9, moment - self.train_started)
        return min(1.0, worker_wait_s / worker_time), min(1.0, max(0.0, trainer))

    def totals(self, worker_wait_s: float) -> Totals:
        """What was done and waited for until now; before its first update the trainer waited."""
        moment = self.ended or now()
        trainer_wait = self.trainer_idle.seconds(moment) + (self.train_started or moment) - self._began
        counts, work = (self.env_steps, self.opt_steps), (self.work_s, self.env_s, self.policy_s)
        return Totals(moment, *counts, worker_wait_s, *work, trainer_wait, self.update_s)

    def report(self, worker_wait_s: float) -> dict[str, float]:
        """Scalars by tag: means and rates since the last report, counters since the beginning."""
        moment = now()
        since, before = self._last_report
        self._last_report = (moment, self.counts())
        self._say_skipped()
        elapsed = max(1e-9, moment - since)
        gone = {name: count - before[name] for name, count in self.counts().items()}
        worker_wait, trainer_wait = self.wait_fracs(worker_wait_s)
        episodes, self._episodes = list(self._episodes), deque()
        ratio = self.updates_per_env_step()
        return {
            **self._means.take(),
            **spread("rollout/return", (ret for ret, _ in episodes)),
            **spread("rollout/length", (length for _, length in episodes)),
            "rollout/episodes": self.num_episodes,
            "train/skipped_updates": self.skipped_updates,
            "perf/env_steps_per_s": gone["env_steps"] / elapsed,
            **self._worker_rates(elapsed),
            "perf/opt_steps_per_s": gone["opt_steps"] / elapsed,
            "perf/samples_per_s": gone["samples"] * self.config.trainer.batch_size / elapsed,
            "perf/loads_per_s": gone["loads"] / elapsed,
            "perf/updates_per_env_step": 0.0 if ratio is None else ratio,
            "perf/updates_per_env_step_window": gone["opt_steps"] / max(1, gone["env_steps"]),
            "perf/worker_wait_frac": worker_wait,
            "perf/worker_wait_s": worker_wait_s,
            "perf/trainer_wait_frac": trainer_wait,
            "perf/trainer_wait_s": self.trainer_idle.seconds(self.ended or moment),
            "perf/opt_steps": self.opt_steps,
            "perf/wall_s": self.wall_s(),
            "replay/size": min(self.inserts, self.config.replay.capacity),
            "replay/inserts": self.inserts,
            "replay/samples": self.samples,
            **{f"replay/{name}": value for name, value in over_shards(list(self._replay.values())).items()},
            **self._system(),
        }

    def _worker_rates(self, elapsed: float) -> dict[str, float]:
        """Environment steps per second of each worker since the last report, 0 where nothing came."""
        steps, self._worker_steps = self._worker_steps, Counter(dict.fromkeys(self._worker_steps, 0))
        return {f"perf/env_steps_per_s/worker_{i}": steps[i] / elapsed for i in sorted(steps)}

    def summary(self, worker_wait_s: float, evals_skipped: int) -> dict[str, Any]:
        """The numbers of summary.json."""
        self._system()
        elapsed = max(1e-9, self.elapsed_s())
        worker_wait, trainer_wait = self.wait_fracs(worker_wait_s)
        best, last, reached = self.best, self.last, self.time_to_return
        return {
            "env_steps": self.env_steps,
            "opt_steps": self.opt_steps,
            "episodes": self.num_episodes,
            "inserts": self.inserts,
            "samples": self.samples,
            "loads": self.loads,
            "updates_per_env_step": self.updates_per_env_step(),
            "wall_s": self.wall_s(),
            "start_up_s": self.start_up_s,
            "time_to_return_s": reached.wall_s if reached else None,
            "time_to_return_env_steps": reached.params_header.env_steps if reached else None,
            "final_return": last.mean if last else None,
            "best_return": best.mean if best else None,
            "best_step": best.params_header.env_steps if best else None,
            "eval_episodes": self.config.manage.eval_episodes,
            "env_steps_per_s": (self.env_steps - self._first[0]) / elapsed,
            "opt_steps_per_s": (self.opt_steps - self._first[1]) / elapsed,
            "policy_lag_mean": self._lags[0] / max(1, self._lags[1]),
            "policy_lag_max": self._lags[2],
            "worker_wait_frac": worker_wait,
            "trainer_wait_frac": trainer_wait,
            "worker_restarts": self.worker_restarts,
            "env_restarts": self.env_restarts,
            "evals_skipped": evals_skipped,
            "peak_rss_mb": self.peak_rss_mb,
            "processes": self.usage.by_role(),
            "messages": {str(route): count for route, count in sorted(self.trace.counts.items())},
        }

    def _system(self) -> dict[str, float]:
        """Memory of this process and all it started, and the machine's load."""
        rss = self.usage.sample()
        self.peak_rss_mb = max(self.peak_rss_mb, rss / 2**20)
        return {
            "system/rss_mb": rss / 2**20,
            "system/cpu_percent": psutil.cpu_percent(),
            "system/load": os.getloadavg()[0],
        }

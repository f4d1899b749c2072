"""The console: one line per report and evaluation, or one live table on a terminal."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO


class Console:
    """`title` names the run; `total` are its environment steps, `target` is stop.return."""

    def __init__(self, out: TextIO, title: str, total: int, target: float | None, period_s: float) -> None:
        self.out, self.title, self.total, self.target, self.period_s = out, title, total, target, period_s
        self.started = self.printed = time.monotonic()
        self.best: float | None = None
        self.score: str = "-"
        self.live: Any = None  # rich.live.Live, imported only on a terminal
        if out.isatty():
            from rich.live import Live

            self.live = Live(auto_refresh=False, transient=True)
            self.live.start()

    def report(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Show the newest numbers: on a terminal at once, else every `period_s`."""
        if self.live is not None:
            self.live.update(self._table(scalars, env_steps), refresh=True)
        elif time.monotonic() - self.printed >= self.period_s:
            self.printed = time.monotonic()
            self.line(
                f"step {env_steps:,}/{self.total:,}  eta {self._eta(env_steps)}  "
                f"return {scalars.get('rollout/return_mean', float('nan')):.1f}  "
                f"{scalars['perf/env_steps_per_s']:.0f} env/s  {scalars['perf/opt_steps_per_s']:.0f} updates/s  "
                f"ratio {scalars['perf/updates_per_env_step']:.3g}  {bottleneck(scalars)}"
            )

    def evaluation(self, statistics: Mapping[str, float], env_steps: int, is_best: bool) -> None:
        """One line per evaluation."""
        mean = statistics["mean"]
        self.best = mean if self.best is None else max(self.best, mean)
        target = "" if self.target is None else f"  target {self.target:g}"
        self.score = f"{mean:.1f} at step {env_steps:,}  best {self.best:.1f}{target}"
        star = "  (best)" if is_best else ""
        self.line(
            f"eval at step {env_steps:,}: return {mean:.1f} +- {statistics['std']:.1f} "
            f"[{statistics['min']:.1f}, {statistics['max']:.1f}] over {statistics['episodes']:.0f} episodes{star}"
        )

    def line(self, text: str) -> None:
        """Print a line, above the table where there is one."""
        if self.live is not None:
            self.live.console.print(text, highlight=False)
        else:
            with suppress(OSError):  # it goes to a file on a disk that is full
                print(text, file=self.out, flush=True)

    def close(self) -> None:
        """Give the terminal back."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _eta(self, env_steps: int) -> str:
        elapsed = time.monotonic() - self.started
        seconds = int(max(0.0, elapsed * (self.total - env_steps) / env_steps)) if env_steps else 0
        return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def _table(self, scalars: Mapping[str, float], env_steps: int) -> Any:
        from rich.table import Table

        table = Table(title=self.title, show_header=False, title_justify="left")
        table.add_row("progress", f"{env_steps:,} / {self.total:,} env steps   eta {self._eta(env_steps)}")
        table.add_row("evaluation", self.score)
        speed = ("env_steps_per_s", "opt_steps_per_s", "updates_per_env_step")
        env, opt, ratio = (scalars[f"perf/{name}"] for name in speed)
        table.add_row("speed", f"{env:.0f} env/s   {opt:.0f} updates/s   ratio {ratio:.3g}")
        worker, trainer = scalars["perf/worker_wait_frac"], scalars["perf/trainer_wait_frac"]
        lag = scalars.get("async/policy_lag", 0.0)
        table.add_row("waits", f"policy lag {lag:.0f} updates   worker {worker:.0%}   trainer {trainer:.0%}")
        losses = [f"{tag[6:]} {value:.3g}" for tag, value in scalars.items() if tag.startswith("train/")]
        table.add_row("training", "   ".join(losses) or "-")
        size = scalars["replay/size"]
        table.add_row(
            "machine",
            f"{scalars['system/rss_mb']:.0f} MB   cpu {scalars['system/cpu_percent']:.0f}%   replay {size:,.0f}",
        )
        table.add_row("bottleneck", bottleneck(scalars))
        return table


def bottleneck(scalars: Mapping[str, float]) -> str:
    """Who waits for whom, and what to change."""
    worker, trainer = scalars["perf/worker_wait_frac"], scalars["perf/trainer_wait_frac"]
    if worker > 0.2 and worker > trainer:
        if not scalars["perf/opt_steps"]:
            return "workers wait for the trainer's first updates"
        ratio = "orchestrator.sample_insert_ratio (on-policy: algo.epochs)"
        return f"workers wait for the trainer: lower {ratio} or trainer.batch_size"
    if trainer > 0.2:
        return "the trainer waits for the workers: raise worker.num or worker.envs"
    return "both sides are busy"

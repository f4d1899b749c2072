"""stop.return in mode=single and sync: equal seeds end at the same step, however long the evaluations take."""

import hashlib
import math

import numpy as np
import pytest
from choices import some
from graphs import COUNTER, weights

from drl_cli.runtime import program
from drl_cli.runtime.edges import manage_link
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.restore import EVALUATION
from drl_cli.runtime.roles.evaluator import Score
from drl_cli.runtime.roles.manage import Manage

SYNC = ("mode=sync", "worker.num=2")
ARGS = (COUNTER, "manage.eval_period=128", "stop.return=5", "total_env_steps=2000")
SLOW = 300


class Scripted(Manage):
    """Scores a version with its env steps / 100."""

    def evaluate(self, params_header, params):
        self.mean = params_header.env_steps / 100
        return super().evaluate(params_header, params)

    def _score(self, params):
        return Score(np.full(2, self.mean), np.ones(2, np.int64), 0)


@pytest.fixture
def slowly(run_graph, monkeypatch):
    """Run a graph that looks `delay` times for the result of an evaluation; a signal ends the run at `stop_at`."""
    monkeypatch.setattr(program, "Manage", Scripted)
    looks, wait = {}, manage_link.wait

    def is_ready(ref):
        if isinstance(ref.value, EvalReport):
            looks[id(ref)] = looks.get(id(ref), 0) + 1
        return looks.get(id(ref), math.inf) > slowly.delay

    monkeypatch.setattr(manage_link, "wait", lambda refs, timeout_s: [r for r in wait(refs, timeout_s) if is_ready(r)])

    def slowly(*overrides, delay, stop_at=None, **options):
        def started(graph):
            housekeeping = graph._housekeeping

            def with_signal():
                housekeeping()
                if stop_at is not None and graph.progress.env_steps >= stop_at:
                    graph.interrupt()

            graph._housekeeping = with_signal

        looks.clear()
        slowly.delay = delay
        return run_graph(*ARGS, *overrides, started=started, **options)

    return slowly


def result(graph):
    best = hashlib.sha256((graph.folder / "checkpoints/best/model.safetensors").read_bytes()).hexdigest()
    steps = [int(line.split(",")[0]) for line in (graph.folder / "eval.csv").read_text().splitlines()[1:]]
    return graph.progress.env_steps, weights(graph), best, steps, [step for step, _ in graph.progress.scores]


@pytest.mark.parametrize(
    "args", [pytest.param(("mode=single",), id="single"), pytest.param(SYNC, id="sync", marks=pytest.mark.exhaustive)]
)
def test_a_run_ends_at_the_same_step_however_long_its_evaluations_take(slowly, args):
    graphs = [slowly(*args, delay=delay) for delay in (0, 1, SLOW)]
    first, *others = [result(graph) for graph in graphs]
    assert others == [first] * 2
    assert [(graph.stop_reason, graph.manage.skipped) for graph in graphs] == [("return", 0)] * 3
    assert first[3] == [128, 256, 384, 512, first[0]]
    assert 512 + 32 <= first[0] <= 512 + 64  # a quarter of the period later


@pytest.mark.parametrize("delay", [0, SLOW], ids=["evaluated", "evaluating"])
@pytest.mark.parametrize("stop_at", some([384, 512], 384))
def test_a_resumed_run_repeats_the_evaluation_that_a_signal_left_undecided(slowly, delay, stop_at):
    args = ("mode=single", "worker.block_rows=16")
    whole = slowly(*args, delay=0)
    part = slowly(*args, delay=delay, stop_at=stop_at)
    assert (part.progress.env_steps, part.stop_reason) == (stop_at, "signal")
    assert (part.folder / "checkpoints/last" / EVALUATION).exists()
    rest = slowly(*args, delay=1, run=part.folder)
    assert result(rest) == result(whole)
    assert not (rest.folder / "checkpoints/last" / EVALUATION).exists()


@pytest.mark.parametrize("stop_at", [440, 600])
def test_a_decided_evaluation_is_not_repeated(slowly, stop_at):
    part = slowly("mode=single", "stop.return=1000", delay=0, stop_at=stop_at)
    assert not (part.folder / "checkpoints/last" / EVALUATION).exists()


def test_async_does_not_wait_for_an_evaluation(slowly):
    graph = slowly("mode=async", "stop.return=1", delay=SLOW)
    assert (graph.stop_reason, graph.reports.undecided) == ("total_env_steps", None)
    assert graph.manage.skipped > 0

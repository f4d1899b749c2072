"""Chains without a compiler: programs that a plain interpreter runs, and algorithms whose updates are such programs."""

import torch

from drl_cli.chains import chain as chain_module
from drl_cli.chains.chain import Chain
from drl_cli.chains.program import Program, in_place
from drl_cli.chains.when import When


class Interpreted(Program):
    """A program that torch's interpreter of graphs runs."""

    def __init__(self, record, library):
        self._keep(record)
        self._runner, self._native = self, None
        self._graph = torch.fx.GraphModule({}, in_place(record))

    def run(self, inputs):
        assert len(inputs) == len(list(self._graph.graph.find_nodes(op="placeholder")))
        with torch.no_grad():
            return list(torch.fx.Interpreter(self._graph).run(*inputs))


class Instant:
    """A compilation that is ready after `Instant.delay` questions, or fails with `Instant.problem`."""

    made, delay, problem, closed = 0, 0, None, 0
    cpu_s = 1.6

    def __init__(self, record, is_urgent):
        Instant.made += 1
        self.left = 0 if is_urgent else Instant.delay
        self.is_urgent = is_urgent

    def library(self, wait):
        if Instant.problem:
            raise chain_module.NotCompiled(Instant.problem)
        self.left -= 1
        return "library" if wait or self.left < 0 else None

    def close(self):
        Instant.closed += 1


def without_compiler(monkeypatch):
    """Make chains run interpreted programs. Return the class that stands for a compilation."""
    monkeypatch.setattr(chain_module, "Compilation", Instant)
    monkeypatch.setattr(chain_module, "Program", Interpreted)
    for name, value in {"made": 0, "delay": 0, "problem": None, "closed": 0}.items():
        monkeypatch.setattr(Instant, name, value)
    return Instant


def chained_learn(algorithm, when, least=int):
    """Return `learn` of an algorithm as a chain, if the algorithm makes one step in each update."""
    if not algorithm.is_one_step:
        return lambda batch, counts: dict(algorithm.learn(batch, counts).metrics)

    def update(columns, counts):
        made = algorithm.learn(dict(columns), counts)
        return dict(made.metrics), made.priorities, algorithm.optimizer.norm

    chain = Chain(update, algorithm, when, lambda: ({}, None, None), least=least)
    return lambda batch, counts: chain(batch, counts)[0]


__all__ = ["When", "chained_learn", "without_compiler"]

"""Cut: updates of several trainers as programs between which the trainers average, with an interpreter of graphs."""

import threading

import pytest
import torch
from choices import some
from graphs import quick_compose
from interpreted import Interpreted, chained_learn, without_compiler
from peers import together

from drl_cli.algos.base import Counts
from drl_cli.api import Context
from drl_cli.chains import chain as chain_module
from drl_cli.chains.chain import MOST_RECORDS
from drl_cli.chains.compiling import NotCompiled
from drl_cli.chains.cut import Segments, cut
from drl_cli.chains.present import recording
from drl_cli.chains.tape import Tape
from drl_cli.chains.when import When
from drl_cli.testing.case import Case, Together

CASES = {
    "sac": ("sac",),
    "sac-skip": ("sac",),
    "td3": ("td3", "optimizer.max_norm=0.5", "optimizer.schedule=linear"),
    "dqn-sequences": ("dqn", "replay=sequences", "env=CartPole-v1"),
}


@pytest.fixture(autouse=True)
def instant(monkeypatch):
    monkeypatch.setattr("drl_cli.testing.case.compose", quick_compose)
    return without_compiler(monkeypatch)


def double(tensor):
    tensor *= 2.0


class Averaging:
    """Two steps in an update, each with an effect, of which the second step reads what the first one wrote."""

    def __init__(self):
        self.w, self.grad, self.count = torch.ones(2, 3), torch.zeros(6), torch.zeros(())

    def update(self, x):
        for factor in (1.0, 3.0):
            loss = (x @ self.w.T).square().sum()
            self.grad.copy_((factor * (x @ self.w.T).T @ x).flatten())
            if (tape := recording()) is None:
                double(self.grad)
            else:
                tape.effect(double, self.grad)
            self.w.sub_(0.01 * self.grad.view(2, 3))
            self.count.add_(self.grad[0])
        return loss, self.w.T.sum(1), x.sum()

    def tensors(self):
        return [self.w, self.grad, self.count]


def test_the_segments_of_an_update_with_two_effects_make_the_same_update():
    plain, taped = Averaging(), Averaging()
    x, tape = torch.arange(12.0).view(4, 3) / 10, Tape()
    with tape:
        tape.input(x)
        outputs = taped.update(x)
    record = tape.record(outputs)
    parts = cut(record)
    torch.testing.assert_close(list(outputs), list(plain.update(x)))
    assert [len(segment.effects) for segment in parts.segments] == [1, 1, 0]
    program = Segments(record, parts, [Interpreted(segment.record, "") for segment in parts.segments])
    xs = torch.stack([x + 1.0, x - 0.5, x])
    expected = [plain.update(row) for row in xs]
    for made, values in zip(program.updates([xs], [(), (), ()]), zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(made, torch.stack(values))
    torch.testing.assert_close(taped.tensors(), plain.tensors())


def test_effects_that_do_not_need_each_other_share_a_cut():
    a, b = torch.ones(3), torch.ones(2)
    tape = Tape()
    with tape:
        for x in (a, b):
            tape.effect(double, grad := x * 3.0)
            x.add_(grad)
    parts = cut(tape.record([]))
    assert [len(segment.effects) for segment in parts.segments] == [2, 0]


def test_what_depends_only_on_storages_is_no_value_between_segments():
    moment, grad = torch.ones(50), torch.zeros(50)
    tape, x = Tape(Counts(1, 0)), torch.ones(50)
    with tape:
        tape.input(x)
        grad.copy_(x * moment)
        tape.effect(double, grad)
        moment.mul_(0.9).add_(grad, alpha=0.1)
        moment.add_(tape.scalar(lambda counts: float(counts.opt_steps)))
        result = moment.sum()
    record = tape.record([result])
    parts = cut(record)
    before, after = parts.segments
    assert (len(before.outputs), len(after.inputs)) == (1, 2)  # the gradient and the scalar, but not 0.9 * moment
    assert not before.record.written
    program = Segments(record, parts, [Interpreted(segment.record, "") for segment in parts.segments])
    first = moment * 1.1 + 5.0
    expected = first * 1.1 + 7.0
    (made,) = program.updates([torch.stack([x, x])], [Counts(5, 0), Counts(7, 0)])
    torch.testing.assert_close(made, torch.stack([first.sum(), expected.sum()]))
    torch.testing.assert_close(moment, expected)


def learn(case, time, skips, rounds=12):
    """Return, for each of two trainers, its states after all updates, how often Python made one, and its notes."""
    groups, results = Together.pair(), {}
    algorithms = []
    for group in groups:
        torch.manual_seed(0)  # the first weights of some algorithms come from torch's default generator
        algorithms.append(case.algorithm(0, case.context(group, skips=skips)))

    def trainer(rank):
        algorithm, when, python = algorithms[rank], When(time) if time else None, []
        update = algorithm.update
        algorithm.update = lambda *args: (python.append(0), update(*args))[1]
        make = chained_learn(algorithm, when, groups[rank].least) if when else algorithm.learn
        states = []
        for i in range(rounds):
            rows = slice(8 * rank, 8 * rank + 8)
            batch = {name: column[rows].contiguous() for name, column in case.batch(i, 16).items()}
            if skips and (rank, i) == (1, 5):
                batch["reward"][3] = torch.inf
            algorithm.optimizer.schedule(i)
            make(batch, Counts(i, 10 * i))
            states.append({key: tensor.clone() for key, tensor in algorithm.state().items()})
        results[rank] = states, len(python), when and when.take_notes()

    groups[0].run(trainer)
    return results[0], results[1]


@pytest.mark.slow
@pytest.mark.parametrize("time", ["before", "beside"])
@pytest.mark.parametrize("name", some(CASES, "sac-skip", "td3"))
def test_two_trainers_with_programs_equal_two_without(instant, name, time):
    instant.delay = 3
    algo, *words = CASES[name]
    case = Case(algo, "network.hidden=[16,16]", *words)
    plain, chained = (learn(case, choice, name.endswith("skip")) for choice in (None, time))
    for rank, (states, python, notes) in enumerate(chained):
        assert python < 12
        assert len(notes) == 1
        assert "take over" in notes[0][1]
        for i, state in enumerate(states):
            for key, tensor in state.items():
                assert torch.equal(tensor, chained[0][0][i][key]), (i, key)
                torch.testing.assert_close(tensor, plain[rank][0][i][key], rtol=1e-4, atol=1e-6, msg=f"{i}: {key}")


class Uneven:
    """A compilation that is ready after 5 questions of rank 1, or fails there."""

    here, fails = threading.local(), False
    cpu_s = 0.0

    def __init__(self, record, is_urgent):
        self.left = 5 * Uneven.here.rank

    def library(self, wait):
        if Uneven.fails and Uneven.here.rank == 1:
            raise NotCompiled("no space")
        self.left -= 1
        return "library" if wait or self.left < 0 else None

    def close(self):
        pass


def averaging(group, whens, trouble):
    """Return the results of 12 updates that add the mean of x + w over the trainers to w, and Python's updates."""
    Uneven.here.rank = group.rank
    w, python = torch.zeros(3), []

    def update(columns, counts):
        python.append(0)
        group.mean_(mean := columns["x"] + w)
        w.add_(mean)
        if (group.rank, trouble) == (1, "reads"):
            w[0].item()
        elif (group.rank, trouble) == (1, "differs"):
            w.mul_(1.0 + 1e-9 * len(python))
        return (w.clone(),)

    chain = Context(torch.device("cpu"), group, chain=whens[group.rank]).chain_of(update, w, tuple)
    rows = [({"x": torch.full((3,), float(i + group.rank))}, i) for i in range(12)]
    return [chain(x, Counts(i, 0))[0] for x, i in rows], len(python)


@pytest.mark.parametrize("time", ["before", "beside"])
@pytest.mark.parametrize("trouble", [None, "fails", "reads", "differs"])
def test_trainers_take_over_or_give_up_together(monkeypatch, time, trouble):
    monkeypatch.setattr(chain_module, "Compilation", Uneven)
    monkeypatch.setattr(Uneven, "fails", trouble == "fails")
    whens, w = [When(time), When(time)], torch.zeros(3)
    expected = [w.add_(i + 0.5 + w).clone() for i in range(12)]
    for made, python in together(averaging, whens, trouble):
        torch.testing.assert_close(torch.stack(made), torch.stack(expected))
        undone = {"fails": 2, "differs": MOST_RECORDS}.get(trouble, 0) if time == "before" else 0
        assert python == ({"before": 2, "beside": 7}[time] if trouble is None else 12 + undone)
    texts = [[text for _, text in when.take_notes()] for when in whens]
    assert all(len(found) == 1 for found in texts)
    assert all(("take over" in found[0]) is (trouble is None) for found in texts)
    assert ("another trainer" in texts[0][0]) is (trouble in ("fails", "reads"))

import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import pytest
import torch
from peers import on_group, peers, pid

from drl_cli.optim.context import Context
from drl_cli.optim.group import PeerLost, ProcessGroup


def mean(group, values):
    tensor = torch.tensor(values)
    group.mean_(tensor)
    return tensor.tolist()


def noise(group, rows):
    context, generator = Context(torch.device("cpu"), group), torch.Generator().manual_seed(3)
    return torch.stack([context.randn(rows, 2, generator) for _ in range(2)]).numpy()


def test_each_trainer_draws_its_share_of_the_noise_of_one():
    alone = noise(ProcessGroup(), 12)
    parts = [noise(ProcessGroup(rank, 3), 4) for rank in range(3)]
    for rank, part in enumerate(parts):
        assert (part == alone[:, 4 * rank : 4 * rank + 4]).all()
    assert (alone[0] != alone[1]).any()


def test_the_mean_over_processes_and_the_error_when_one_is_killed():
    with peers(2) as ranks:
        calls = [rank.submit(on_group, mean, [float(i), 10.0 * i]) for i, rank in enumerate(ranks)]
        assert [call.result() for call in calls] == [[0.5, 5.0]] * 2
        number = ranks[1].submit(on_group, pid).result()
        waiting = ranks[0].submit(on_group, mean, [1.0])
        os.kill(number, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(PeerLost, match="trainer 0 of 2 lost another"):
            waiting.result()
        assert time.monotonic() - started < 30  # half of its time-out
        with pytest.raises(BrokenProcessPool):
            ranks[1].submit(on_group, pid).result()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_member_that_stays_away_is_an_error_after_the_time_out():
    with peers(2, timeout_s=2.0) as ranks:
        with pytest.raises(PeerLost, match="lost another"):
            ranks[0].submit(on_group, mean, [1.0]).result()
        late = ranks[1].submit(on_group, mean, [2.0])
        with pytest.raises(PeerLost, match="lost another"):  # a late answer might belong to the call before
            ranks[0].submit(on_group, mean, [1.0]).result()
        with pytest.raises(PeerLost, match="lost another"):
            late.result()


def test_joining_without_other_trainers_is_an_error():
    group = ProcessGroup(0, 2, timeout_s=1.0)
    port = group.listen("127.0.0.1")
    with pytest.raises(PeerLost, match="trainer 0 of 2 found no group"):
        group.join("127.0.0.1", port, torch.device("cpu"))


FACTOR = 2.0


class Scale:
    def __init__(self, size, offset):
        self.offset, self.weight = offset, torch.ones(size)

    def of(self, rows):
        return FACTOR * self.weight * rows["x"] + self.offset


@pytest.mark.slow
@pytest.mark.exhaustive
def test_compiled_functions_check_arguments_and_plain_values_but_neither_globals_nor_own_tensors(monkeypatch):
    """The checks do not depend on the backend; a backend that compiles nothing needs no C++ compiler."""
    sizes = []

    def backend(graph, inputs, **_):
        sizes.extend(x for x in inputs if not isinstance(x, torch.Tensor))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compiled = Context(torch.device("cpu"), compiles=True).compiled
    one, other = Scale(3, 0.0), Scale(2, 1.0)
    of_one, of_other = compiled(one.of), compiled(other.of)
    rows = {"x": torch.ones(3)}
    assert of_one(rows).tolist() == [2.0] * 3
    assert of_other({"x": torch.ones(2)}).tolist() == [3.0] * 2  # shares the code, not the compiled program
    assert sizes == []  # no size is an input of the program, although the tensors of `other` have other sizes
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    one.weight += 1.0
    assert of_one(rows).tolist() == [4.0] * 3
    assert of_one({"x": torch.ones(2, 3)}).tolist() == [[10.0] * 3] * 2  # another shape: compiled again
    one.offset = 1.0
    assert of_one(rows).tolist() == [11.0] * 3
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    one.weight = one.weight.double()[:, None].float()[:, 0]
    assert of_one({"x": 3 * torch.ones(3)}).tolist() == [31.0] * 3

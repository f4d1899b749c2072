"""Tape: an update that is recorded while it runs is the same update as a graph."""

import re

import numpy as np
import pytest
import torch
from tensor_updates import UPDATES, Agent, decides, in_place_chain, inputs, reads_item, reads_numpy, selects

from drl_cli.algos.base import Counts
from drl_cli.chains.memory import Memory
from drl_cli.chains.present import recording, untaped
from drl_cli.chains.program import in_place
from drl_cli.chains.tape import Tape, Untraceable


def recorded(update, agent, x, counts=()):
    tape = Tape(counts)
    with tape:
        tape.input(x)
        outputs = update(agent, x)
    return tape, tape.record(outputs), outputs


def run(record, x):
    drawn = [draw() for draw in record.draws]
    with torch.no_grad():
        return torch.fx.Interpreter(torch.fx.GraphModule({}, in_place(record))).run(*record.storages, x, *drawn)


@pytest.mark.parametrize("update", UPDATES)
def test_a_recorded_update_runs_as_without_a_tape_and_its_graph_makes_the_same_update(update):
    plain, taped = Agent(), Agent()
    torch.manual_seed(0)
    expected = [[out.clone() for out in update(plain, inputs(seed))] for seed in range(3)]
    torch.manual_seed(0)
    _, record, outputs = recorded(update, taped, inputs(0))
    torch.testing.assert_close(list(outputs), expected[0])
    for seed in (1, 2):
        torch.testing.assert_close(list(run(record, inputs(seed))), expected[seed])
    torch.testing.assert_close(taped.tensors(), plain.tensors())
    assert torch.equal(taped.noise.get_state(), plain.noise.get_state())


@pytest.mark.parametrize("update", UPDATES)
def test_rewind_undoes_an_update_and_two_records_of_it_are_equal(update):
    agent = Agent()
    before, state = [tensor.clone() for tensor in agent.tensors()], agent.noise.get_state()
    torch.manual_seed(5)
    tape, record, _ = recorded(update, agent, inputs(0))
    tape.rewind()
    assert all(torch.equal(tensor, old) for tensor, old in zip(agent.tensors(), before, strict=True))
    assert torch.equal(agent.noise.get_state(), state)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    again = recorded(update, agent, inputs(1))[1]
    assert record.equals(again)


def test_a_part_that_is_written_alone_is_an_input_of_its_own():
    def update(agent, x):
        agent.flat[2:4].add_(x.sum())
        return (agent.flat[2:4] * 2.0,)

    record = recorded(update, agent := Agent(), inputs(0))[1]
    assert ([len(storage) for storage in record.storages], record.written) == ([2, 2, len(agent.flat) - 4], [1])
    assert not any(node.target is torch.ops.aten.cat.default for node in record.graph.nodes)


def test_only_written_storages_are_returned_and_results_that_nothing_needs_are_left_out():
    record = recorded(lambda agent, x: (x.exp(), (agent.flat * 2).sum())[:1], Agent(), inputs(0))[1]
    assert record.written == []
    assert [node.target for node in record.graph.nodes if node.op == "call_function"] == [torch.ops.aten.exp.default]
    agent = Agent()
    record = recorded(lambda agent, x: (agent.flat.add_(1.0),), agent, inputs(0))[1]
    assert [record.storages[i].data_ptr() for i in record.written] == [agent.flat.data_ptr()]


@pytest.mark.parametrize(
    "other",
    [
        lambda agent, x: (x * 3.0,),
        lambda agent, x: (x * 2.0 + agent.flat[0],),
        lambda agent, x: (x * 2.0 * torch.tensor([1.0, 1.0, 1.0, 2.0]),),
    ],
)
def test_records_of_other_updates_or_with_other_constants_are_not_equal(other):
    agent = Agent()
    record = recorded(lambda agent, x: (x * 2.0 * torch.tensor([1.0, 1.0, 1.0, 1.0]),), agent, inputs(0))[1]
    assert not record.equals(recorded(other, agent, inputs(0))[1])


def lists_values(agent, x):
    return (x * x[0].tolist()[0],)  # here


def draws_by_probability(agent, x):
    return (torch.multinomial(x.softmax(-1), 1),)  # here


def calls_an_outside_operator(agent, x):
    return (torch.ops.tests_chains.twice(x),)  # here


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (reads_item, "needs the value of a tensor in Python"),
        (reads_numpy, "Tensor.numpy: the update needs the value of a tensor in Python"),
        (decides, "needs the value of a tensor in Python"),
        (selects, "the result's size depends on values"),
        (lists_values, "Tensor.tolist"),
        (draws_by_probability, "random numbers that depend on tensors"),
        (calls_an_outside_operator, "is not one of torch"),
    ],
)
def test_an_update_that_cannot_be_a_graph_runs_all_the_same_and_its_line_is_named(update, says):
    library = torch.library.Library("tests_chains", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CPU")
    torch.manual_seed(0)
    expected = update(Agent(), inputs(0))
    place = f"{re.escape(update.__code__.co_filename)}:{update.__code__.co_firstlineno + 1}"
    torch.manual_seed(0)
    tape = Tape()
    with tape:
        tape.input(x := inputs(0))
        outputs = update(Agent(), x)
    torch.testing.assert_close(list(outputs), list(expected))
    with pytest.raises(Untraceable, match=rf"^{place}: .*{re.escape(says)}"):
        tape.record(outputs)
    library._destroy()


def test_scalars_are_computed_from_counts_in_every_update():
    def update(agent, x):
        return (x * recording().scalar(lambda counts: 1.0 / (1 + counts[0])),)

    _, record, (out,) = recorded(update, Agent(), inputs(0), Counts(3, 8))
    torch.testing.assert_close(out, inputs(0) / 4)
    assert [compute(Counts(9, 8)) for compute in record.scalars] == [0.1]


def test_conditions_are_collected_and_a_tensor_made_untaped_is_an_input():
    kept = {}

    def update(agent, x):
        recording().require(x.isfinite().all())
        if "buffer" not in kept:
            with untaped():
                kept["buffer"] = torch.zeros(4)
        kept["buffer"].add_(x[0])
        return (x,)

    tape, record, _ = recorded(update, Agent(), inputs(0))
    assert [bool(condition) for condition in tape.conditions] == [True]
    assert record.demands
    assert [record.storages[i].data_ptr() for i in record.written] == [kept["buffer"].data_ptr()]
    assert recording() is None


def test_an_update_that_raises_leaves_no_tape_behind():
    with pytest.raises(ZeroDivisionError), Tape():
        _ = np.array([1]) / (1 // 0)
    assert recording() is None


def test_an_error_of_the_record_does_not_reach_the_update(monkeypatch):
    def broken(self, geometry):
        raise RuntimeError("a fault of the record")

    monkeypatch.setattr(Memory, "read", broken)
    tape = Tape()
    with tape:
        tape.input(x := inputs(0))
        outputs = in_place_chain(agent := Agent(), x)
    plain = in_place_chain(other := Agent(), inputs(0))
    torch.testing.assert_close(list(outputs), list(plain))
    torch.testing.assert_close(agent.tensors(), other.tensors())
    with pytest.raises(Untraceable, match="cannot be recorded: RuntimeError"):
        tape.record(outputs)


def test_functions_of_torch_func_are_recorded():
    def update(agent, x):
        slopes = torch.func.vmap(torch.func.grad(lambda row: (row * agent.flat[:4]).square().sum()))(x)
        agent.flat[:4].sub_(slopes.mean(0))
        return (slopes,)

    plain, taped = Agent(), Agent()
    expected = [update(plain, inputs(seed))[0].clone() for seed in range(2)]
    _, record, outputs = recorded(update, taped, inputs(0))
    torch.testing.assert_close(outputs[0], expected[0])
    torch.testing.assert_close(run(record, inputs(1))[0], expected[1])
    torch.testing.assert_close(taped.tensors(), plain.tensors())


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, n: x * n,
        lambda x, n: x + torch.tensor(n),
        lambda x, n: torch.full_like(x, n),
        lambda x, n: torch.add(x, x, alpha=n),
        lambda x, n: x[:, :n],
    ],
)
def test_a_count_that_torch_reads_as_a_number_allows_only_this_count(compute):
    tape = Tape(Counts(3, 2))
    with tape:
        tape.input(x := inputs(0))
        out = compute(x, tape.counts.env_steps)
    torch.testing.assert_close(out, compute(inputs(0), 2))
    path = tape.record([out]).path
    assert path.allows(Counts(9, 2))
    assert not path.allows(Counts(3, 4))

"""Log: an update that is recorded while it runs is the same list of tensor operations, bit for bit."""

import gc
import re
import weakref

import pytest
import torch
from tensor_updates import UPDATES, Agent, decides, in_place_chain, inputs, reads_item, reads_numpy, selects
from torch import nn

from drl_cli.algos.base import Counts
from drl_cli.chains import bindings
from drl_cli.chains.log import Log
from drl_cli.chains.present import recording, untaped


def recorded(update, agent, x, counts=()):
    log = Log(counts)
    with log:
        log.input(x)
        outputs = update(agent, x)
    log.finish(outputs)
    return log, outputs


def network(agent, x):
    """A gradient that reads tensors which autograd saved, and steps of torch's optimizer and of a target."""
    weight = nn.Parameter(agent.flat[:12].view(3, 4))
    weight.grad = agent.grad[:12].view(3, 4)
    out = torch.tanh(x @ weight.t()).softmax(-1)
    agent.grad.zero_()
    (out[:, 0] * x.detach()[:, 1]).square().mean().backward()
    agent.count += 1
    torch._fused_adam_(
        [agent.flat[:12]], [agent.grad[:12]], [agent.flat[12:24]], [agent.grad[12:24].abs_()], [], [agent.count[:1]],
        lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return out.detach(), out.detach().max(-1).values


def chance(agent, x):
    return torch.multinomial(x.softmax(-1), 1, generator=agent.noise), torch.dropout(x, 0.5, True)


@pytest.mark.parametrize("update", [*UPDATES, network, chance])
def test_a_replay_computes_the_same_bits_as_the_update(update):
    plain, logged = Agent(), Agent()
    torch.manual_seed(0)
    expected = [[out.clone() for out in update(plain, inputs(seed))] for seed in range(4)]
    torch.manual_seed(0)
    log, outputs = recorded(update, logged, inputs(0))
    assert log.reason is None
    assert all(torch.equal(one, two) for one, two in zip(outputs, expected[0], strict=True))
    replay = log.function()
    for seed in (1, 2, 3):
        with torch.no_grad():
            results = replay(inputs(seed))
        assert all(torch.equal(one, two) for one, two in zip(results, expected[seed], strict=True)), seed
    assert all(torch.equal(one, two) for one, two in zip(logged.tensors(), plain.tensors(), strict=True))
    assert torch.equal(logged.noise.get_state(), plain.noise.get_state())


@pytest.mark.parametrize("update", UPDATES)
def test_the_operators_themselves_compute_the_same(update, monkeypatch):
    monkeypatch.setattr(bindings, "_known", {})
    monkeypatch.setattr(bindings, "_candidate", lambda func: None)
    test_a_replay_computes_the_same_bits_as_the_update(update)


def test_most_operators_are_called_by_torchs_functions():
    log, _ = recorded(network, Agent(), inputs(0))
    called = [value for value in log._values.values() if callable(value)]
    slow = [function for function in called if isinstance(function, torch._ops.OpOverload)]
    assert len(slow) < len(called) / 3, slow


def test_a_function_that_computes_something_else_is_not_taken(monkeypatch):
    monkeypatch.setattr(bindings, "_known", {})
    for wrong in (lambda *args, **kw: args[0], lambda *args, **kw: torch.ones(7), lambda: None):
        monkeypatch.setattr(bindings, "_candidate", lambda func, wrong=wrong: wrong)
        bindings._known.clear()
        test_a_replay_computes_the_same_bits_as_the_update(in_place_chain)


def test_a_row_of_a_larger_tensor_may_begin_elsewhere_in_the_next_call():
    rows = torch.arange(24.0).view(3, 2, 4).unbind()

    def update(agent, x):
        with untaped():
            hidden = x[:, 1:]
        return x.detach()[:, 1:] * 2, hidden * 3

    log, _ = recorded(update, None, rows[0])
    for row in rows:
        results = log.function()(row)
        assert all(torch.equal(one, two) for one, two in zip(results, update(None, row), strict=True))


def test_a_place_in_the_memory_of_an_input_that_python_computes_ends_the_record():
    def update(agent, x):
        return (torch.as_strided(x, (2,), (1,), x.storage_offset() + 3) + 1,)

    assert "place in memory" in recorded(update, None, inputs(0))[0].reason


def test_what_nothing_needs_is_left_out_and_every_tensor_is_freed_after_its_last_use():
    def update(agent, x):
        unused = x.exp() + 1
        del unused
        return ((x * 2).sum(),)

    log, _ = recorded(update, Agent(), inputs(0))
    lines = log.source().splitlines()
    assert len(lines) == 6  # def, product, del of x, sum, del of the product, return
    assert [line.strip()[:3] for line in lines[1::2]] == [lines[1].strip()[:3], lines[3].strip()[:3], "ret"]
    assert "del x0" in lines[2]
    assert lines[4].strip().startswith("del t")


def test_the_tensors_of_the_recorded_update_are_freed():
    kept = []

    def update(agent, x):
        large = x * agent.flat[0]
        kept.append(weakref.ref(large))
        return (large.sum() + agent.flat.sum(),)

    log, _ = recorded(update, agent := Agent(), inputs(0))
    gc.collect()
    assert kept[0]() is None
    torch.testing.assert_close(log.function()(inputs(1))[0], update(agent, inputs(1))[0])


def other_operation(agent, x):
    return (x * 3.0 * torch.tensor([1.0, 1.0, 1.0, 1.0]),)


def other_constant(agent, x):
    return (x * 2.0 * torch.tensor([1.0, 1.0, 1.0, 2.0]),)


@pytest.mark.parametrize("other", [other_operation, other_constant])
def test_logs_of_other_updates_or_with_other_constants_are_not_equal(other):
    def update(agent, x):
        return (x * 2.0 * torch.tensor([1.0, 1.0, 1.0, 1.0]),)

    log, again = (recorded(update, Agent(), inputs(seed))[0] for seed in (0, 1))
    assert log.equals(again)
    assert not log.equals(recorded(other, Agent(), inputs(0))[0])


def test_logs_with_infinite_constants_are_equal():
    def update(agent, x):
        return x.clamp(max=float("inf")), x.masked_fill(x > 0, float("nan")), x.masked_fill(x > 0, -float("inf"))

    logs = [recorded(update, Agent(), inputs(0))[0] for _ in range(2)]
    assert logs[0].equals(logs[1])
    results = logs[0].function()(inputs(1))
    torch.testing.assert_close(results, update(None, inputs(1)), equal_nan=True)


def test_logs_that_differ_only_in_a_type_are_not_equal():
    logs = [recorded(lambda agent, x: (x.to(agent),), kind, inputs(0))[0] for kind in (torch.float64, torch.float16)]
    assert logs[0].source() == logs[1].source()
    assert not logs[0].equals(logs[1])


def test_a_log_on_other_memory_is_not_equal_if_the_update_changes_it():
    def update(agent, x):
        agent.flat.add_(x.sum())
        copy = agent.constant * 2
        return (copy.add_(1.0),)

    agent, other = Agent(), Agent()
    first = recorded(update, agent, inputs(0))[0]
    assert not recorded(update, other, inputs(0))[0].equals(first)
    assert torch.equal(agent.flat, other.flat)
    assert recorded(update, agent, inputs(1))[0].equals(first)


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (reads_item, "needs the value of a tensor in Python"),
        (reads_numpy, "Tensor.numpy: the update needs the value of a tensor in Python"),
        (decides, "needs the value of a tensor in Python"),
        (selects, "the result's size depends on values"),
    ],
)
def test_an_update_that_reads_values_runs_all_the_same_and_its_line_is_named(update, says):
    log, outputs = recorded(update, Agent(), inputs(0))
    assert torch.equal(outputs[0], update(Agent(), inputs(0))[0])
    place = f"{re.escape(update.__code__.co_filename)}:{update.__code__.co_firstlineno + 1}"
    assert re.match(rf"^{place}: .*{re.escape(says)}", log.reason), log.reason
    assert recording() is None


def test_an_error_of_the_record_does_not_reach_the_update(monkeypatch):
    monkeypatch.setattr(Log, "_call", lambda self, args, kwargs: 1 / 0)
    log, outputs = recorded(in_place_chain, agent := Agent(), inputs(0))
    plain = in_place_chain(other := Agent(), inputs(0))
    assert all(torch.equal(one, two) for one, two in zip(outputs, plain, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(agent.tensors(), other.tensors(), strict=True))
    assert "cannot be recorded: ZeroDivisionError" in log.reason


def test_an_effect_keeps_its_tensor_though_no_operation_has_used_it_before():
    """The gradients of all parts are averaged as one tensor, which an update has only written in pieces."""
    grad, count, given = torch.ones(4), torch.zeros(()), []
    piece = grad[:2]

    def update(agent, x):
        piece.copy_(x[0, :2])
        recording().effect(given.append, grad) if recording() else given.append(grad)
        count.add_(1)
        return (x * 2.0,)

    log, _ = recorded(update, Agent(), inputs(0))
    replay = log.function()
    replay(inputs(1))
    assert [tensor.data_ptr() for tensor in given] == [grad.data_ptr()] * 2
    assert float(count) == 2.0
    assert torch.equal(piece, inputs(1)[0, :2])


def test_scalars_are_arguments_and_effects_are_called_in_every_replay():
    called = []

    def effect(tensor):
        called.append(tensor.clone())
        tensor.mul_(10.0)

    def update(agent, x):
        y = x * recording().scalar(lambda counts: 1.0 / (1 + counts[0]))
        recording().effect(effect, y)
        return (y + 1,)

    log, (out,) = recorded(update, Agent(), inputs(0), Counts(3, 8))
    torch.testing.assert_close(out, 10 * inputs(0) / 4 + 1)
    assert [compute(Counts(9, 8)) for compute in log.scalars] == [0.1]
    (out,) = log.function()(inputs(1), torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(out, 10 * inputs(1) / 2 + 1)
    torch.testing.assert_close(called, [inputs(0) / 4, inputs(1) / 2])


def test_a_demanded_condition_ends_the_record():
    def update(agent, x):
        recording().require(x.isfinite().all())
        return (x * 2,)

    assert "undone" in recorded(update, Agent(), inputs(0))[0].reason

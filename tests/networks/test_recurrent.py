import pytest
import torch
from networks import network

from drl_cli.networks.encoder import make_memory

KINDS = ("lstm", "gru")


def make(kind, seed=0, **changes):
    config = network(memory=kind, memory_size=5, **changes)
    return make_memory(config, 3, torch.Generator().manual_seed(seed))


def sequence(steps=7, rows=4, begun=((0, 0), (3, 1), (3, 2), (4, 1))):
    random = torch.Generator().manual_seed(2)
    begins = torch.zeros(steps, rows, dtype=torch.bool)
    for step, row in begun:
        begins[step, row] = True
    return torch.randn(steps, rows, 3, generator=random), begins, random


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [(), ((0, 1),), ((0, 0), (3, 1), (3, 2), (4, 1), (6, 3))])
def test_unrolling_equals_stepping(kind, begun):
    memory, (x, begins, random) = make(kind), sequence(begun=begun)
    state = torch.randn(4, memory.state_size, generator=random)
    before = state.clone()
    out, last = memory.unroll(x, state, begins)
    assert torch.equal(state, before)
    assert out.shape == (7, 4, memory.size)
    for t in range(7):
        state = torch.where(begins[t].unsqueeze(1), torch.zeros(()), state)
        step, state = memory.step(x[t], state)
        torch.testing.assert_close(out[t], step)
    torch.testing.assert_close(last, state)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_torchs_own_cell(kind):
    memory, (x, begins, random) = make(kind), sequence(begun=())
    cell = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}[kind](3, 5)
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in memory.cell.state_dict().items()})
    state = torch.randn(4, memory.state_size, generator=random)
    out, last = memory.unroll(x, state, begins)
    own = state if kind == "gru" else tuple(state.chunk(2, 1))
    for t in range(7):
        own = cell(x[t], own)
        torch.testing.assert_close(out[t], own if kind == "gru" else own[0])
    torch.testing.assert_close(last, own if kind == "gru" else torch.cat(own, 1))  # hidden, then cell


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_go_back_through_time_to_inputs_and_state_but_not_past_a_beginning(kind):
    memory, (x, begins, random) = make(kind), sequence(begun=((3, 1),))
    x.requires_grad_()
    state = torch.randn(4, memory.state_size, generator=random).requires_grad_()
    memory.unroll(x, state, begins)[0][-1].sum().backward()
    assert (x.grad[:, [0, 2, 3]] != 0).any(-1).all()
    assert (x.grad[3:, 1] != 0).any(-1).all()
    assert not x.grad[:3, 1].any()
    assert not state.grad[1].any()
    assert (state.grad[[0, 2, 3]] != 0).any(-1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", ["uniform", "orthogonal"])
def test_equal_seeds_give_equal_weights_and_torchs_own_generator_stays(kind, init):
    before = torch.get_rng_state()
    first, again, other = (make(kind, seed, init=init).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["cell.weight_hh_l0"], other["cell.weight_hh_l0"])


def test_orthogonal_weights_and_no_bias_but_that_of_the_forget_gate():
    state = make("lstm", init="orthogonal").state_dict()
    hidden = state["cell.weight_hh_l0"]
    torch.testing.assert_close(hidden.t() @ hidden, torch.eye(5), atol=1e-5, rtol=0)
    assert not state["cell.bias_hh_l0"].any()
    assert state["cell.bias_ih_l0"].tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10


@pytest.mark.parametrize("init", ["uniform", "orthogonal"])
def test_the_forget_gate_of_an_lstm_begins_open(init):
    """Its bias is 1 larger than those of the other gates, of which torch's order is input, forget, cell, output."""
    config = network(memory="lstm", memory_size=64, init=init)
    bias = make_memory(config, 3, torch.Generator().manual_seed(0)).cell.bias_ih_l0.detach().view(4, 64).mean(1)
    assert bias.tolist() == pytest.approx([0.0, 1.0, 0.0, 0.0], abs=0.05)

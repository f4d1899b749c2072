import numpy as np
import pytest
import torch

from drl_cli.chains.process_group import ProcessGroup
from drl_cli.errors import Refused
from drl_cli.optim import params as module
from drl_cli.optim.context import Context
from drl_cli.optim.params import Params
from drl_cli.optim.products import BFloat16, Products

CPU = Context(torch.device("cpu"))


class Net(torch.nn.Module):
    """Two linear layers, a frozen one, a running mean."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        self.fixed = torch.nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        return self.fixed(self.second(torch.tanh(self.first(x - self.mean))))


def batch(seed=1):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))


def test_parts_are_views_in_the_order_given():
    params = Params(CPU, first=2, none=0, second=3)
    params["second"].flat[0], params["first"].grad[1] = 7.0, 8.0
    assert (params.flat.tolist(), params.grad.tolist()) == ([0, 0, 7, 0, 0], [0, 8, 0, 0, 0])
    assert [params.part_of(i) for i in range(5)] == ["first", "first", "second", "second", "second"]


def test_an_adopted_module_computes_what_it_did_and_its_gradients_are_flat():
    net, plain = Net(), Net()
    params = Params(CPU, other=2, net=net)
    assert torch.equal(net(batch()), plain(batch()))
    assert len(params.flat) == 2 + 3 * 4 + 4 + 4 * 2 + 2  # the frozen layer is not trained
    net(batch()).sum().backward()
    plain(batch()).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters() if p.requires_grad])
    assert torch.equal(params["net"].grad, expected)
    params["net"].flat.zero_()
    assert not net.first.weight.any()


@pytest.mark.parametrize("how", ["none", "replaced"])
def test_gradients_that_are_no_views_any_more_are_collected(how):
    net = Net()
    params = Params(CPU, net=net)
    net(batch()).sum().backward()
    expected = params.grad.clone()
    params.grad.fill_(9.0)
    net.zero_grad(set_to_none=True)
    if how == "replaced":
        net(batch()).sum().backward()
    params.collect()
    assert torch.equal(params.grad, expected if how == "replaced" else torch.zeros_like(expected))
    net(batch()).sum().backward()  # into the views again
    assert torch.equal(params.grad, 2 * expected if how == "replaced" else expected)


def test_a_parameter_that_was_moved_is_refused_by_name():
    net = Net()
    params = Params(CPU, net=net)
    net.second.weight.data = net.second.weight.data.clone()
    with pytest.raises(Refused, match=r"net\.second\.weight was replaced or moved"):
        params.collect()


def test_a_target_follows_buffers_and_frozen_layers_included():
    net = Net()
    params = Params(CPU, net=net)
    target = params.target("net")
    before = target.module(batch())
    assert torch.equal(before, net(batch()))
    with torch.no_grad():
        net.first.weight += 1.0
        net.mean += 0.5
        net.fixed.weight += 1.0
    assert torch.equal(target.module(batch()), before)
    assert not any(p.requires_grad for p in target.module.parameters())
    old = target.flat.clone()
    params.follow(0.25)
    torch.testing.assert_close(target.flat, old + 0.25 * (params["net"].flat - old))
    target.copy()
    assert torch.equal(target(batch()), net(batch()))


def test_the_state_is_everything_and_comes_back(tmp_path):
    def make(seed):
        params = Params(CPU, net=Net(seed), value=2)
        params.target("net")
        params.generator("noise", seed)
        return params

    params, other = make(1), make(2)
    params.modules["net"].mean.fill_(3.0)
    params["value"].flat.fill_(4.0)
    torch.rand(3, generator=params.generators["noise"])
    state = params.state()
    other.load_state(state)
    assert {name: tensor.tolist() for name, tensor in other.state().items()} == {
        name: tensor.tolist() for name, tensor in state.items()
    }
    assert torch.equal(other.modules["net"](batch()), params.modules["net"](batch()))
    assert torch.equal(other.targets["net"].module(batch()), params.targets["net"].module(batch()))
    drawn = [torch.rand(3, generator=one.generators["noise"]) for one in (params, other)]
    assert torch.equal(*drawn)
    params["value"].flat.fill_(0.0)
    assert state["params"][-1] == 4.0  # a copy
    with pytest.raises(ValueError, match=r"no 'target\.net'"):
        other.load_state({name: tensor for name, tensor in state.items() if name != "target.net"})
    with pytest.raises(ValueError, match=r"'params' has shape \(1,\)"):
        other.load_state(state | {"params": torch.zeros(1)})


def test_the_policys_vector_brings_buffers_and_updates_targets():
    params, other = Params(CPU, head=2, net=Net(1)), Params(CPU, head=2, net=Net(2))
    target = other.target("net")
    params.modules["net"].mean.fill_(3.0)
    params["head"].flat.fill_(5.0)
    vector = params.vector(["net", "head"])
    assert vector.dtype == np.float32
    assert len(vector) == 26 + 6 + 3 + 2  # trained, frozen, buffer; head
    vector.flags.writeable = False
    other.load_vector(["net", "head"], vector)
    assert torch.equal(other.modules["net"](batch()), params.modules["net"](batch()))
    assert torch.equal(target.module(batch()), params.modules["net"](batch()))
    assert other["head"].flat.tolist() == [5.0, 5.0]
    with pytest.raises(ValueError, match=r"has shape \(36,\), the policy needs \(37,\)"):
        other.load_vector(["net", "head"], vector[1:])


def test_what_several_trainers_can_not_share_is_refused_by_name():
    pair = Context(torch.device("cpu"), ProcessGroup(0, 2))
    Params(pair, net=Net())
    for layer, name in ((torch.nn.BatchNorm1d(3), "BatchNorm1d"), (torch.nn.Dropout(0.1), "Dropout")):
        with pytest.raises(Refused, match=rf"net\.0 is a {name}.*trainer\.num=1"):
            Params(pair, net=torch.nn.Sequential(layer))
        Params(CPU, net=torch.nn.Sequential(layer))
    with pytest.raises(Refused, match=r"net\.weight is torch\.float64"):
        Params(CPU, net=torch.nn.Linear(2, 2).double())


def test_bf16_rounds_a_modules_products_and_its_targets():
    net = Net()
    exact = net(batch())
    params = Params(Context(torch.device("cpu"), products=BFloat16(torch.device("cpu"))), net=net)
    target, rounded = params.target("net"), net(batch())
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
    assert torch.equal(target.module(batch()), rounded)
    with torch.no_grad():
        target.module.first.weight += 1.0
    assert torch.equal(net(batch()), rounded)  # the target has its own copy of the forward pass
    assert not torch.equal(target.module(batch()), rounded)
    rounded.sum().backward()
    assert params.grad.any()


def test_a_generator_of_another_device_continues_with_new_numbers_that_repeat():
    """The state of a CUDA generator has 16 bytes: a seed and an offset."""

    def drawn(saved):
        params = Params(CPU, a=2)
        params.generator("noise", 1)
        params.load_state({"params": torch.ones(2), "generator.noise": torch.tensor(saved, dtype=torch.uint8)})
        assert params.flat.tolist() == [1, 1]
        return torch.rand(3, generator=params.generators["noise"]).tolist()

    first, second = [7] * 16, [7] * 15 + [8]
    assert drawn(first) == drawn(first) != drawn(second)
    assert drawn(first) != torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()


def test_a_state_without_a_generator_changes_nothing():
    params = Params(CPU, a=2)
    params.generator("noise", 1)
    with pytest.raises(ValueError, match=r"generator\.noise"):
        params.load_state({"params": torch.ones(2)})
    assert params.flat.tolist() == [0, 0]


def test_generators_are_on_the_device_that_draws_from_them(monkeypatch):
    params, made, generator = Params(Context(torch.device("cpu")), a=3), [], torch.Generator

    def note(device):
        made.append(str(device))
        return generator()

    monkeypatch.setattr(module.torch, "Generator", note)
    params.device = "cuda:1"
    seeds = [params.generator("noise", 7).initial_seed(), params.generator("shuffle", 8, on_cpu=True).initial_seed()]
    assert (made, seeds, params.generators.keys()) == (["cuda:1", "cpu"], [7, 8], {"noise", "shuffle"})


def test_a_module_in_two_parts_is_refused_by_name():
    shared = torch.nn.Linear(3, 3)
    actor, critic = torch.nn.Sequential(shared, torch.nn.Linear(3, 2)), torch.nn.Sequential(shared)
    with pytest.raises(Refused, match=r"critic\.0\.weight is also actor\.0\.weight; make the shared module a sep"):
        Params(CPU, actor=actor, critic=critic)


def test_every_tensor_that_a_bf16_module_returns_is_float32():
    class Gaussian(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(3, 4)

        def forward(self, x):
            mean, log_std = self.net(x).chunk(2, -1)
            return mean, {"log_std": log_std, "rows": torch.arange(len(x))}

    net = Gaussian()
    Params(Context(torch.device("cpu"), products=BFloat16(torch.device("cpu"))), net=net)
    mean, rest = net(batch())
    assert (mean.dtype, rest["log_std"].dtype, rest["rows"].dtype) == (torch.float32, torch.float32, torch.int64)


def test_only_our_products_are_replaced():
    """An attribute `products` of a user's module may be anything."""
    net, own = Net(), Net()
    net.products, own.products = "shop", Products()
    context = Context(torch.device("cpu"), products=BFloat16(torch.device("cpu")))
    Params(context, net=net, own=own)
    assert (net.products, own.products) == ("shop", context.products)

import os
import re
import shutil
import signal
import time
from collections import ChainMap
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import psutil
import pytest
import torch
from peers import on_group, peers, pid
from torch import nn

from drl_cli.chains import process_group as group_module
from drl_cli.chains.process_group import PeerLost, ProcessGroup
from drl_cli.errors import Refused
from drl_cli.networks.mlp_module import MLP
from drl_cli.optim.context import Context
from drl_cli.optim.gradients import Gradients
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.optim.products import BFloat16, OneDNN
from drl_cli.settings.compose import compose
from drl_cli.utils.clock import compiler_since

ROWS = 8
COMPILED = pytest.param(True, marks=[pytest.mark.slow, pytest.mark.skipif(not shutil.which("g++"), reason="no g++")])
LATER = pytest.param(True, marks=[*COMPILED.marks, pytest.mark.exhaustive])
both = pytest.mark.parametrize("compiles", [False, LATER])


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


class Critic(nn.Module):
    """A value for observations `[B, 3]` and actions `[B, 2]`, with batch statistics if `norm`."""

    def __init__(self, norm):
        super().__init__()
        self.norm = nn.BatchNorm1d(5) if norm else nn.Identity()
        self.net = mlp(5, 1)

    def forward(self, obs, action):
        return self.net(self.norm(torch.cat([obs, action], -1))).squeeze(-1)


class Agent:
    """SAC in small: one loss for a critic, an actor and a temperature, with a target critic."""

    def __init__(self, compiles=False, norm=False, loss=None, parts=()):
        torch.manual_seed(0)
        context = Context(torch.device("cpu"), compiles=compiles)
        self.actor, self.critic = mlp(3, 2), Critic(norm)
        self.params = Params(context, actor=self.actor, critic=self.critic, log_alpha=1)
        self.params["log_alpha"].flat.fill_(-1.0)
        self.target = self.params.target("critic")
        self.optimizer = Optimizer(self.params, dict.fromkeys(self.params.slices, 1e-2), context)
        self.gradients = Gradients(self.params, loss or self.loss, context, *parts)

    def loss(self, nets, batch, noise):
        with torch.no_grad():
            next_action = nets.actor(batch["next_obs"]).tanh()
            wanted = batch["reward"] + 0.9 * nets.target.critic(batch["next_obs"], next_action)
        critic_loss = (nets.critic(batch["obs"], batch["action"]) - wanted).square().mean()
        action = (nets.actor(batch["obs"]) + noise).tanh()
        actor_loss = (nets.frozen.log_alpha.exp() * action.square().sum(-1)).mean()
        actor_loss = actor_loss - nets.frozen.critic(batch["obs"], action).mean()
        alpha_loss = (nets.log_alpha * action.detach().square().sum(-1)).mean()
        return critic_loss + actor_loss + alpha_loss, {"critic_loss": critic_loss, "actor_loss": actor_loss}

    def learn(self, updates):
        for seed in range(updates):
            loss, metrics = self.gradients(batch(seed), torch.randn(ROWS, 2))
            assert not loss.requires_grad
            self.optimizer.step(loss, parts=self.gradients.parts)
            self.params.follow(0.5)
        return metrics


def batch(seed=0):
    torch.manual_seed(seed)
    columns = {"obs": torch.randn(ROWS, 3), "next_obs": torch.randn(ROWS, 3), "action": torch.randn(ROWS, 2)}
    return columns | {"reward": torch.randn(ROWS)}


@both
def test_gradients_equal_three_losses_of_plain_torch(compiles):
    agent, plain, noise = Agent(compiles), Agent(), torch.randn(ROWS, 2)
    loss, metrics = agent.gradients(batch(), noise)
    rows, actor, critic = batch(), plain.actor, plain.critic
    with torch.no_grad():
        wanted = rows["reward"] + 0.9 * critic(rows["next_obs"], actor(rows["next_obs"]).tanh())
    critic_loss = (critic(rows["obs"], rows["action"]) - wanted).square().mean()
    expected = [*torch.autograd.grad(critic_loss, [*critic.parameters()])]
    action = (actor(rows["obs"]) + noise).tanh()
    cost = action.square().sum(-1)
    actor_loss = torch.tensor(-1.0).exp() * cost.mean() - critic(rows["obs"], action).mean()
    expected = [*torch.autograd.grad(actor_loss, [*actor.parameters()]), *expected, cost.mean()]
    torch.testing.assert_close(agent.params.grad, torch.cat([one.flatten() for one in expected]).detach())
    torch.testing.assert_close(metrics["critic_loss"], critic_loss.detach())
    torch.testing.assert_close(loss, (critic_loss + actor_loss - cost.mean()).detach())


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
@pytest.mark.parametrize("norm", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_compiled_training_equals_eager_training_buffers_included(norm):
    eager, compiled = (Agent(compiles, norm) for compiles in (False, True))
    eager.learn(4)
    compiled.learn(4)
    state = compiled.params.state()
    assert any("running_mean" in name for name in state) is norm
    for name, tensor in eager.params.state().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("make", "tolerance"),
    [(OneDNN, 1e-4), pytest.param(lambda: BFloat16(torch.device("cpu")), 0.05, marks=pytest.mark.exhaustive)],
)
def test_compiled_gradients_reach_wide_layers_of_every_kind_of_product(make, tolerance):
    x, gradients = torch.randn(ROWS, 64), []
    for context in (Context(torch.device("cpu")), Context(torch.device("cpu"), compiles=True, products=make())):
        torch.manual_seed(0)
        params = Params(context, net=MLP(64, 64, compose(["network.hidden=[64,64]", "algo=sac"]).network))
        Gradients(params, lambda nets, x, _: (nets.net(x).square().mean(), {}), context)(x)
        gradients.append(params.grad)
    plain, compiled = gradients
    assert (compiled - plain).norm() < tolerance * plain.norm()


def test_a_missing_target_network_is_named():
    agent = Agent(loss=lambda nets, batch, noise: (nets.target.actor(batch["obs"]).sum(), {}))
    with pytest.raises(AttributeError, match=r"'actor' has no target network: call params.target\('actor'\)"):
        agent.gradients(batch())


@both
def test_only_the_named_parts_get_a_gradient(compiles):
    agent = Agent(compiles, parts=("critic",))
    agent.params.grad.fill_(9.0)
    agent.gradients(batch(), torch.randn(ROWS, 2))
    assert (agent.params["actor"].grad == 9.0).all()
    assert agent.params["log_alpha"].grad.tolist() == [9.0]
    assert agent.params["critic"].grad.abs().max() < 9.0


def test_frozen_networks_follow_every_step_and_the_state():
    agent, other = Agent(norm=True), Agent(norm=True)
    agent.learn(3)
    frozen, rows = agent.params.frozen("critic"), batch()
    for module in (frozen, agent.critic):
        module.eval()
    assert torch.equal(frozen(rows["obs"], rows["action"]), agent.critic(rows["obs"], rows["action"]))
    other.learn(1)
    other.params.load_state(agent.params.state())
    restored = other.params.frozen("critic").eval()
    assert torch.equal(restored(rows["obs"], rows["action"]), frozen(rows["obs"], rows["action"]))
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_unknown_parts_are_named():
    with pytest.raises(LookupError, match="no part 'critc'; the parts are actor, critic, log_alpha"):
        Agent(parts=("critc",))
    with pytest.raises(AttributeError, match="no part 'critc' here; there are actor, critic, log_alpha"):
        Agent(loss=lambda nets, batch, noise: nets.critc(batch)).gradients(batch())


def breaks_the_graph(nets, batch, noise):
    loss = nets.actor(batch["obs"]).sum()
    print("not in a graph")
    return loss, {}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_a_graph_break_is_an_error_with_its_line():
    line = breaks_the_graph.__code__.co_firstlineno + 2
    says = rf"^trainer\.compile=true: {re.escape(__file__)}:{line}: .*\(print\(\"not in a graph\"\)\)$"
    with pytest.raises(Refused, match=says):
        Agent(compiles=True, loss=breaks_the_graph).gradients(batch())


def test_the_batch_of_a_compiled_graph_is_a_plain_dict(monkeypatch):
    """A mapping that makes its columns when they are read, as batches of image stacks do, is not known to the graph."""
    monkeypatch.setattr(Context, "compiled", lambda self, function: function)
    seen = []

    def loss(nets, batch, noise):
        seen.append(type(batch))
        return nets.critic(batch["obs"], batch["action"]).square().mean(), {}

    Agent(compiles=True, loss=loss).gradients(ChainMap(batch()))
    assert seen == [dict]


def test_torch_precompiles_headers_in_the_private_folder(monkeypatch, tmp_path):
    places = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("drl_cli.optim.context.keep_headers_in", places.append)
    Context(torch.device("cpu"), compiles=True).compiled(lambda x: x)
    assert places == [tmp_path]


def test_results_of_cuda_graphs_are_copied(monkeypatch):
    """A graph writes its next results into the same memory."""
    (own, metric), is_on = torch.zeros(2), False
    monkeypatch.setattr(Context, "compiled", lambda self, function: lambda *args: ([], own, {"metric": metric}))
    monkeypatch.setattr(Context, "has_graphs", property(lambda self: is_on))
    gradients = Agent(compiles=True).gradients
    gradients.parts = ()
    for is_on in (False, True):
        loss, metrics = gradients(batch())
        found = [tensor.data_ptr() for tensor in (loss, metrics["metric"])]
        assert (found != [own.data_ptr(), metric.data_ptr()]) is is_on


@pytest.mark.parametrize(
    ("device", "compiles", "is_on", "expected"),
    [
        *[("cuda", True, True, True), ("cpu", True, True, False), ("cuda", False, True, False)],
        ("cuda", True, False, False),
    ],
)
def test_torch_says_whether_compiled_functions_are_cuda_graphs(device, compiles, is_on, expected):
    config = pytest.importorskip("torch._inductor.config")
    with config.patch({"triton.cudagraphs": is_on}):
        assert Context(torch.device(device), compiles=compiles).has_graphs is expected


def mean(group, values):
    tensor = torch.tensor(values)
    group.mean_(tensor)
    return tensor.tolist()


def least(group, value):
    return group.least(value)


def noise(group, rows):
    context, generator = Context(torch.device("cpu"), group), torch.Generator().manual_seed(3)
    return torch.stack([context.randn(rows, 2, generator) for _ in range(2)]).numpy()


def test_each_trainer_draws_its_share_of_the_noise_of_one():
    alone = noise(ProcessGroup(), 12)
    parts = [noise(ProcessGroup(rank, 3), 4) for rank in range(3)]
    for rank, part in enumerate(parts):
        assert (part == alone[:, 4 * rank : 4 * rank + 4]).all()
    assert (alone[0] != alone[1]).any()


def listening(group):
    """Return the addresses at which this process listens."""
    connections = psutil.Process().net_connections(kind="inet")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


@pytest.mark.slow
def test_the_mean_over_processes_and_the_error_when_one_is_killed():
    with peers(2) as ranks:
        calls = [rank.submit(on_group, mean, [float(i), 10.0 * i]) for i, rank in enumerate(ranks)]
        assert [call.result() for call in calls] == [[0.5, 5.0]] * 2
        calls = [rank.submit(on_group, least, value) for rank, value in zip(ranks, [7, -3], strict=True)]
        assert [call.result() for call in calls] == [-3, -3]
        assert [rank.submit(on_group, listening).result() for rank in ranks] == [{"127.0.0.1"}] * 2
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


def test_a_number_is_sent_on_the_device_of_the_group(monkeypatch):
    """NCCL, the backend of GPUs, refuses tensors on the CPU."""
    devices = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **options: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, operation: devices.append(tensor.device.type))
    monkeypatch.setattr(torch.Tensor, "__int__", lambda tensor: -7)  # the device `meta` has no values
    group = ProcessGroup(0, 2)
    group.store = object()
    group.join("127.0.0.1", 1, torch.device("meta"))
    assert group.least(7) == 7
    assert devices == ["meta"]


@pytest.mark.parametrize(("typed", "expected"), [(None, "1"), ("0", "0")])
def test_nccl_waits_for_the_other_trainers(monkeypatch, typed, expected):
    """Without the variable, a thread of NCCL ends the process some time after a trainer is lost."""
    name, seen = "TORCH_NCCL_BLOCKING_WAIT", []
    monkeypatch.setattr(os, "environ", {} if typed is None else {name: typed})

    def init(backend, **options):
        seen.append((backend, os.environ[name], options["timeout"].seconds))

    def lost(tensor, operation):
        raise torch.distributed.DistBackendError("NCCL communicator was aborted: timed out in blocking wait")

    monkeypatch.setattr(torch.distributed, "init_process_group", init)
    monkeypatch.setattr(torch.distributed, "all_reduce", lost)
    group = ProcessGroup(0, 2, timeout_s=7.0)
    group.store = object()
    group.join("127.0.0.1", 1, torch.device("cuda"))
    assert seen == [("nccl", expected, 7)]
    with pytest.raises(PeerLost, match="lost another: NCCL communicator was aborted"):
        group.mean_(torch.ones(1))


def test_gloo_listens_at_the_interface_that_leads_to_the_first_trainer_unless_the_user_names_another(monkeypatch):
    found = []
    environment = {}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda *args, **options: found.append(dict(environment))
    )
    monkeypatch.setattr(group_module.machine, "own_address", lambda host: {"10.0.0.3": "10.0.0.4"}[host])
    monkeypatch.setattr(group_module.machine, "interface", lambda address: {"10.0.0.4": "eth7"}[address])
    group = ProcessGroup(1, 2)
    for users in ({}, {"GLOO_SOCKET_IFNAME": "eth1"}):
        environment.clear()
        environment.update(users)
        group.store = object()
        group.join("10.0.0.3", 1, torch.device("cpu"))
    assert [variables["GLOO_SOCKET_IFNAME"] for variables in found] == ["eth7", "eth1"]


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


def test_a_compiled_function_keeps_the_defaults_of_its_keywords(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def times(x, *, factor=FACTOR):
        return factor * x

    assert Context(torch.device("cpu"), compiles=True).compiled(times)(3.0) == 6.0
    assert Context(torch.device("cpu"), compiles=True).compiled(compiler_since)() is not None  # torch compiles in calls
    assert compiler_since() is None


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

import re

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from drl_cli.optim.context import Context
from drl_cli.optim.optimizer import NotFinite, Optimizer
from drl_cli.optim.optimizer_config import OPTIMIZERS, OptimizerConfig, Part, option_problems
from drl_cli.optim.params import Params
from drl_cli.testing import check_algorithm
from drl_cli.utils.run_clock import RunClock

CPU = torch.device("cpu")


def make(lrs, skips=False, total=100, rule=None, **options):
    context = Context(CPU, skips=skips, optimizer=OptimizerConfig(**options), clock=RunClock(total=total))
    params = Params(context, **{name: 20 - i for i, name in enumerate(lrs)})
    params.flat.copy_(torch.randn(len(params.flat), generator=torch.Generator().manual_seed(0)))
    return params, Optimizer(params, lrs, context, rule)


def gradients(params, num=20):
    """Set gradients whose norm grows from step to step."""
    generator = torch.Generator().manual_seed(1)
    for i in range(num):
        params.grad.copy_(torch.randn(len(params.flat), generator=generator) * i / 2)
        yield


@pytest.mark.parametrize(
    ("lrs", "max_norm"), [({"a": 3e-3, "b": 3e-3}, None), ({"a": 3e-3, "b": 1e-2}, 30.0)], ids=["equal", "clipped"]
)
@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_steps_equal_torch_optim(name, max_norm, lrs):
    decay = 0.0 if name == "rprop" else 0.01
    params, optimizer = make(lrs, name=name, max_norm=max_norm, weight_decay=decay)
    copies = {part: torch.nn.Parameter(params[part].flat.clone()) for part in lrs}
    options = {} if name == "rprop" else {"weight_decay": decay}
    references = [getattr(torch.optim, OPTIMIZERS[name])([copies[part]], lr=lr, **options) for part, lr in lrs.items()]
    for _ in gradients(params):
        for part, copy in copies.items():
            copy.grad = params[part].grad.clone()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(copies.values(), max_norm)
        optimizer.step(torch.ones(()))
        for one in references:
            one.step()
    torch.testing.assert_close(params.flat, torch.cat([*copies.values()]).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop"])
def test_a_step_of_one_part_copies_no_index_to_a_device(name):
    """The copy would stop Python until a GPU is ready."""
    _, optimizer = make({"a": 1e-2, "b": 1e-2}, name=name)
    optimizer.step(parts=("b",))
    with Operations() as operations:
        optimizer.step(parts=("b",))
    assert operations.names
    assert not [name for name in operations.names if "index" in name]


class Operations(TorchDispatchMode):
    """Notes the names of torch's operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_part_that_does_not_step_stays_as_it_is_and_has_its_own_count(name):
    params, optimizer = make({"a": 1e-2, "b": 1e-2}, name=name)
    alone, other = make({"a": 1e-2}, name=name)
    alone.flat.copy_(params["a"].flat)
    b = params["b"].flat.clone()
    for i, _ in enumerate(gradients(params, 6)):
        alone.grad.copy_(params["a"].grad)
        optimizer.step(parts=("a",))
        other.step()
        if i % 2:
            before, a = params["b"].flat.clone(), params["a"].flat.clone()
            optimizer.step(parts=("b",))
            assert torch.equal(params["a"].flat, a)
            assert not torch.equal(params["b"].flat, before)
        else:
            assert torch.equal(params["b"].flat, b)
        b = params["b"].flat.clone()
    assert torch.equal(params["a"].flat, alone.flat)
    if name == "adam":
        assert optimizer.rule.count.tolist() == [6, 3]


def test_minimize_changes_only_its_parts():
    net, context = torch.nn.Linear(2, 1), Context(CPU)
    params = Params(context, actor=torch.nn.Linear(2, 2), critic=net)
    optimizer = Optimizer(params, {"actor": 1e-2, "critic": 1e-2}, context)
    x = torch.ones(3, 2)
    params.grad.fill_(9.0)
    optimizer.minimize(net(params.modules["actor"](x)).sum(), "actor")  # a loss that depends on both
    assert params["actor"].grad.abs().max() < 9.0
    assert (params["critic"].grad == 9.0).all()
    optimizer.minimize(net(x).sum(), "critic")
    assert params["critic"].grad.tolist() == [3.0, 3.0, 3.0]
    optimizer.minimize(net(params.modules["actor"](x)).sum())
    assert params["critic"].grad.any()
    assert params["actor"].grad.any()


@pytest.mark.parametrize("max_norm", [None, 30.0])
@pytest.mark.parametrize(("loss", "value"), [(1.0, float("inf")), (1.0, float("nan")), (float("nan"), 1.0)])
def test_an_update_that_is_not_finite_changes_nothing(max_norm, loss, value):
    params, optimizer = make({"a": 1e-2, "b": 1e-2}, skips=True, max_norm=max_norm)
    params.grad.fill_(1.0)
    optimizer.step(torch.ones(()))
    before = params.state() | optimizer.state()
    params.grad.fill_(1.0)
    params.grad[-1] = value
    for parts in ((), ("b",)):
        with pytest.raises(NotFinite):
            optimizer.step(torch.tensor(loss), parts=parts)
    after = params.state() | optimizer.state()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", [*OPTIMIZERS])
@pytest.mark.parametrize("steps", [0, 3])
def test_the_state_comes_back(name, steps):
    (params, optimizer), (other_params, other) = (make({"a": 1e-2, "b": 1e-2}, name=name) for _ in range(2))
    for _ in gradients(params, steps):
        optimizer.step()
    saved = {key: tensor.clone() for key, tensor in optimizer.state().items()}
    other_params.load_state(params.state())
    other.load_state(saved)
    for _, _ in zip(gradients(params, 3), gradients(other_params, 3), strict=True):
        optimizer.step()
        other.step()
    assert torch.equal(params.flat, other_params.flat)
    if saved:
        key = next(key for key, tensor in saved.items() if tensor.ndim)
        with pytest.raises(ValueError, match=r"has shape \(1,\)"):
            other.load_state(saved | {key: torch.zeros(1)})
        if name not in ("adam", "adamw"):
            with pytest.raises(ValueError, match=r"'optimizer\.mean' is of another optimizer"):
                other.load_state(saved | {"optimizer.mean": torch.zeros(3)})


@pytest.mark.parametrize(
    ("name", "saved", "text"),
    [
        ("sgd", "optimizer.a.0.square_avg", "'optimizer.a.0.square_avg' is of another optimizer"),
        ("rmsprop", "optimizer.a.0.momentum_buffer", "'optimizer.a.0.momentum_buffer' is of another optimizer"),
        ("adam", "optimizer.a.0.momentum_buffer", "has no 'optimizer.mean'"),
    ],
)
def test_the_state_of_another_optimizer_is_refused(name, saved, text):
    params, optimizer = make({"a": 1e-2}, name=name, kwargs={"momentum": 0.9} if name == "sgd" else {})
    before = optimizer.state()
    with pytest.raises(ValueError, match=text):
        optimizer.load_state({saved: torch.zeros(len(params.flat))})
    assert optimizer.state().keys() == before.keys()


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_the_learning_rate_follows_the_environment_steps(name):
    params, optimizer = make({"a": 1e-2}, name=name, schedule="linear")
    half, other = make({"a": 5e-3}, name=name)
    for one in (params, half):
        one.grad.fill_(1.0)
    optimizer.schedule(50)
    assert optimizer.metrics()["lr"] == pytest.approx(5e-3)
    optimizer.step()
    other.step()
    assert torch.equal(params.flat, half.flat)


def test_grad_norm_is_measured_before_clipping():
    params, optimizer = make({"a": 1e-2}, max_norm=1.0)
    params.grad.fill_(2.0)
    optimizer.step()
    assert optimizer.metrics()["grad_norm"] == pytest.approx(2.0 * 20**0.5)
    assert float(params.grad.norm()) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "factors"),
    [  # after 0, 1, 4, 5, 15, 20, 25 and 40 of 25 steps
        ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 5}, [1 / 6, 2 / 6, 5 / 6, 1, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.96, 0.84, 0.8, 0.4, 0.2, 0, 0]),
        ({"schedule": "linear", "warmup_steps": 5}, [1 / 6, 2 / 6, 5 / 6, 1, 0.5, 0.25, 0, 0]),
        ({"schedule": "linear", "warmup_steps": 5, "end": 0.2}, [1 / 6, 2 / 6, 5 / 6, 1, 0.6, 0.4, 0.2, 0.2]),
        ({"schedule": "cosine", "warmup_steps": 5}, [1 / 6, 2 / 6, 5 / 6, 1, 0.5, 0.14644661, 0, 0]),
        ({"schedule": "cosine", "warmup_steps": 5, "end": 0.5}, [1 / 6, 2 / 6, 5 / 6, 1, 0.75, 0.5732233, 0.5, 0.5]),
    ],
)
def test_the_factor_of_the_learning_rates(options, factors):
    config = OptimizerConfig(**options)
    got = [config.factor(env_steps, 25) for env_steps in (0, 1, 4, 5, 15, 20, 25, 40)]
    assert got == pytest.approx(factors)


def test_a_run_of_no_more_than_its_warm_up_ends_at_its_end():
    config = OptimizerConfig(schedule="linear", warmup_steps=5, end=0.1)
    assert [config.factor(env_steps, 5) for env_steps in (4, 5, 6)] == pytest.approx([5 / 6, 1.0, 0.1])


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({"kwargs": {"betas": [0.8, 0.9], "eps": 1e-6}}, []),
        ({"name": "adamw", "weight_decay": 0.1}, []),
        ({"kwargs": {"momentum": 0.9}}, ["optimizer.kwargs.momentum: adam has no such option; it has betas, eps"]),
        ({"name": "sgd", "kwargs": {"momentum": 0.9, "nesterov": True}, "weight_decay": 0.1}, []),
        (
            {"name": "sgd", "kwargs": {"beta": 0.9, "lr": 1.0}},
            [
                f"optimizer.kwargs.{key}: sgd has no such option; it has dampening, momentum, nesterov"
                for key in ("beta", "lr")
            ],
        ),
        ({"name": "rprop"}, []),
        ({"name": "rprop", "kwargs": {"etas": [0.5, 1.2]}}, []),
        (
            {"name": "rprop", "weight_decay": 0.1},
            ["optimizer.weight_decay: rprop has none; say optimizer.weight_decay=0"],
        ),
    ],
)
def test_options_that_do_not_fit_are_named(options, problems):
    assert option_problems(OptimizerConfig(**options)) == problems


def two_parts():
    context = Context(CPU)
    actor, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    params = Params(context, actor=actor, critic=critic, log_alpha=1)
    optimizer = Optimizer(params, dict.fromkeys(params.slices, 1e-2), context)
    return params, optimizer, actor, critic


def test_a_loss_from_before_a_step_raises_as_in_plain_torch():
    """Its gradient would be computed with the parameters after the step."""
    _, optimizer, actor, critic = two_parts()
    actor_loss = critic(actor(torch.ones(3, 2))).sum()
    critic_loss = critic(torch.ones(3, 2)).pow(2).sum()
    optimizer.minimize(critic_loss, "critic")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        optimizer.minimize(actor_loss, "actor")


def test_a_loss_from_before_a_target_moved_raises_too():
    params, optimizer, actor, _ = two_parts()
    target = params.target("critic")
    loss = target(actor(torch.ones(3, 2))).sum()
    params.follow(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        optimizer.minimize(loss, "actor")


def test_a_part_without_a_module_is_minimized_through_its_value():
    params, optimizer, _, critic = two_parts()
    optimizer.minimize((params.value("log_alpha") * 3).sum(), "log_alpha")
    assert params["log_alpha"].grad.tolist() == [3.0]
    assert params["log_alpha"].flat.tolist() == pytest.approx([-1e-2])
    optimizer.minimize(critic(torch.ones(3, 2)).sum() + params.value("log_alpha").exp().sum())
    assert params["log_alpha"].grad.tolist() == pytest.approx([np.exp(-1e-2)])
    stale = params.value("log_alpha").pow(2).sum()
    optimizer.minimize(params.value("log_alpha").sum(), "log_alpha")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        optimizer.minimize(stale, "log_alpha")


@pytest.mark.parametrize("names", [("log_alpha",), ()])
def test_a_part_without_a_module_that_no_loss_knows_is_named(names):
    _, optimizer, _, critic = two_parts()
    with pytest.raises(ValueError, match=r"part 'log_alpha' has no module; .*params\.value\('log_alpha'\)"):
        optimizer.minimize(critic(torch.ones(3, 2)).sum(), *names)


def test_a_misspelt_part_and_a_missing_rate_are_named():
    params, optimizer, _, critic = two_parts()
    with pytest.raises(LookupError, match="no part 'critc'; the parts are actor, critic, log_alpha"):
        optimizer.minimize(critic(torch.ones(3, 2)).sum(), "critc")
    with pytest.raises(ValueError, match="'log_alpha' has no learning rate; 'alpha' is no part"):
        Optimizer(params, {"actor": 1e-3, "critic": 1e-3, "alpha": 1e-3}, params.context)


@pytest.mark.parametrize(("name", "most"), [("adam", 8.0), ("adam", None), ("adamw", 8.0), ("nadam", 8.0)])
def test_a_part_has_its_own_options(name, most):
    """The parts together do what each part alone does with its options as the options of the optimizer."""
    own = {"lr": 3e-3, "weight_decay": 0.1, "max_norm": 5.0, "betas": (0.5, 0.9)}
    params, optimizer = make({"a": Part(**own), "b": 1e-2}, name=name, max_norm=most)
    alone_a, of_a = make(
        {"a": own["lr"]}, name=name, max_norm=5.0, weight_decay=0.1, kwargs={"betas": list(own["betas"])}
    )
    alone_b, of_b = make({"b": 1e-2}, name=name, max_norm=most)
    alone_a.flat.copy_(params["a"].flat)
    alone_b_part, size = alone_b["b"], len(params["b"].flat)
    alone_b_part.flat[:size].copy_(params["b"].flat)
    for _ in gradients(params):
        alone_a.grad.copy_(params["a"].grad)
        alone_b.grad.zero_()[:size].copy_(params["b"].grad)
        for one in (optimizer, of_a, of_b):
            one.schedule(0)
            one.step()
    torch.testing.assert_close(params["a"].flat, alone_a.flat, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(params["b"].flat, alone_b_part.flat[:size], rtol=1e-6, atol=1e-7)


def test_options_of_a_part_that_the_optimizer_lacks_or_that_make_no_sense_are_named():
    with pytest.raises(ValueError, match="part 'a': SGD has no betas"):
        make({"a": Part(1e-2, betas=(0.9, 0.99))}, name="sgd")
    with pytest.raises(ValueError, match="part 'a': Rprop has no weight_decay"):
        make({"a": Part(1e-2, weight_decay=0.1)}, name="rprop")
    with pytest.raises(ValueError, match="max_norm above 0"):
        Part(1e-2, max_norm=0.0)
    with pytest.raises(ValueError, match="betas have to be"):
        Part(1e-2, betas=(1.0, 0.9))


class LaProp(torch.optim.Optimizer):
    """LaProp (Ziyin et al. 2020, arXiv 2002.04839), with numbers in its state and in its group."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        options = {"betas": betas, "weight_decay": weight_decay, "total": 0.0, "calls": torch.zeros(())}
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            group["total"] += 0.1
            group["calls"] += 1.0  # in place
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"steps": 0, "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
                state["steps"] += 1
                state["square"].lerp_(p.grad.square(), 1 - beta2)
                norm = (state["square"] / (1 - beta2 ** state["steps"])).sqrt() + 1e-3 * group["calls"]
                state["mean"].lerp_(p.grad / norm, 1 - beta1)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(state["mean"], alpha=-group["lr"] * group["total"] / (1 - beta1 ** state["steps"]))


class RowClip(torch.optim.SGD):
    """Adaptive gradient clipping (Brock et al. 2021, arXiv 2102.06171): needs the shapes of the parameters."""

    def __init__(self, params, clip=0.1, **options):
        super().__init__(params, **options)
        self.clip = clip

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.ndim == 2:
                limit = self.clip * p.detach().norm(dim=1, keepdim=True).clamp_min(1e-3)
                p.grad.mul_((limit / p.grad.norm(dim=1, keepdim=True).clamp_min(1e-6)).clamp_max(1.0))
        return super().step(closure)


def own_rule(name, **options):
    context = Context(CPU, optimizer=OptimizerConfig(name=f"{__name__}:{name}", **options))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    params = Params(context, net=net, temperature=2, none=0)
    return params, Optimizer(params, {"net": Part(1e-2, weight_decay=0.1), "temperature": 1e-2, "none": 1.0}, context)


def steps_with(params, optimizer, num):
    x = torch.arange(15.0).view(5, 3)
    for _ in range(num):
        optimizer.minimize(params.modules["net"](x).square().mean() + params.value("temperature").exp().sum())


@pytest.mark.parametrize(("name", "options"), [("LaProp", {"kwargs": {"betas": [0.8, 0.9]}}), ("RowClip", {})])
def test_a_rule_of_the_user_equals_plain_torch_and_comes_back(name, options):
    params, optimizer = own_rule(name, **options)
    plain_params, _ = own_rule(name, **options)
    plain, temperature = plain_params.modules["net"], plain_params.value("temperature")
    kwargs = {"betas": (0.8, 0.9)} if name == "LaProp" else {}
    rules = [globals()[name](plain.parameters(), lr=1e-2, weight_decay=0.1, **kwargs)]
    rules += [globals()[name]([temperature], lr=1e-2, **kwargs)]
    x = torch.arange(15.0).view(5, 3)
    for _ in range(3):
        plain_params.grad.zero_()
        (plain(x).square().mean() + temperature.exp().sum()).backward()
        for rule in rules:
            rule.step()
    steps_with(params, optimizer, 3)
    assert torch.equal(params.flat, plain_params.flat)
    saved, weights = optimizer.state(), params.state()
    steps_with(params, optimizer, 3)
    wanted = params.flat.clone()
    for again, of_again in (own_rule(name, **options), (params, optimizer)):  # a new run, and an update undone
        again.load_state(weights)
        of_again.load_state(saved)
        steps_with(again, of_again, 3)
        assert torch.equal(again.flat, wanted)
    if name == "LaProp":
        key = "optimizer.net.0.mean"
        with pytest.raises(ValueError, match=r"'optimizer\.net\.0\.mean' has shape \(1, 1\), needed is \(4, 3\)"):
            optimizer.load_state(saved | {key: torch.zeros(1, 1)})
        with pytest.raises(ValueError, match=r"'optimizer\.net\.9\.mean' is of another optimizer"):
            optimizer.load_state(saved | {"optimizer.net.9.mean": torch.zeros(1)})


def test_an_algorithm_can_bring_its_rule_and_schedules_stay():
    (params, optimizer), (half, other) = (make({"a": lr}, rule=LaProp, schedule="linear") for lr in (1e-2, 5e-3))
    optimizer.schedule(50)
    for one in (params, half):
        one.value("a").grad.fill_(1.0)
    optimizer.step()
    other.step()
    assert torch.equal(params.flat, half.flat)
    assert optimizer.state()["optimizer.a.0.number.steps"] == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": f"{__name__}:LaProp"}, None),
        ({"name": f"{__name__}:RowClip", "kwargs": {"clip": 0.2, "momentum": 0.9}}, None),
        ({"name": f"{__name__}:LaPop"}, "optimizer.name: .* has no 'LaPop'. Did you mean LaProp?"),
        ({"name": f"{__name__}:make"}, "has to be a class derived from torch.optim.Optimizer"),
        ({"name": f"{__name__}:LaProp", "kwargs": {"eps": 1}}, "has no such option; it has betas"),
    ],
)
def test_problems_of_a_rule_of_the_user_are_named(options, problem):
    problems = option_problems(OptimizerConfig(**options))
    assert len(problems) == (problem is not None)
    if problem:
        assert re.search(problem, problems[0])


@pytest.mark.slow
def test_an_algorithm_with_a_rule_of_the_user_keeps_the_contract():
    """Two trainers equal one, and a loaded state continues bit for bit."""
    check_algorithm("sac", "env=Pendulum-v1", "network.hidden=[8,8]", f"optimizer.name={__name__}:LaProp")

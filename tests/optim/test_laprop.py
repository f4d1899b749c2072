"""LaProp and its clipping, against a slow reference in float64."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from drl_cli.optim.context import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.optimizer_config import OptimizerConfig, option_problems
from drl_cli.optim.params import Params

LRS = {"net": 1e-2, "number": 3e-3}


def make(**options):
    torch.manual_seed(0)
    context = Context(torch.device("cpu"), optimizer=OptimizerConfig(name="laprop", **options))
    params = Params(context, net=nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), number=1)
    params["number"].flat.fill_(0.5)
    return params, Optimizer(params, LRS, context)


def gradients(params, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        params.grad.copy_(torch.randn(params.grad.shape, generator=generator) * 10.0 ** (step % 3 - 1))
        yield params.grad.double().tolist()


def tensors(params):
    """Return where each weight, bias and number is in the flat parameters."""
    sizes = [p.numel() for p in params.modules["net"].parameters()] + [1]
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [slice(a, b) for a, b in pairwise(starts)]


def reference(params, lrs, clip, steps, decay=0.0, betas=(0.9, 0.999), eps=1e-20):
    flat = params.flat.double().tolist()
    mean, square = [0.0] * len(flat), [0.0] * len(flat)
    for t, grad in enumerate(gradients(params, steps), 1):
        for where in tensors(params):
            indices = range(where.start, where.stop)
            norm = sum(grad[i] ** 2 for i in indices) ** 0.5
            limit = clip * max(1e-3, sum(flat[i] ** 2 for i in indices) ** 0.5) if clip else norm
            for i in indices:
                clipped = grad[i] * min(1.0, limit / norm)
                square[i] = betas[1] * square[i] + (1 - betas[1]) * clipped**2
                normalized = clipped / ((square[i] / (1 - betas[1] ** t)) ** 0.5 + eps)
                mean[i] = betas[0] * mean[i] + (1 - betas[0]) * normalized
        lr = [lrs["number" if i == len(flat) - 1 else "net"] for i in range(len(flat))]
        flat = [x * (1 - a * decay) - a * m / (1 - betas[0] ** t) for x, a, m in zip(flat, lr, mean, strict=True)]
    return torch.tensor(flat, dtype=torch.float64)


@pytest.mark.parametrize("clip", [None, 0.3, 0.01])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_equal_the_reference(clip, decay):
    betas, eps = (0.8, 0.99), 0.1
    params, optimizer = make(weight_decay=decay, kwargs={"clip": clip, "betas": betas, "eps": eps})
    expected = reference(params, LRS, clip, 7, decay, betas, eps)
    for _ in gradients(params, 7):
        optimizer.step(torch.ones(()))
    torch.testing.assert_close(params.flat.double(), expected, rtol=1e-4, atol=1e-6)


def test_the_defaults_are_those_of_the_paper():
    params, optimizer = make()
    expected = reference(params, LRS, 0.3, 4)
    for _ in gradients(params, 4):
        optimizer.step()
    torch.testing.assert_close(params.flat.double(), expected, rtol=1e-4, atol=1e-6)


def test_weights_of_zero_learn():
    params, optimizer = make()
    params.flat.zero_()
    for _ in gradients(params, 3):
        optimizer.step()
    assert (params.flat != 0).all()


def test_one_part_steps_alone_and_the_state_comes_back():
    params, optimizer = make()
    net = params["net"].flat.clone()
    for _ in gradients(params, 2):
        optimizer.step(parts=("number",))
    assert torch.equal(params["net"].flat, net)
    for _ in gradients(params, 3):
        optimizer.step()
    assert optimizer.state()["optimizer.count"].tolist() == [3, 5]
    other_params, other = make()
    other_params.load_state(params.state())
    other.load_state(optimizer.state())
    for _, _ in zip(gradients(params, 3, seed=2), gradients(other_params, 3, seed=2), strict=True):
        optimizer.step()
        other.step()
    assert torch.equal(params.flat, other_params.flat)


def test_options():
    assert option_problems(OptimizerConfig(name="laprop", kwargs={"clip": 0.1, "eps": 1e-8, "betas": [0, 0]})) == []
    (problem,) = option_problems(OptimizerConfig(name="laprop", kwargs={"agc": 0.1}))
    assert problem.startswith("optimizer.kwargs.agc: laprop has no such option; it has betas, clip, eps")

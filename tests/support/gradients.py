"""Check of gradients against finite differences along random directions."""

import torch


def check_gradients(module, run, directions=4, eps=1e-6):
    """Check the gradients of `run(module)`, a tensor. The module and its inputs have to be float64."""
    random = torch.Generator().manual_seed(11)
    params = list(module.parameters())
    assert params
    weights = torch.randn(run(module).shape, generator=random, dtype=torch.float64)
    grads = torch.autograd.grad((run(module) * weights).sum(), params)
    with torch.no_grad():
        for _ in range(directions):
            steps = [torch.randn(p.shape, generator=random, dtype=torch.float64) for p in params]
            values = []
            for sign in (1.0, -2.0):
                for param, step in zip(params, steps, strict=True):
                    param += sign * eps * step
                values.append((run(module) * weights).sum())
            for param, step in zip(params, steps, strict=True):
                param += eps * step
            slope = sum((grad * step).sum() for grad, step in zip(grads, steps, strict=True))
            torch.testing.assert_close((values[0] - values[1]) / (2 * eps), slope, rtol=1e-5, atol=1e-6)

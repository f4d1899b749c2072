"""The states of a window and their gradients, against a loop with automatic differentiation."""

import torch

from drl_cli.algos.model_based.dreamer import VARIABLES, Rssm, Size, sample

STATES, B, UNITS = 4, 3, 6


def test_states_and_gradients_equal_those_of_a_loop():
    torch.manual_seed(0)
    rssm = Rssm(Size(deter=16, units=UNITS, classes=3, channels=2), 2)
    for parameter in rssm.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    h, action = torch.randn(B, 16).tanh(), torch.randn(STATES - 1, B, 2)
    tokens = torch.randn(STATES, B, UNITS).requires_grad_()
    uniform = torch.rand(STATES, B, VARIABLES)

    loop, z = list[tuple[torch.Tensor, ...]](), torch.zeros(0)
    for t in range(STATES):
        state = rssm.step(loop[-1][0], z, action[t - 1]) if t else h
        probs = rssm.posterior(state, tokens[t])
        z = (sample(probs.detach(), uniform[t]) + probs - probs.detach()).flatten(1)
        loop.append((state, z, probs))
    expected = [torch.stack(parts) for parts in zip(*loop, strict=True)]
    found = rssm.scan(h, tokens, action, uniform)

    inputs = [tokens, *(p for name, p in rssm.named_parameters() if not name.startswith("prior"))]
    weights = [torch.randn_like(each) for each in expected]
    grads = [
        torch.autograd.grad(sum((w * x).sum() for w, x in zip(weights, outputs, strict=True)), inputs)
        for outputs in (found, expected)
    ]
    for own, each in zip([*found, *grads[0]], [*expected, *grads[1]], strict=True):
        torch.testing.assert_close(own, each, rtol=1e-3, atol=1e-4)

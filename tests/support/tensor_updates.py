"""Updates that read and change tensors in many ways: views, overlapping writes, random numbers, autograd."""

import torch
from torch import nn


def generator():
    return torch.Generator().manual_seed(3)


class Agent:
    """Tensors of several kinds that an update can change: one flat tensor with views, a moment, a generator."""

    def __init__(self):
        self.flat = torch.arange(24.0) / 10
        self.weight, self.bias = self.flat[:12].view(4, 3), self.flat[12:15]
        self.twins = self.flat[:24].view(2, 12)
        self.grad = torch.zeros(24)
        self.parts = [self.grad[:12].view(4, 3), self.grad[12:15], self.grad[15:]]
        self.count = torch.zeros(2)
        self.noise = generator()
        self.constant = torch.tensor([1.0, 2.0, 3.0])

    def tensors(self):
        return [self.flat, self.grad, self.count]


def in_place_chain(agent, x):
    h = torch.relu_(x @ agent.weight + agent.bias)
    h += 1.0
    h.mul_(agent.constant)
    agent.bias.sub_(h.mean(0))
    return h, agent.bias * 2


def writes_to_parts(agent, x):
    torch.mm(x.t(), x[:, :3], out=agent.parts[0])
    torch.sum(x[:, :3], 0, out=agent.parts[1])
    agent.parts[2].zero_()
    agent.flat.sub_(0.1 * agent.grad)
    return (agent.flat.norm(),)


def reads_after_overlapping_writes(agent, x):
    agent.flat[2:9] = x.flatten()[:7]
    first = agent.weight.sum(1)
    agent.weight[1] = 5.0
    agent.twins[1].add_(agent.twins[0])
    return first, agent.weight.clone(), agent.flat[4:20].view(4, 4).t().contiguous()


def columns_and_transposes(agent, x):
    agent.weight[:, 1].copy_(x[0])
    turned = agent.weight.t()
    turned.add_(1.0)
    agent.weight.t()[0].mul_(2.0)
    return turned.sum(0), agent.flat[:12:2] * 3


def a_view_of_a_temporary_that_changes(agent, x):
    y = x * 2
    left, right = y.chunk(2, 1)
    left.add_(right)
    y[0].zero_()
    return y, left, y.t()[1], right.exp()


def draws(agent, x):
    a = torch.randn(5, 4, generator=agent.noise)
    b = torch.empty(5).uniform_(generator=agent.noise)
    agent.flat[:5].normal_(generator=agent.noise)
    c = torch.randint(0, 5, (5,), generator=agent.noise)
    return x + a, x[:, 0] * b, torch.rand(2), x[c]


def autograd_and_targets(agent, x):
    weight = nn.Parameter(agent.weight.detach())
    weight.grad = agent.parts[0]
    agent.grad.zero_()
    loss = (torch.tanh(x @ weight) - 0.5).square().mean()
    loss.backward()
    agent.weight.add_(agent.parts[0], alpha=-0.1)
    agent.twins[1].lerp_(agent.twins[0], 0.25)
    agent.count[[1]] += 1
    return loss.detach(), torch.tensor([1.0, 4.0]) + agent.count


def lists(agent, x):
    torch._foreach_add_([agent.parts[0], agent.parts[2]], 1.5)
    a, b, c = torch.split(x, [1, 2, 1], 1)
    return torch.cat([c, a], 1), torch.topk(b, 1, 0)[0]


def empty_parts(agent, x):
    nothing = agent.flat[:0]
    nothing.add_(1.0)
    agent.flat.mul_(2.0)
    return torch.cat([nothing, agent.flat[:2]]), x[:0].sum() + x[0]


def reads_with_gaps(agent, x):
    odd, middle = agent.flat[1::2] * 2.0, agent.flat[4:6] * 2.0
    agent.flat[1:3].mul_(3.0)
    return odd, middle, agent.flat[::3] + x[0, 0], agent.flat[3:] - 1.0


UPDATES = [
    reads_with_gaps,
    *(in_place_chain, writes_to_parts, reads_after_overlapping_writes, columns_and_transposes),
    *(a_view_of_a_temporary_that_changes, draws, autograd_and_targets, lists, empty_parts),
]


def inputs(seed):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


def reads_item(agent, x):
    return (x * x.sum().item(),)  # here


def reads_numpy(agent, x):
    return (x * float(x.numpy().sum()),)  # here


def decides(agent, x):
    return (x if x.sum() > 0 else -x,)  # here


def selects(agent, x):
    return (x[x > 0],)  # here

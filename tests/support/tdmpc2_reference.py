"""TD-MPC2's loss and plans as the paper describes them, in float64: one row, one step and one network at a time."""

import copy
import math

import torch
from torch import nn

RHO, GROUP = 0.5, 8


def run(layers, x, kept=None):
    """Apply the layers to one vector. `kept` multiplies the outputs of the first layer."""
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.Linear):
            x = layer.weight @ x + layer.bias
            x = x * kept if i == 0 and kept is not None else x
        elif isinstance(layer, nn.LayerNorm):
            centered = x - x.mean()
            x = centered / (centered.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias
        elif isinstance(layer, nn.Mish):
            x = x * (1 + x.exp()).log().tanh()
        elif type(layer).__name__ == "SimNorm":
            powers = x.exp()
            x = torch.cat([p / p.sum() for p in powers.split(GROUP)])
    return x


def log_softmax(x):
    return x - x.exp().sum().log()


class Reference:
    """The networks of an algorithm, in float64."""

    def __init__(self, algorithm):
        def double(module):
            return copy.deepcopy(module).double()

        self.nets = {name: double(module) for name, module in algorithm.params.modules.items()}
        self.target = double(algorithm.params.targets["critic"].module)
        self.config = algorithm.config
        self.bins = [-10 + 0.2 * i for i in range(101)]

    def number(self, logits):
        mean = sum(p * b for p, b in zip(log_softmax(logits).exp(), self.bins, strict=True))
        return mean.sign() * (mean.abs().exp() - 1)

    def two_hot(self, logits, value):
        value = float(value)
        position = (math.copysign(math.log(1 + abs(value)), value) + 10) / 0.2
        low = min(int(position), 99)
        share, log_probs = position - low, log_softmax(logits)
        return -(1 - share) * log_probs[low] - share * log_probs[low + 1]

    def prior(self, z):
        mean, raw = run(self.nets["actor"], z).chunk(2)
        return mean, -10 + 6 * (raw.tanh() + 1)

    def values(self, heads, x):
        return [self.number(run(head, x)) for head in heads]

    def losses(self, batch, noise):
        """Return the mean of each loss over rows and steps."""
        nets, found = self.nets, {}
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        noise = {name: x.double() if x.is_floating_point() else x for name, x in noise.items()}
        rows, steps = batch["reward"].shape

        def add(name, loss, total):
            found[name] = found.get(name, 0.0) + loss / total

        actor_inputs = []
        for b in range(rows):
            z = run(nets["encoder"], batch["obs"][b, 0])
            actor_inputs.append((b, 0, z.detach()))
            for t in range(steps):
                if not batch["valid"][b, t]:
                    break
                x = torch.cat([z, batch["action"][b, t]])
                next_z = run(nets["encoder"], batch["next_obs"][b, t]).detach()
                mean, log_std = self.prior(next_z)
                action = (mean + log_std.exp() * noise["next_action"][b, t]).tanh()
                qs = self.values(self.target.heads, torch.cat([next_z, action]))
                q = min(float(qs[i].detach()) for i in noise["two"].tolist())
                target = float(batch["reward"][b, t]) + float(batch["discount"][b, t]) * q
                weight, total = RHO**t, rows * steps
                add("reward", weight * self.two_hot(run(nets["reward"], x), batch["reward"][b, t]), total)
                heads = enumerate(nets["critic"].heads)
                each = [self.two_hot(run(head, x, noise["kept"][i, b, t]), target) for i, head in heads]
                add("value", weight * sum(each) / len(each), total)
                z = run(nets["dynamics"], x)
                add("consistency", weight * (z - next_z).square().mean(), total)
                p = torch.sigmoid(run(nets["termination"], z)[0])
                add("termination", -(p if batch["terminated"][b, t] else 1 - p).log(), total)
                actor_inputs.append((b, t + 1, z.detach()))
        qs, entropies = {}, {}
        for b, t, z in actor_inputs:
            mean, log_std = self.prior(z)
            eps = noise["action"][b, t]
            action = (mean + log_std.exp() * eps).tanh()
            density = (-0.5 * eps.square() - log_std - 0.5 * math.log(2 * math.pi)).sum()
            entropies[b, t] = -density + (1 - action.square()).log().sum()
            values = self.values([copy.deepcopy(head) for head in nets["critic"].heads], torch.cat([z, action]))
            qs[b, t] = sum(values) / len(values)
        first = torch.stack([qs[b, 0].detach() for b in range(rows)])
        low, high = first.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64))
        self.scale = max(1.0, 0.01 * float(high - low))
        for b, t, _ in actor_inputs:
            loss = -qs[b, t] / self.scale - self.config.entropy * entropies[b, t]
            add("actor", RHO**t * loss, rows * (steps + 1))
        return found

    def value_of(self, z, plan):
        """Return the return of one sequence of actions `[H, A]` from the state z."""
        total, discount = 0.0, 1.0
        for action in plan:
            x = torch.cat([z, action])
            total = total + discount * self.number(run(self.nets["reward"], x))
            z = run(self.nets["dynamics"], x)
            is_end = torch.sigmoid(run(self.nets["termination"], z)[0]) > 0.5
            discount = 0.0 if is_end else discount * self.config.gamma
        qs = self.values(self.nets["critic"].heads, torch.cat([z, self.prior(z)[0].tanh()]))
        return total + discount * sum(qs) / len(qs)

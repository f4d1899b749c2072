"""DreamerV3's loss as the paper describes it, in float64: one row, one step and one variable at a time."""

import copy
import math

import torch
from torch import nn


def run(layers, x):
    """Apply linear layers, RMS norms and SiLUs to one vector."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            x = layer.weight @ x + layer.bias
        elif isinstance(layer, nn.RMSNorm):
            x = x / (x.square().mean() + 1e-4).sqrt() * layer.weight
        else:
            x = x / (1 + (-x).exp())
    return x


def mixed(logits):
    powers = (logits - logits.max()).exp()
    return 0.99 * powers / powers.sum() + 0.01 / len(logits)


def symlog(x):
    return x.sign() * (1 + x.abs()).log()


class Reference:
    """The losses of an algorithm for one batch and its noise. `rows` of the batch are `[B, T]`."""

    def __init__(self, algorithm, batch, noise, is_box, choices):
        self.nets = {name: copy.deepcopy(module).double() for name, module in algorithm.params.modules.items()}
        self.slow = copy.deepcopy(algorithm.params.targets["critic"].module).double()
        self.config, self.is_box, self.choices = algorithm.config, is_box, choices
        self.bins = algorithm.bins.double()
        self.batch = {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}
        self.noise = {n: x.double() for n, x in noise.items()}
        self.rows, self.steps = batch["reward"].shape

    def step(self, h, z, action):
        rssm, blocks = self.nets["rssm"], 8
        features = torch.cat([run(rssm.from_h, h), run(rssm.from_z, z), run(rssm.from_action, action)])
        width, hidden = len(h) // blocks, []
        for g in range(blocks):
            own = h[g * width : (g + 1) * width]
            units = slice(g * width, (g + 1) * width)
            shared = rssm.hidden_shared.weight[units] @ features + rssm.hidden_shared.bias[units]
            hidden.append(own @ rssm.hidden.weight[g] + rssm.hidden.bias[g, 0] + shared)
        hidden = run([rssm.norm, nn.SiLU()], torch.cat(hidden))
        new = []
        for g in range(blocks):
            own = hidden[g * width : (g + 1) * width]
            reset, candidate, update = (own @ rssm.gates.weight[g] + rssm.gates.bias[g, 0]).split(width)
            update = torch.sigmoid(update - 1)
            old = h[g * width : (g + 1) * width]
            new.append(update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * old)
        return torch.cat(new)

    def variables(self, logits):
        """Return the probabilities of each variable: 32 vectors. Classes are the outer axis of the logits."""
        table = logits.view(-1, 32)
        return [mixed(table[:, v]) for v in range(32)]

    def draw(self, probs, uniform, straight_through):
        """Return z. Its outer axis has the classes."""
        columns = []
        for p, u in zip(probs, uniform, strict=True):
            total, chosen = 0.0, len(p) - 1
            for c in range(len(p)):
                total += float(p[c].detach())
                if u < total:
                    chosen = c
                    break
            one_hot = torch.zeros(len(p), dtype=torch.float64)
            one_hot[chosen] = 1.0
            columns.append(one_hot + p - p.detach() if straight_through else one_hot)
        return torch.stack(columns, 1).flatten()

    def posterior(self, h, obs):
        tokens = run(self.nets["encoder"], symlog(obs))
        return self.variables(run(self.nets["rssm"].posterior_mlp, torch.cat([h, tokens])))

    def prior(self, h):
        return self.variables(run(self.nets["rssm"].prior_mlp, h))

    def inputs(self, action):
        if self.is_box:
            return action.clamp(-1, 1)
        parts = action.reshape(-1).tolist()
        return torch.cat([torch.eye(n, dtype=torch.float64)[a] for a, n in zip(parts, self.choices, strict=True)])

    def act(self, x, noise):
        """Return an action, given the noise, and functions of its log-probability and the entropy."""
        out = run(self.nets["actor"], x)
        if self.is_box:
            mean, raw = out.chunk(2)
            mean, std = mean.tanh(), 0.9 * torch.sigmoid(raw + 2) + 0.1
            return (mean + std * noise).detach(), self.log_density(mean, std), self.gaussian_entropy(std)
        probs = [mixed(part) for part in out.split(list(self.choices))]
        gumbel = [-(-(1 - u).log()).log() for u in noise.split(list(self.choices))]
        action = torch.stack([(p.log() + g).argmax() for p, g in zip(probs, gumbel, strict=True)])
        entropy = -sum((p * p.log()).sum() for p in probs)
        return action, lambda a: sum(p[i].log() for p, i in zip(probs, a, strict=True)), entropy

    def log_density(self, mean, std):
        return lambda a: (-0.5 * ((a - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)).sum()

    def gaussian_entropy(self, std):
        return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum()

    def number(self, layers, x):
        return (run(layers, x).softmax(0) * self.bins).sum()

    def two_hot(self, logits, value):
        log_probs = logits.log_softmax(0)
        value = min(max(float(value), float(self.bins[0])), float(self.bins[-1]))
        k = min(int((self.bins <= value).sum()) - 1, len(self.bins) - 2)
        share = (value - self.bins[k]) / (self.bins[k + 1] - self.bins[k])
        return -((1 - share) * log_probs[k] + share * log_probs[k + 1])

    def kl(self, p, q):
        return max(sum((a * (a.log() - b.log())).sum() for a, b in zip(p, q, strict=True)), torch.tensor(1.0).double())

    def critic_loss(self, x, target):
        logits = run(self.nets["critic"], x)
        slow = self.number(self.slow, x).detach()
        return self.two_hot(logits, target.detach()) + self.two_hot(logits, slow)

    def losses(self):
        """Return the mean of each loss over the states, and h of all states `[B, T + 1]`."""
        batch, starts, found = self.batch, [], {}

        def add(name, loss):
            found.setdefault(name, []).append(loss)

        xs = []
        for b in range(self.rows):
            h, row = batch["state"][b, 0], []
            for t in range(self.steps + 1):
                if t:
                    h = self.step(h, row[-1][1], self.inputs(batch["action"][b, t - 1]))
                obs = batch["next_obs"][b, t - 1] if t else batch["obs"][b, 0]
                posterior = self.posterior(h, obs)
                z = self.draw([p.detach() for p in posterior], self.noise["z"][b, t], False)
                flat = torch.stack(posterior, 1).flatten()
                z = z + flat - flat.detach()
                x = torch.cat([h, z])
                row.append((h, z, x))
                is_state = t == 0 or bool(batch["valid"][b, t - 1])
                starts.append((h.detach(), z.detach(), is_state))
                if not is_state:
                    continue
                add("decoder", (run(self.nets["decoder"].mlp, x) - symlog(obs)).square().sum())
                prior = self.prior(h)
                add("dynamics", self.kl([p.detach() for p in posterior], prior))
                add("representation", self.kl(posterior, [p.detach() for p in prior]))
                if t:
                    add("reward", self.two_hot(run(self.nets["reward"], x), batch["reward"][b, t - 1]))
                    p, c = torch.sigmoid(run(self.nets["continues"], x)[0]), batch["discount"][b, t - 1]
                    add("continue", -c * p.log() - (1 - c) * (1 - p).log())
            xs.append(row)
        returns = self.behavior(starts, add)
        for b in range(self.rows):
            length = int(batch["valid"][b].sum())
            target = returns[b * (self.steps + 1) + length][0]
            for t in reversed(range(length)):
                boot = returns[b * (self.steps + 1) + t + 1][0]
                share = self.config.lambda_ if t < length - 1 else 0.0
                target = batch["reward"][b, t] + batch["discount"][b, t] * ((1 - share) * boot + share * target)
                add("replay_value", self.critic_loss(xs[b][t][2], target))
        num = sum(is_state for _, _, is_state in starts)
        means = {name: sum(each) / num for name, each in found.items()}
        return means, torch.stack([torch.stack([h for h, _, _ in row]) for row in xs])

    def behavior(self, starts, add):
        """Add the losses of actor and critic. Return the imagined returns of all starts."""
        config, dreams, all_returns = self.config, [], []
        for n, (h, z, _) in enumerate(starts):
            xs, actions = [torch.cat([h, z])], []
            for t in range(config.horizon):
                action, log_prob, entropy = self.act(xs[-1], self.noise["action"][n, t])
                actions.append((action, log_prob, entropy))
                h = self.step(h, z, self.inputs(action)).detach()
                z = self.draw(self.prior(h), self.noise["imagined"][n, t], False)
                xs.append(torch.cat([h, z]))
            values = [self.number(self.nets["critic"], x).detach() for x in xs]
            rewards = [self.number(self.nets["reward"], x).detach() for x in xs]
            goes_on = [torch.sigmoid(run(self.nets["continues"], x)[0]).detach() for x in xs]
            returns = [values[-1]]
            for t in reversed(range(config.horizon)):
                later = (1 - config.lambda_) * values[t + 1] + config.lambda_ * returns[0]
                returns.insert(0, rewards[t + 1] + goes_on[t + 1] * later)
            dreams.append((xs, actions, values, goes_on, returns[:-1]))
            all_returns.append(returns[:-1])
        known = torch.stack([r for (_, _, s), row in zip(starts, all_returns, strict=True) if s for r in row])
        self.ends = 0.01 * known.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64))
        self.scale = max(1.0, float(self.ends[1] - self.ends[0]))
        for (xs, actions, values, goes_on, returns), (_, _, is_state) in zip(dreams, starts, strict=True):
            weight, actor, critic = 1.0, 0.0, 0.0
            for t, (action, log_prob, entropy) in enumerate(actions):
                weight = weight * goes_on[t]
                advantage = (returns[t] - values[t]) / self.scale
                actor = actor - weight * (log_prob(action) * advantage + config.entropy * entropy)
                critic = critic + weight * self.critic_loss(xs[t], returns[t])
            if is_state:
                add("actor", actor / config.horizon)
                add("critic", critic / config.horizon)
        return all_returns

"""PPO written independently on float64 modules with autograd, torch.distributions and torch.optim, for tests."""

import dataclasses

import torch
from confs import algo_config
from references import sequential
from torch.distributions import Categorical, Normal, kl_divergence

from drl_cli.algos.on_policy.ppo import Algorithm, Config, Policy
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.types import ActionSpec, Column, EnvSpec

MAX_NORM = 0.3
CPU = Context(torch.device("cpu"), optimizer=OptimizerConfig(max_norm=MAX_NORM))
KINDS = ("box", "discrete")
SPECS = {kind: EnvSpec("x", Column((5,), "float32"), ActionSpec(kind, 3, kind)) for kind in KINDS}
CONFIG = algo_config(
    "ppo",
    Config,
    gamma=0.9,
    n_step=1,
    lr=1e-3,
    gae_lambda=0.8,
    clip=0.2,
    epochs=3,
    minibatch_size=12,
    seq_len=4,
    entropy_coef=0.02,
    value_coef=0.5,
    normalize_advantage=True,
    target_kl=None,
)


def make(kind="box", activation="tanh", seed=0, spec=None, **options):
    network = NetworkConfig((16, 12), activation, "orthogonal")
    return Algorithm(dataclasses.replace(CONFIG, **options), network, spec or SPECS[kind], seed, CPU)


def make_policy(algorithm, kind, seed=0, activation="tanh"):
    policy = Policy(algorithm.config, NetworkConfig((16, 12), activation, "orthogonal"), SPECS[kind], seed)
    policy.load(algorithm.policy_params())
    return policy


def make_batch(kind, seed, rows=40, **options):
    """Return a rollout of an older policy."""
    rng = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, rows, 5, generator=rng)
    terminated, cut = torch.rand(2, rows, generator=rng) < 0.1
    older = make_policy(make(kind, seed=seed, **options), kind, seed)
    return {
        **{name: torch.from_numpy(column) for name, column in older.act(obs.numpy()).items()},
        "obs": obs,
        "reward": torch.randn(rows, generator=rng),
        "next_obs": next_obs,
        "discount": torch.where(terminated, 0.0, 0.9),
        "terminated": terminated,
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "cut": cut | terminated,
    }


class Reference:
    """PPO as in the paper, on float64 torch.nn modules, starting from an algorithm's parameters and shuffling."""

    def __init__(self, algorithm, kind, activation):
        params = {name: algorithm.params[name].flat.clone() for name in ("actor", "critic", "log_std")}
        self.config, self.is_box = algorithm.config, kind == "box"
        self.shuffle = torch.Generator()
        self.shuffle.set_state(algorithm.state()["generator.shuffle"])
        self.actor = sequential(params["actor"], (5, 16, 12, 3), activation)
        self.critic = sequential(params["critic"], (5, 16, 12, 1), activation)
        self.log_std = params["log_std"].double().requires_grad_()
        self.params = [*self.actor.parameters(), *self.critic.parameters(), *([self.log_std] if self.is_box else [])]
        self.optimizer = torch.optim.Adam(self.params, self.config.lr)
        self.kl_weight, self.names = self.config.kl_coef, ("loc", "scale") if self.is_box else ("logits",)

    def distribution(self, obs):
        return (
            Normal(self.actor(obs), self.log_std.exp().expand(len(obs), 3))
            if self.is_box
            else Categorical(logits=self.actor(obs))
        )

    def log_prob_and_entropy(self, obs, action):
        if not self.is_box:
            distribution = Categorical(logits=self.actor(obs))
            return distribution.log_prob(action), distribution.entropy()
        distribution = Normal(self.actor(obs), self.log_std.exp())
        if not self.config.squash:
            return distribution.log_prob(action).sum(-1), distribution.entropy().sum(-1)
        u = action.clamp(-1 + 1e-7, 1 - 1e-7).atanh()
        z = ((u - distribution.mean) / distribution.stddev).detach()
        bent = (1 - (distribution.mean + distribution.stddev * z).tanh() ** 2).log().sum(-1)
        log_prob = distribution.log_prob(u).sum(-1) - (1 - action**2).log().sum(-1)
        return log_prob, distribution.entropy().sum(-1) + bent

    def advantages(self, batch):
        value, next_value = self.critic(batch["obs"])[:, 0], self.critic(batch["next_obs"])[:, 0]
        delta = batch["reward"] + batch["discount"] * next_value - value
        advantage = torch.zeros_like(delta)
        for i in reversed(range(len(delta))):
            goes_on = i + 1 < len(delta) and not batch["cut"][i]
            later = batch["discount"][i] * self.config.gae_lambda * advantage[i + 1] if goes_on else 0.0
            advantage[i] = delta[i] + later
        return advantage, advantage + value

    def update(self, batch):
        config = self.config
        batch = {name: c.double() if c.dtype == torch.float32 else c for name, c in batch.items()}
        with torch.no_grad():
            advantage, target = self.advantages(batch)
            explained = 1 - (advantage.var() / target.var()).item()
            if config.normalize_advantage:
                advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
            old_value, old = self.critic(batch["obs"])[:, 0], self.distribution(batch["obs"])
        seen, kls = [], []
        for _ in range(config.epochs):
            for rows in torch.randperm(len(target), generator=self.shuffle).split(config.minibatch_size):
                log_prob, entropy = self.log_prob_and_entropy(batch["obs"][rows], batch["action"][rows])
                ratio = (log_prob - batch["log_prob"][rows]).exp()
                clipped = ratio.clamp(1 - config.clip, 1 + config.clip) * advantage[rows]
                policy_loss = -torch.min(ratio * advantage[rows], clipped).mean()
                value = self.critic(batch["obs"][rows])[:, 0]
                value_loss = 0.5 * (value - target[rows]).square()
                if config.value_clip is not None:
                    change = (value - old_value[rows]).clamp(-config.value_clip, config.value_clip)
                    value_loss = torch.max(value_loss, 0.5 * (old_value[rows] + change - target[rows]).square())
                value_loss = value_loss.mean()
                loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy.mean()
                if config.kl_coef:
                    before = type(old)(**{name: getattr(old, name)[rows] for name in self.names})
                    divergence = kl_divergence(before, self.distribution(batch["obs"][rows]))
                    kls.append((divergence.sum(-1) if self.is_box else divergence).mean())
                    loss = loss + self.kl_weight * kls[-1]
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.params, MAX_NORM)
                self.optimizer.step()
                kl = (ratio - 1 - ratio.log()).mean()
                outside = ((ratio < 1 - config.clip) | (ratio > 1 + config.clip)).double().mean()
                seen.append([x.item() for x in (policy_loss, value_loss, entropy.mean(), kl, outside)])
        if config.kl_coef:  # adapted by the last epoch's divergence
            kl = torch.stack(kls[-4:]).mean().item()
            self.kl_weight *= 2 if kl > 1.5 * config.kl_target else 0.5 if kl < config.kl_target / 1.5 else 1
        means = torch.tensor(seen).mean(0).tolist()
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
        return dict(zip(names, means, strict=True)) | {"explained_variance": explained}, len(seen)

"""Each probe passes for a correct algorithm, and fails for copies that are broken in one way."""

import dataclasses

import numpy as np
import pytest
import torch
from confs import algo_config
from nets import nets
from q_batches import q_batch

from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import load_algorithm
from drl_cli.algos.value._q_learner import STILL
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.replay.builders import NStepBuilder
from drl_cli.types import ActionSpec, Column, EnvSpec

SMALL = {
    "dqn": {},
    "c51": {"atoms": 31, "v_min": -5.0, "v_max": 5.0},
    "qr_dqn": {"quantiles": 5, "kappa": 0.1},
    "iqn": {"quantiles": 5, "target_quantiles": 5, "policy_quantiles": 5, "kappa": 0.1},
}
SLOW = {name: {"target_period": 20, "double": False} for name in SMALL}
SLOW["sac_discrete"] = {"tau": 0.1, "initial_alpha": 1e-6, "alpha_lr": 1e-9}
GAMMA, N_STEP, EPISODE = 0.5, 3, 5


def make(name, kind, obs=1, **options):
    """Return an algorithm of this class for observations of `obs` numbers and 4 actions."""
    module = load_algorithm(name)
    config = algo_config(name, module.Config)
    config = dataclasses.replace(config, gamma=GAMMA, **SMALL.get(name, {}) | options)
    spec = EnvSpec("x", Column((obs,), "float32"), ActionSpec("discrete", 4, "Discrete(4)"))
    return kind(config, NetworkConfig((8,), "tanh", "uniform"), spec, 0, Context(torch.device("cpu")))


def learned(name, kind, batch, updates=160, lr=2e-2):
    """Return the algorithm after `updates` updates with one batch, whose observations are 1."""
    algorithm = make(name, kind, lr=lr, **SLOW[name])
    for i in range(updates):
        algorithm.learn(batch, Counts(i))
    return algorithm


def values(algorithm, networks, obs):
    """`[N, 4]`, by these networks of the algorithm."""
    with torch.no_grad():
        return algorithm.means(networks, obs) if hasattr(algorithm, "means") else networks.critic(obs).amin(0)


def worth(name, kind, batch):
    """Return the value of each action for observation 1, after learning from the batch."""
    algorithm = learned(name, kind, batch)
    return values(algorithm, nets(algorithm), torch.ones(1, 1))


def endless(rows=100):
    """Return rewards of 1 in episodes that are truncated after 5 steps: every state is worth 1 / (1 - gamma) = 2."""
    builder, rng, one = NStepBuilder(N_STEP, GAMMA), np.random.default_rng(0), np.ones((1, 1), np.float32)
    for t in range(rows):
        cut = np.array([t % EPISODE == EPISODE - 1])
        columns = {"obs": one, "next_obs": one, "reward": one[0], "action": rng.integers(4, size=1)}
        builder.append(columns | {"terminated": np.zeros_like(cut), "truncated": cut, "valid": ~np.zeros_like(cut)})
    return {name: torch.from_numpy(column) for name, column in builder.take().items()}


def ending(reward):
    """Return episodes of one step with these rewards."""
    rows = len(reward)
    ends, zeros = torch.ones(rows, dtype=torch.bool), torch.zeros(rows)
    one = {"obs": torch.ones(rows, 1), "next_obs": torch.ones(rows, 1), "action": torch.arange(rows) % 4}
    return one | {"reward": reward, "discount": zeros, "terminated": ends, "truncated": ~ends}


def endless_rewards_are_worth_two(name, kind):
    value = worth(name, kind, endless())
    assert ((value - 2.0).abs() < 0.12).all(), value


def rewards_beyond_the_support_are_worth_its_end(name, kind):
    value = worth(name, kind, ending(torch.full((8,), 10.0)))
    assert ((value - 5.0).abs() < 0.3).all(), value


def quantiles_equal_those_of_the_rewards(name, kind):
    """Rewards are uniform on [0, 2] for each action, so the quantiles are the fractions times 2."""
    algorithm = learned(name, kind, ending(torch.linspace(0, 2, 50).repeat_interleave(4)), updates=400, lr=1e-2)
    with torch.no_grad():
        fraction = STILL._replace(fraction=getattr(algorithm, "mean_fraction", None))
        quantiles = algorithm.read(nets(algorithm), torch.ones(1, 1), fraction)
    expected = torch.tensor([0.2, 0.6, 1.0, 1.4, 1.8])
    assert ((quantiles - expected).abs() < 0.15).all(), quantiles


def the_online_network_chooses_and_the_target_evaluates(name, kind):
    algorithm, other = make(name, kind, obs=5, double=True), make(name, kind, obs=5, double=True)
    for part, target in algorithm.params.targets.items():
        target.flat.copy_(other.params[part].flat.flip(0))
    live, rows = nets(algorithm), algorithm.rows(q_batch(weighted=False))
    rows |= {"reward": torch.zeros(32), "discount": torch.ones(32)}
    draws, next_obs = algorithm.draw(32), rows["batch"]["next_obs"]
    if name == "iqn":
        draws = draws._replace(target=STILL._replace(fraction=algorithm.mean_fraction))
    with torch.no_grad():
        found = algorithm.expected(algorithm.target(live, rows, algorithm.see(live, rows), draws))
    theirs = values(algorithm, live.target, next_obs)
    chosen = values(algorithm, live, next_obs).argmax(1)
    assert (chosen != theirs.argmax(1)).any()
    torch.testing.assert_close(found, theirs[torch.arange(32), chosen])


def every_update_has_new_noise(name, kind):
    algorithm = make(name, kind, obs=5, noisy=True, double=True)
    seen = [random.noise["online"] for _ in range(2) for random in algorithm.draw(32)]
    assert len({tuple(noise.tolist()) for noise in seen}) == 6


def with_batches(kind, changed):
    """Return a copy of the algorithm that learns from changed batches."""

    class Broken(kind):
        def update(self, batch, counts):
            return super().update({**batch, **changed(batch)}, counts)

    return Broken


def truncation_as_termination(kind):
    return with_batches(kind, lambda batch: {"discount": torch.where(batch["truncated"], 0.0, batch["discount"])})


def discount_of_one_step_less(kind):
    return with_batches(kind, lambda batch: {"discount": batch["discount"] / GAMMA})


def target_never_copied(kind):
    class Broken(kind):
        def setup(self, config, spec):
            super().setup(config, spec)
            self.params.follow = lambda tau: None

    return Broken


def target_network_choosing(kind):
    class Broken(kind):
        def target(self, *args):
            self.config = dataclasses.replace(self.config, double=False)
            return super().target(*args)

    return Broken


def noise_drawn_once(kind):
    class Broken(kind):
        first = None

        def draw(self, rows):
            self.first = self.first or super().draw(rows)
            return self.first

    return Broken


def noise_shared_by_the_networks(kind):
    class Broken(kind):
        def draw(self, rows):
            draws = super().draw(rows)
            return type(draws)(*[one._replace(noise=draws.online.noise) for one in draws])

    return Broken


def projection_that_loses_outside_mass(kind):
    class Broken(kind):
        def backed_up(self, reward, discount, next_q):
            place = reward[:, None] + discount[:, None] * self.support
            inside = (place >= self.support[0]) & (place <= self.support[-1])
            return super().backed_up(reward, discount, next_q * inside)

    return Broken


def quantile_weights_transposed(kind):
    """Weigh each error by the fraction of the target's quantile instead of the learned quantile."""

    class Broken(kind):
        def compare(self, q, target, weight, random):
            _, td_error = super().compare(q, target, weight, random)
            error = target.unsqueeze(1) - q.unsqueeze(2)
            fraction = self.fraction if random.fraction is None else random.fraction
            side = (fraction.unsqueeze(-2) - (error.detach() < 0).float()).abs()
            size = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=0.1)
            return (side * size).mean(2).sum(1).mean(), td_error

    return Broken


ALL, QUANTILES = ("dqn", "c51", "qr_dqn", "iqn"), ("qr_dqn", "iqn")
PROBES = {
    endless_rewards_are_worth_two: (
        (*ALL, "sac_discrete"),
        (truncation_as_termination, discount_of_one_step_less, target_never_copied),
    ),
    the_online_network_chooses_and_the_target_evaluates: (ALL, (target_network_choosing,)),
    every_update_has_new_noise: (ALL, (noise_drawn_once, noise_shared_by_the_networks)),
    rewards_beyond_the_support_are_worth_its_end: (("c51",), (projection_that_loses_outside_mass,)),
    quantiles_equal_those_of_the_rewards: (QUANTILES, (quantile_weights_transposed,)),
}
"""The algorithms that each probe is for, and the faults that it has to find."""
SOUND = [(probe, name) for probe, (names, _) in PROBES.items() for name in names]
BROKEN = [(probe, fault, name) for probe, (names, faults) in PROBES.items() for fault in faults for name in names]


def label(value):
    return getattr(value, "__name__", value)


@pytest.mark.parametrize(("probe", "name"), SOUND, ids=label)
def test_the_algorithm_passes(probe, name):
    probe(name, load_algorithm(name).Algorithm)


@pytest.mark.parametrize(("probe", "fault", "name"), BROKEN, ids=label)
def test_a_broken_copy_does_not(probe, fault, name):
    with pytest.raises(AssertionError):
        probe(name, fault(load_algorithm(name).Algorithm))

import math
import shutil

import numpy as np
import pytest
import torch
from choices import some
from continuous import NETWORK, make, policy_of
from continuous import SPEC as BOX
from references import lstm_step, sequential, value_prefix_of
from test_muzero import inverse, latent
from tree_reference import GumbelSearch, PuctSearch

from drl_cli.algos.base import Counts
from drl_cli.algos.model_based import gumbel_muzero, muzero, sampled_muzero
from drl_cli.algos.model_based._shared import as_windows
from drl_cli.api import Context
from drl_cli.search import run
from drl_cli.search.formulas import Gumbel
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec

DISCRETE = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 3, "Discrete(3)"))
MODULES = {gumbel_muzero: DISCRETE, muzero: DISCRETE, sampled_muzero: BOX}
FEW = {"simulations": 6, "support": 4, "unroll_steps": 3, "n_step": 2}
LENGTH, ROWS = 6, 7


def made(module, seed=0, **options):
    return make(module, seed, spec=MODULES[module], **FEW | options)


def acting(module, algorithm=None, seed=0, **options):
    return policy_of(module, algorithm or made(module), seed, MODULES[module], **FEW | options)


def observations(rows=5):
    return np.random.default_rng(3).standard_normal((rows, 5), np.float32)


def batch_of(module):
    """Windows whose columns a policy made, all valid; the first window has random actions."""
    policy, rng = acting(module), torch.Generator().manual_seed(1)
    obs = torch.randn(ROWS, LENGTH, 5, generator=rng)
    columns = policy.act(obs.flatten(0, 1).numpy())
    batch = {name: torch.from_numpy(x).view(ROWS, LENGTH, *x.shape[1:]) for name, x in columns.items()}
    batch["is_random"][0] = True
    return batch | {
        "obs": obs,
        "reward": torch.randn(ROWS, LENGTH, generator=rng),
        "discount": torch.full((ROWS, LENGTH), 0.9),
        "terminated": torch.zeros(ROWS, LENGTH, dtype=torch.bool),
        "valid": torch.ones(ROWS, LENGTH, dtype=torch.bool),
    }


@pytest.mark.parametrize("module", MODULES)
def test_actions_come_with_their_search(module):
    policy = acting(module)
    columns = policy.act(observations())
    assert not columns["is_random"].any()
    np.testing.assert_allclose(columns["policy"].sum(-1), 1.0, rtol=1e-5)
    assert len(np.unique(columns["root_value"])) == 5
    if module is sampled_muzero:
        assert (columns["candidates"] == columns["action"][:, None]).all(-1).any(-1).all()
        assert (np.abs(columns["candidates"]) < 1.0).all()
    random = policy.random(observations())
    assert random["is_random"].all()
    assert not random["policy"].any()
    assert not random["root_value"].any()


@pytest.mark.parametrize("module", [gumbel_muzero, sampled_muzero])
def test_only_training_explores_by_noise_at_the_root(module):
    obs, policies = observations(100), [acting(module, seed=seed) for seed in (0, 1)]
    acted, best = ([getattr(policy, name)(obs) for policy in policies] for name in ("act", "greedy"))
    assert not np.array_equal(acted[0]["action"], acted[1]["action"])
    assert np.array_equal(*best)


def test_the_roots_noise_chooses_among_the_sampled_candidates():
    """Without simulations, all candidates are equally good."""
    columns = acting(sampled_muzero, simulations=0).act(observations(300))
    is_chosen = (columns["candidates"] == columns["action"][:, None]).all(-1)
    assert len(np.unique(is_chosen.argmax(1))) == is_chosen.shape[1]


def test_the_first_candidate_of_an_evaluation_is_the_mean_of_the_policy():
    policy, obs = acting(sampled_muzero), torch.from_numpy(observations(20))
    with torch.no_grad():
        _, columns = policy.searched(obs)
        torch.testing.assert_close(columns["candidates"][:, 0], policy.prior(obs))


@pytest.mark.parametrize("module", MODULES)
def test_a_new_policy_does_not_move_the_default_generator(module):
    """In mode=single, the generator belongs to the trainer, whose checkpoint has to be that of a resumed run."""
    algorithm, before = made(module), torch.get_rng_state()
    acting(module, algorithm)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_temperature_of_0_takes_the_most_visited_action():
    policy, obs = acting(muzero), observations(200)
    for temperature, agrees in ((0.0, True), (1.0, False)):
        policy.explore({"temperature": temperature})
        columns = policy.act(obs)
        assert (columns["action"] == columns["policy"].argmax(-1)).all() == agrees


def test_the_temperature_falls_with_the_environment_steps():
    algorithm = made(muzero, temperature_start=1.0, temperature_end=0.2)
    total = algorithm.context.total_env_steps
    assert algorithm.exploration(0) == {"temperature": 1.0}
    assert algorithm.exploration(total)["temperature"] == pytest.approx(0.2)


def test_the_roots_noise_changes_what_is_searched():
    obs = observations(50)
    plain, noisy = (acting(muzero, noise_share=share).act(obs)["policy"] for share in (0.0, 1.0))
    assert np.array_equal(plain, acting(muzero, seed=5, noise_share=0.0).act(obs)["policy"])
    assert not np.array_equal(noisy, acting(muzero, seed=5, noise_share=1.0).act(obs)["policy"])


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("share", "chosen"), [(0.5, [1, 3, 5]), (1.0, [*range(ROWS)]), (0.3, [3, 6])])
def test_reanalysis_searches_with_the_target_networks(module, share, chosen):
    """The chosen windows get what an evaluation with the target networks would find. The others keep their columns."""
    algorithm, batch = made(module, reanalyze=share), batch_of(module)
    with torch.no_grad():
        for name, target in algorithm.params.targets.items():
            target.flat.copy_(algorithm.params[name].flat).add_(0.05)
    policy = acting(module)
    policy.load(np.concatenate([target.flat.numpy() for target in algorithm.params.targets.values()]))
    rows = algorithm.reanalyzed(as_windows(batch))
    with torch.no_grad():
        _, columns = policy.searched(batch["obs"].flatten(0, 1))
    for name, column in columns.items():
        new = column.view(ROWS, LENGTH, *column.shape[1:])
        kept = [i for i in range(ROWS) if i not in chosen]
        torch.testing.assert_close(rows[name][chosen], new[chosen], rtol=1e-4, atol=1e-4)
        assert torch.equal(rows[name][kept], batch[name][kept])
        assert not torch.equal(new, batch[name])
    assert rows["is_random"][:, 0].tolist() == [0 not in chosen, *[False] * (ROWS - 1)]
    assert torch.equal(rows["has_root"], ~rows["is_random"])


@pytest.mark.parametrize("options", [{"reanalyze": 0.5, "fresh_values": False}, {}])
def test_target_networks_are_copied_after_each_period(options):
    algorithm, batch = made(gumbel_muzero, target_period=2, **options), batch_of(gumbel_muzero)
    before = {name: target.flat.clone() for name, target in algorithm.params.targets.items()}
    algorithm.learn(batch, Counts(1))
    assert all(torch.equal(target.flat, before[name]) for name, target in algorithm.params.targets.items())
    now = {name: algorithm.params[name].flat.clone() for name in before}
    algorithm.learn(batch, Counts(2))
    assert all(torch.equal(target.flat, now[name]) for name, target in algorithm.params.targets.items())


def test_without_reanalysis_nothing_is_searched(monkeypatch):
    algorithm, batch = made(gumbel_muzero), batch_of(gumbel_muzero)
    monkeypatch.setattr(muzero.Algorithm, "reanalyzed", None)
    algorithm.learn(batch, Counts(1))
    assert algorithm.is_one_step
    assert not made(gumbel_muzero, fresh_values=False).params.targets
    assert not made(gumbel_muzero, reanalyze=0.5).is_one_step


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_candidates_is_uniform(share):
    """A policy whose candidates are all at the same edge still finds others."""
    algorithm, rows = made(sampled_muzero), 300
    algorithm.params["prediction"].flat[-15:-12] = -50.0  # biases of 3 means, 3 deviations and 9 bins of values
    policy = acting(sampled_muzero, algorithm, uniform_share=share)
    candidates = policy.act(observations(rows))["candidates"]  # [rows, 16, 3]
    num = round(16 * share)
    assert (candidates[:, : 16 - num] < -0.99).all()
    uniform = np.sort(candidates[:, 16 - num :].ravel())
    assert np.abs(uniform - np.linspace(-1.0, 1.0, uniform.size)).max(initial=0.0) < 0.05


def test_the_loss_of_a_sampled_policy():
    """-sum_k w_k log N(atanh a_k; mean, std) - c log std, one candidate at a time, up to constants."""
    algorithm, rng = made(sampled_muzero, entropy_coef=0.1), torch.Generator().manual_seed(0)
    out = torch.randn(1, 2, 6, generator=rng)
    candidates = torch.rand(1, 2, 16, 3, generator=rng) * 1.8 - 0.9
    weights = torch.rand(1, 2, 16, generator=rng)
    found = algorithm.policy_loss(out, weights, {"candidates": candidates})
    for step in range(2):
        total = 0.0
        for a in range(3):
            mean, raw = float(out[0, step, a]), float(out[0, step, 3 + a])
            log_std = 2.0 * math.tanh(raw / 2.0) - 0.5
            total -= 0.1 * log_std
            for k in range(16):
                error = (math.atanh(float(candidates[0, step, k, a])) - mean) / math.exp(log_std)
                total += float(weights[0, step, k]) * (0.5 * error**2 + log_std)
        assert float(found[0, step]) == pytest.approx(total, rel=1e-4)


ACTIONS, SIZE, WIDTH, GAMMA, SIMULATIONS = 3, 4, NETWORK.hidden[-1], 0.9, 60
BINS = 2 * SIZE + 1


class Lookup:
    """A table whose entries are computed when they are read."""

    def __init__(self, entry):
        self.entry = entry

    def __getitem__(self, key):
        return self.entry(key)


class Paths:
    """The model of an algorithm in float64, for one observation. A state is the actions on the way there, as a number.

    The root is 1, and an action is a digit to the base A. Every state is computed from the root, and its value prefix
    from the last step at which the prefix began.
    """

    def __init__(self, algorithm, obs, horizon):
        flat, self.horizon = {name: algorithm.params[name].flat for name in algorithm.params.slices}, horizon
        self.representation = sequential(flat["representation"], (5, *NETWORK.hidden, WIDTH), "tanh")
        self.dynamics = sequential(flat["dynamics"], (WIDTH + ACTIONS, WIDTH, WIDTH), "tanh")
        self.prediction = sequential(flat["prediction"], (WIDTH, WIDTH, ACTIONS + BINS), "tanh")
        self.lstm, self.head = value_prefix_of(flat["value_prefix"], WIDTH, BINS)
        self.obs = torch.from_numpy(obs).double()
        self.next_state = Lookup(lambda at: at[0] * ACTIONS + at[1])
        self.rewards = Lookup(lambda at: self.prefix(self.next_state[at]) - self.before(at[0]))
        self.discounts = Lookup(lambda at: GAMMA)
        self.logits = Lookup(lambda state: self.predicted(state)[:ACTIONS])
        self.values = Lookup(lambda state: self.mean(self.predicted(state)[ACTIONS:]))

    def latents(self, state):
        digits = []
        while state > 1:
            state, digit = divmod(state, ACTIONS)
            digits.insert(0, digit)
        z = latent(self.representation(self.obs))
        states = [z]
        for digit in digits:
            z = latent(z + self.dynamics(torch.cat([z, torch.eye(ACTIONS).double()[digit]])))
            states.append(z)
        return states

    def predicted(self, state):
        return self.prediction(self.latents(state)[-1]).detach()

    def before(self, state):
        """The prefix that the reward of the next action is added to."""
        begins = (len(self.latents(state)) - 1) % self.horizon == 0
        return 0.0 if begins else self.prefix(state)

    def prefix(self, state):
        """The sum of rewards since the last state, before this one, at which the prefix began."""
        states = self.latents(state)[1:]
        first = (len(states) - 1) // self.horizon * self.horizon
        memory = torch.zeros(2, WIDTH, dtype=torch.float64)
        for z in states[first:]:
            memory = lstm_step(self.lstm, z, memory)
        return self.mean(self.head(memory[0]).detach())

    @staticmethod
    def mean(logits):
        return inverse(float((logits.softmax(-1) * torch.arange(-SIZE, SIZE + 1)).sum()))


def sharpened(module, horizon):
    """An algorithm whose predictions differ from 0."""
    algorithm = made(module, value_prefix=True, gamma=GAMMA, unroll_steps=horizon)
    with torch.no_grad():
        for name, factor in {"prediction": 20.0, "value_prefix": 6.0}.items():
            algorithm.params[name].flat.mul_(factor)
    return algorithm


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [1, 2, 4])
@pytest.mark.parametrize("module", [muzero, gumbel_muzero])
def test_a_search_equals_a_reference(module, horizon):
    """The trees are deeper than the horizon, at which the prefix begins again."""
    algorithm, obs = sharpened(module, horizon), observations()
    noise = np.random.default_rng(1).gumbel(size=(len(obs), ACTIONS))
    model = acting(module, algorithm, gamma=GAMMA, unroll_steps=horizon, value_prefix=True).model
    for _ in range(3):  # the last two replay the model
        if module is muzero:
            found = run.puct(model, torch.from_numpy(obs), SIMULATIONS)
        else:
            found = run.gumbel(model, torch.from_numpy(obs), SIMULATIONS, noise, Gumbel(value_scale=1.0))
    assert model._call.why is None
    deepest = 0
    for b, row in enumerate(obs):
        paths = Paths(algorithm, row, horizon)
        search = (PuctSearch if module is muzero else GumbelSearch)(paths, 1)
        if module is gumbel_muzero:
            search.noise, search.simulations, search.c_scale = noise[b].tolist(), SIMULATIONS, 1.0
        search.run(SIMULATIONS)
        deepest = max(deepest, compared(found.trees, b, search.root))
        np.testing.assert_allclose(found.value[b], search.root.total / search.root.count, rtol=1e-4)
    assert deepest > horizon


def compared(trees, b, node):
    """Compare a node and those below it with the reference. Return their depth."""
    i, depth = node.number, 0
    assert trees.visits[b, i].tolist() == [node.visits(action) for action in range(ACTIONS)]
    for action, child in node.children.items():
        assert trees.child[b, i, action] == child.number
        np.testing.assert_allclose(trees.reward[b, child.number], child.reward, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(trees.q[b, i, action], node.q(action), rtol=1e-3, atol=1e-4)
        depth = max(depth, 1 + compared(trees, b, child))
    return depth


@pytest.mark.parametrize("module", MODULES)
def test_reanalysis_finds_what_the_policy_finds(module):
    algorithm, batch = made(module, value_prefix=True, reanalyze=1.0), batch_of(module)
    policy = acting(module, algorithm, value_prefix=True)
    policy.load(np.concatenate([target.flat.numpy() for target in algorithm.params.targets.values()]))
    rows = algorithm.reanalyzed(as_windows(batch))
    found = policy.reanalyze(batch["obs"].flatten(0, 1).numpy())
    for name, column in found.items():
        torch.testing.assert_close(rows[name].flatten(0, 1), torch.from_numpy(column), rtol=1e-4, atol=1e-4)


def test_the_value_prefix_is_trained_and_travels_to_workers_only_if_it_is_on():
    with_prefix, without = (made(gumbel_muzero, value_prefix=on) for on in (True, False))
    assert with_prefix.policy_parts == (*without.policy_parts, "value_prefix")
    before = with_prefix.params["value_prefix"].flat.clone()
    with_prefix.learn(batch_of(gumbel_muzero), Counts(1))
    assert (with_prefix.params["value_prefix"].flat != before).float().mean() > 0.9
    assert with_prefix.policy_params().size == sum(with_prefix.params[n].flat.numel() for n in with_prefix.policy_parts)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_compiled_updates_equal_plain_ones():
    batch, contexts = batch_of(gumbel_muzero), [Context(torch.device("cpu"), compiles=on) for on in (False, True)]
    plain, compiled = (made(gumbel_muzero, context=context, value_prefix=True) for context in contexts)
    for update in range(3):
        losses = [each.learn(batch, Counts(update)).metrics["model_loss"] for each in (plain, compiled)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.params["value_prefix"].flat, plain.params["value_prefix"].flat)


@pytest.mark.slow
@pytest.mark.parametrize("algo", some(["muzero", "gumbel_muzero", "sampled_muzero"], "gumbel_muzero"))
def test_the_contract(algo):
    env = "env=Pendulum-v1" if algo == "sampled_muzero" else "env=CartPole-v1"
    check_algorithm(algo, env, "algo.value_prefix=true", "algo.simulations=4", "network.hidden=[16,16]")

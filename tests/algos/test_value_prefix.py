import shutil

import numpy as np
import pytest
import torch
from continuous import NETWORK
from references import lstm_step, sequential, value_prefix_of
from test_muzero import inverse, latent
from test_muzero_search import MODULES, acting, batch_of, made, observations
from tree_reference import GumbelSearch, PuctSearch

from drl_cli.algos.base import Counts
from drl_cli.algos.model_based import gumbel_muzero, muzero
from drl_cli.algos.model_based._learner import as_windows
from drl_cli.api import Context
from drl_cli.search import run
from drl_cli.search.formulas import Gumbel
from drl_cli.testing import check_algorithm

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


@pytest.mark.parametrize("algo", ["muzero", "gumbel_muzero", "sampled_muzero"])
def test_the_contract(algo):
    env = "env=Pendulum-v1" if algo == "sampled_muzero" else "env=CartPole-v1"
    check_algorithm(algo, env, "algo.value_prefix=true", "algo.simulations=4", "network.hidden=[16,16]")

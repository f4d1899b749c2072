"""Recurrent policies: the states in rows equal those that the trainer's network computes over whole episodes."""

import numpy as np
import pytest
import torch
from graphs import TINY, make_config
from walks import Walk, check_states, unrolled

from drl_cli.algos.lookup import load_algorithm
from drl_cli.api import Context
from drl_cli.envs.make import read_spec
from drl_cli.runtime.roles.evaluator import Evaluator
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import LoadParams

SEQUENCES = ("replay=sequences", "replay.seq_len=4", "replay.burn_in=1", "replay.overlap=1")
ROLLOUTS = ("trainer.batch_size=64", "algo.minibatch_size=32")


class Case:
    """A config with the trainer's algorithm and its parameters."""

    def __init__(self, *overrides):
        args = ("env=walks:Walk-v0", "network.memory_size=6", "worker.num=1", "worker.envs=3", "worker.block_rows=9")
        self.config = config = make_config(*TINY, *args, *overrides)
        self.spec = read_spec(config.env)
        self.module = load_algorithm(config.algo.name)
        context = Context(torch.device("cpu"))
        self.learner = self.module.Algorithm(config.algo, config.network, self.spec, 5, context)
        self.params = self.learner.policy_params()

    def worker(self):
        return Worker(self.config, self.spec, 0, 0)


def collect(worker, blocks, params=None, random_actions=False):
    """Return the rows of some blocks; the worker gets `params` with the first block."""
    version, exploration = 0, {"epsilon": 0.3}
    parts = []
    for block in range(blocks):
        header = LoadParams(version, 0, 0, exploration=exploration, random_actions=random_actions)
        parts.append(worker.collect(header, params if block == 0 else None)[1])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def joined(*parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


CASES = pytest.mark.parametrize("network", ["lstm", "gru"])
FAULTS = pytest.mark.parametrize("fails_at", [0, 7])


@CASES
@FAULTS
@pytest.mark.parametrize("box", [False, True])
def test_rollouts_match_whole_episodes(network, fails_at, box):
    """Blocks have three steps of each environment: first random steps, then steps of the policy."""
    case = Case(
        *("algo=ppo", f"network={network}", *ROLLOUTS, f"+env.kwargs.box={box}", f"+env.kwargs.fails_at={fails_at}"),
        "worker.max_restarts=100",
    )
    case.learner.params["log_std"].flat.fill_(-0.5)
    case.params = case.learner.policy_params()
    worker = case.worker()
    warm_up = collect(worker, 5, case.params, random_actions=True)
    acted = collect(worker, 12)
    outs = check_states(case.learner.encoder, joined(warm_up, acted), least=20)
    np.testing.assert_allclose(warm_up["log_prob"], 2 * np.log(1 / 2) if box else np.log(1 / 3), rtol=1e-6)
    out = torch.stack([outs[obs.tobytes()] for obs in acted["obs"]])
    with torch.no_grad():
        given, action = case.learner.nets.actor(out), torch.from_numpy(acted["action"])
    if box:
        log_prob = torch.distributions.Normal(given, float(np.exp(-0.5))).log_prob(action).sum(-1)
    else:
        log_prob = torch.distributions.Categorical(logits=given).log_prob(action)
    np.testing.assert_allclose(acted["log_prob"], log_prob, rtol=1e-4, atol=1e-5)


@CASES
@FAULTS
@pytest.mark.parametrize("block_rows", [3, 60])
def test_sequences_start_with_the_state_of_whole_episodes(network, fails_at, block_rows):
    more = (f"worker.block_rows={block_rows}", f"+env.kwargs.fails_at={fails_at}", "worker.max_restarts=100")
    case = Case("algo=dqn", f"network={network}", *SEQUENCES, *more)
    worker = case.worker()
    warm_up = collect(worker, 45 // block_rows + 1, case.params, random_actions=True)
    check_states(case.learner.encoder, joined(warm_up, collect(worker, 120 // block_rows)), least=15)


def test_an_evaluator_resets_the_recurrent_state():
    """The reward is the action, so that a state left from an earlier episode would change the return."""
    case = Case("algo=ppo", "network=lstm", *ROLLOUTS)
    case.learner.params.flat.normal_(0, 1, generator=torch.Generator().manual_seed(0))
    case.params = case.learner.policy_params()
    seeds, expected = [11, 12, 13, 14], []
    for seed in seeds:
        env, done = Walk(), False
        episode = [env.reset(seed=seed)[0]]
        while not done:
            obs, _, done, _, _ = env.step(0)
            episode.append(obs)
        _, out = unrolled(case.learner.encoder, np.stack(episode[:-1]))
        with torch.no_grad():
            expected.append(float(case.learner.nets.actor(out).argmax(-1).sum()))
    assert len(set(expected)) > 1
    evaluator = Evaluator(case.config, case.spec, seeds)
    for _ in range(2):
        assert evaluator.evaluate(case.params).returns.tolist() == expected

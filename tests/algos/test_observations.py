"""Every algorithm with images, Dict observations, a memory and legal-action masks: learning, saving, acting."""

import numpy as np
import pytest
import torch
from choices import some
from learners import CASES, LENGTH, LOOKS, TREE, Learner, mapped
from nets import layers

from drl_cli.algos.base import Counts
from drl_cli.optim.gradients import Nets
from drl_cli.types import Column, PreviousStep

ALL = pytest.mark.parametrize(("name", "kind"), CASES, ids=["-".join(case) for case in CASES])
MASKED = [case for case in CASES if case[1] != "box"]


@pytest.fixture(params=some(LOOKS, "image", "tree-memory"))
def look(request):
    return LOOKS[request.param]


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def flat(batch, prefix=""):
    if not isinstance(batch, dict):
        return {prefix: batch}
    return {path: x for name, part in batch.items() for path, x in flat(part, f"{prefix}/{name}").items()}


@ALL
def test_an_update_changes_every_part_but_not_the_batch_and_resumes_exactly(name, kind, look):
    learner = Learner(name, kind, *look)
    algorithm = learner.algorithm()
    batch = learner.batch(algorithm)
    kept, before = mapped(batch, torch.clone), algorithm.params.flat.clone()
    modules = {part: [p.detach().clone() for p in m.parameters()] for part, m in algorithm.encoder.parts.items()}
    assert modules
    update = algorithm.learn(batch, Counts())
    assert same(flat(batch), flat(kept))
    assert all(value.ndim == 0 and torch.isfinite(value) for value in update.metrics.values())
    for part, where in algorithm.params.slices.items():
        if where.start < where.stop:
            assert not torch.equal(algorithm.params[part].flat, before[where]), part
    for part, module in algorithm.encoder.parts.items():
        for (key, parameter), old in zip(module.named_parameters(), modules[part], strict=True):
            assert not torch.equal(parameter, old), f"{part}.{key}"
    if update.priorities is not None:
        steps = (LENGTH - learner.context.burn_in,) if learner.has_memory else ()
        assert update.priorities.shape == (8, *steps)
    other = learner.algorithm(seed=9)
    other.load_state(algorithm.state())
    assert same(algorithm.state(), other.state())
    for one in (algorithm, other):
        one.learn(learner.batch(one, 1), Counts(1))
    assert same(algorithm.state(), other.state())


@ALL
def test_the_policy_is_the_learners_network_step_by_step(name, kind, look):
    """This also holds after new episodes in some of the environments."""
    learner = Learner(name, kind, *look)
    algorithm = learner.algorithm()
    algorithm.learn(learner.batch(algorithm), Counts())
    policy, rng, encoder = learner.policy(algorithm), np.random.default_rng(3), algorithm.encoder
    memory = torch.zeros(4, encoder.memory.state_size) if learner.has_memory else None
    begins = np.array([True] * 4)
    for t in range(4):
        obs = learner.obs(4, rng)
        last = PreviousStep(np.zeros((4, *learner.action.column.shape)), np.zeros(4, np.float32), begins)
        out, columns = policy.greedy(obs, last), policy.stored
        with torch.no_grad():
            features = encoder.features(mapped(obs, torch.from_numpy))
            if memory is not None:
                memory[torch.from_numpy(begins)] = 0.0
                np.testing.assert_allclose(columns["state"], memory, rtol=1e-5, atol=1e-5)
                features, memory = encoder.memory.step(features, memory)
            live = Nets(vars(algorithm.nets) | {"encoder": lambda _, x=features: x})
            found = policy.function(live, mapped(obs, torch.from_numpy), policy.first)
            expected = (found[0] if isinstance(found, tuple) else found).mode
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5, err_msg=f"step {t}")
        begins = np.arange(4) == t
    assert columns.keys() == ({"state"} if learner.has_memory else set())


def masked(name, kind, obs=None, **options):
    size = {"discrete": 4, "multidiscrete": 7}[kind]
    parts = {"obs": Column((4,), "float32")} if obs is None else obs
    return Learner(name, kind, {**parts, "action_mask": Column((size,), "bool")}, **options)


def is_allowed(learner, action, mask):
    """Return whether the mask allows each component of the actions, bool `[n, k]`."""
    begins = np.cumsum([0, *learner.action.choices[:-1]])
    return np.take_along_axis(mask, action.reshape(len(mask), -1) + begins, 1)


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("obs", [None, TREE], ids=["vector", "tree"])
@pytest.mark.parametrize(("name", "kind"), MASKED)
def test_only_allowed_actions_are_taken_and_all_of_them_are(name, kind, obs, memory):
    learner = masked(name, kind, obs, memory=memory)
    policy, one = learner.policy(learner.algorithm()), learner.obs(1, np.random.default_rng(1))
    rows = 300
    obs = mapped(one, lambda x: np.repeat(x, rows, 0))
    last, mask = PreviousStep.none(learner.spec, rows), obs["action_mask"]
    assert not mask.all()
    for values in ({"epsilon": 1.0}, {"epsilon": 0.3}, {"epsilon": 0.0}):
        policy.explore(values)
        for action in (policy.act(obs, last)["action"], policy.greedy(obs, last)):
            assert is_allowed(learner, action, mask).all()
    action = policy.random(obs, last)["action"]
    assert is_allowed(learner, action, mask).all()
    begins = np.cumsum([0, *learner.action.choices[:-1]])
    taken = np.unique(action.reshape(rows, -1) + begins)
    assert taken.tolist() == np.nonzero(mask[0])[0].tolist()


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("double", [True, False])
def test_dqns_targets_use_allowed_actions_only(double, memory):
    """Both networks give very high values to illegal next actions."""
    learner = masked("dqn", "discrete", memory=memory, double=double, loss="mse")
    algorithm = learner.algorithm()
    batch = learner.batch(algorithm)
    batch["obs"]["action_mask"][...] = True
    batch["next_obs"]["action_mask"][...] = torch.tensor([True, False, True, False])
    batch["action"] = 2 * (batch["action"] // 2)
    for part in (algorithm.params["online"], algorithm.params.targets["online"]):
        layers(algorithm.nets.online, part.flat)[-1][1::2] = 1e4
    assert algorithm.learn(batch, Counts()).priorities.max() < 100
    if memory == "none":
        fresh = learner.algorithm()
        policy = learner.policy(fresh)
        rows = {f"{key}.{path}": x.numpy() for key in ("obs", "next_obs") for path, x in batch[key].items()}
        rows |= {key: batch[key].numpy() for key in ("action", "reward", "discount")}
        np.testing.assert_allclose(policy.priorities(rows), fresh.learn(batch, Counts()).priorities, rtol=1e-4)


def test_pqns_targets_use_allowed_actions_only():
    learner = masked("pqn", "discrete", epochs=1)
    algorithm = learner.algorithm()
    batch = learner.batch(algorithm)
    batch["next_obs"]["action_mask"][...] = torch.tensor([True, False, True, False])
    batch["action"] = 2 * (batch["action"] // 2)
    layers(algorithm.nets.q)[-1][1::2] = 1e4
    assert algorithm.learn(batch, Counts()).metrics["q_loss"] < 100


def test_munchausens_policy_has_allowed_actions_only():
    """Illegal actions have very high values, so the log-probabilities of legal actions would be very small."""
    learner = masked("dqn", "discrete", loss="mse", soft_temperature=1.0, munchausen=0.9, munchausen_floor=-1e3)
    algorithm = learner.algorithm()
    batch = learner.batch(algorithm)
    batch["obs"]["action_mask"][...] = torch.tensor([True, False, True, False])
    batch["next_obs"]["action_mask"][...] = True
    batch["action"] = 2 * (batch["action"] // 2)
    batch["discount"][...] = 0.0
    layers(algorithm.nets.online, algorithm.params.targets["online"].flat)[-1][1::2] = 1e4
    assert algorithm.learn(batch, Counts()).priorities.max() < 100


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("kind", ["discrete", "multidiscrete"])
def test_ppo_learns_nothing_of_actions_that_are_not_allowed(kind, memory):
    learner = masked("ppo", kind, memory=memory, epochs=1, minibatch_size=1000, seq_len=4, entropy_coef=0.1)
    forbidden = torch.zeros(learner.action.size, dtype=torch.bool)
    forbidden[1], forbidden[-1] = True, True
    original = learner.obs

    def obs(rows, rng):
        drawn = original(rows, rng)
        drawn["action_mask"][...] = ~forbidden.numpy()
        return drawn

    learner.obs = obs
    algorithm = learner.algorithm()
    update = algorithm.learn(learner.batch(algorithm), Counts())
    assert abs(float(update.metrics["approx_kl"])) < 1e-6
    weight, bias = algorithm.nets.actor.on(algorithm.params["actor"].grad).networks[0][-2:]  # the gradients
    assert not bias[forbidden].any()
    assert not weight[:, forbidden].any()
    assert bias[~forbidden].all()
    counts = [2] if kind == "discrete" else [3, 2]
    assert float(update.metrics["entropy"]) <= np.log(np.prod(counts)) + 1e-5

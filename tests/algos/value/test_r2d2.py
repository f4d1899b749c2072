import numpy as np
import pytest
import torch
from graphs import COUNTER, make_config
from learners import BURN_IN, VECTOR, Learner, Plain, taken, target_encoder
from torch.nn import functional

from drl_cli.algos.base import Counts
from drl_cli.algos.rollout import n_step_sequences
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.errors import Refused
from drl_cli.losses import value
from drl_cli.replay.builders import NStepBuilder, SequenceBuilder
from drl_cli.testing.case import tensors

N_STEP, EPS = 3, 1e-2
SUPPORT = torch.linspace(-3, 3, 7).double()


def h(x):
    return torch.sign(x) * (torch.sqrt(x.abs() + 1) - 1) + EPS * x


def h_inverse(x):
    root = torch.sqrt(1 + 4 * EPS * (x.abs() + 1 + EPS))
    return torch.sign(x) * (((root - 1) / (2 * EPS)) ** 2 - 1)


def projected(law, places):
    """Mass of each atom, shared between the two values of the support that its place is between."""
    out = torch.zeros(len(SUPPORT)).double()
    for mass, place in zip(law, places.clamp(-3, 3), strict=True):
        below = min(int(place + 3), 5)
        share = place + 3 - below
        out[below] += mass * (1 - share)
        out[below + 1] += mass * share
    return out


def expected(algorithm, batch, is_c51):
    """Loss, priorities by sequence and step, and the networks after `backward`."""
    online = Plain(algorithm.encoder, online=algorithm.nets.online)
    target = Plain(target_encoder(algorithm), online=algorithm.params.targets["online"].module)
    losses, priorities = [], {}
    for b, mask in enumerate(batch["valid"]):
        begin, end = int(mask.int().argmax()), int(mask.nonzero().max()) + 1
        obs, next_obs = (taken(taken(batch[key], b), slice(begin, end)) for key in ("obs", "next_obs"))
        burn_in, state = max(0, BURN_IN - begin), batch["state"][b : b + 1]
        now, then = online.unrolled(obs, next_obs, state, burn_in)
        with torch.no_grad():
            target_then = target.unrolled(obs, next_obs, state, burn_in)[1]
        first = begin + burn_in
        for t in range(first, end):
            reward, discount, last = torch.zeros(()).double(), 1.0, t - 1
            while last < min(t + N_STEP, end) - 1:
                last += 1
                reward += discount * batch["reward"][b, last]
                discount *= float(batch["discount"][b, last])
            loss, priority = error(
                online.head("online", now[t - first])[0, :],
                batch["action"][b, t],
                online.head("online", then[last - first].detach())[0, :].detach(),
                target.head("online", target_then[last - first])[0, :].detach(),
                (reward, discount),
                is_c51,
            )
            losses.append(batch["weight"][b] * loss)
            priorities[b, t - BURN_IN] = float(priority)
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach()), priorities, online


def error(out, action, chooser, target, window, is_c51):
    reward, discount = window
    if not is_c51:
        y = h(reward + discount * h_inverse(target[chooser.argmax()].double())).float()
        return functional.smooth_l1_loss(out[action], y), (out[action] - y).abs().detach()
    best = (chooser.view(4, 7).softmax(-1).double() @ SUPPORT).argmax()
    law = projected(target.view(4, 7)[best].softmax(-1).double(), h(reward + discount * h_inverse(SUPPORT))).float()
    log_probs = out.view(4, 7)[action].log_softmax(-1)
    return -(law * log_probs).sum(), functional.kl_div(log_probs, law, reduction="sum").detach()


@pytest.mark.parametrize(("memory", "algo"), [("lstm", "dqn"), ("gru", "dqn"), ("lstm", "c51")])
def test_an_update_is_what_the_equations_say(memory, algo):
    options = {"atoms": 7, "v_min": -3.0, "v_max": 3.0} if algo == "c51" else {}
    learner = Learner(algo, "discrete", VECTOR, memory, double=True, n_step=N_STEP, rescale=EPS, **options)
    algorithm = learner.algorithm()
    for one in algorithm.params.targets.values():
        one.flat.add_(0.1 * torch.randn(one.flat.shape, generator=torch.Generator().manual_seed(7)))
    batch = learner.batch(algorithm) | {"weight": torch.linspace(0.2, 1.0, 8)}
    loss, priorities, online = expected(algorithm, batch, algo == "c51")
    update = algorithm.learn(batch, Counts())
    assert float(update.metrics["q_loss"]) == pytest.approx(loss, rel=1e-4)
    given = {where: float(update.priorities[where]) for where in priorities}
    assert given == pytest.approx(priorities, rel=1e-3, abs=1e-5)
    for part in algorithm.params.slices:
        torch.testing.assert_close(algorithm.params[part].grad, online.grads(part), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("n_step", [2, 3, 5])
def test_windows_in_sequences_are_the_rows_of_the_n_step_builder(n_step):
    """But for those that reach beyond the sequence. Counter's observations say which step of which episode it was."""
    config = make_config(COUNTER, "+env.kwargs.base_length=4", "+env.kwargs.spread=5")
    envs = EnvBatch(config.env, read_spec(config.env), range(2))
    builders, rng = [SequenceBuilder(6, 2, 1, 0.9), NStepBuilder(n_step, 0.9)], np.random.default_rng(0)
    for _ in range(80):
        action = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        step = {"obs": envs.obs.copy(), "action": action, **vars(envs.step(action))}
        for builder in builders:
            builder.append(step)
    sequences, rows = (tensors(builder.take()) for builder in builders)
    batch = n_step_sequences(sequences, n_step)
    wanted = {tuple(obs.tolist()): i for i, obs in enumerate(rows["obs"])}
    compared = short = 0
    for b, t in sequences["valid"].nonzero().tolist():
        end = int(sequences["valid"][b].nonzero().max())
        is_over = bool(sequences["terminated"][b, end] | sequences["truncated"][b, end])
        if int(batch["last"][b, t]) - t + 1 < n_step and not is_over:
            continue
        i = wanted.get(tuple(batch["obs"][b, t].tolist()))
        if i is not None:
            compared, short = compared + 1, short + (int(batch["last"][b, t]) - t + 1 < n_step)
            for name in ("reward", "discount", "next_obs"):
                torch.testing.assert_close(batch[name][b, t], rows[name][i])
    assert compared > 80
    assert short > 10


def test_rescaling_is_the_papers_and_its_inverse():
    x = torch.cat([-torch.logspace(-4, 4, 50), torch.zeros(1), torch.logspace(-4, 4, 50)]).double()
    torch.testing.assert_close(value.rescaled(x, EPS), h(x))
    torch.testing.assert_close(value.unscaled(x, EPS), h_inverse(x))
    torch.testing.assert_close(value.unscaled(value.rescaled(x, EPS), EPS), x)
    assert value.rescaled(np.array([3.0, -3.0, 0.0]), 0.001).tolist() == pytest.approx([1.003, -1.003, 0.0])
    single = torch.linspace(-0.01, 0.01, 101)  # the paper's form loses all digits here
    torch.testing.assert_close(value.unscaled(value.rescaled(single, 1e-3), 1e-3), single, rtol=1e-5, atol=0)


@pytest.mark.parametrize("algo", ["dqn", "c51"])
def test_priorities_of_policy_and_trainer_are_equal_with_rescaling(algo):
    options = {"atoms": 7, "v_min": -3.0, "v_max": 3.0} if algo == "c51" else {}
    learner = Learner(algo, "discrete", VECTOR, double=True, rescale=0.5, **options)
    algorithm = learner.algorithm()
    batch = learner.batch(algorithm)
    rows = {name: column.numpy() for name, column in batch.items()}
    given = learner.policy(algorithm).priorities(rows)
    np.testing.assert_allclose(given, algorithm.learn(batch, Counts()).priorities, rtol=1e-3, atol=1e-5)


def test_rescaled_values_have_no_entropy():
    with pytest.raises(Refused, match=r"algo\.rescale.*algo\.soft_temperature"):
        Learner("dqn", "discrete", VECTOR, rescale=1e-3, soft_temperature=0.1).algorithm()


def test_each_environment_explores_by_its_own_epsilon():
    learner = Learner("dqn", "discrete", VECTOR)
    policy = learner.policy(learner.algorithm())
    obs = np.zeros((3, 3, 2), np.float32)
    best = policy.greedy(obs)[0]
    policy.explore({"epsilon": np.array([0.0, 0.5, 1.0])})
    others = np.mean([policy.act(obs)["action"] != best for _ in range(2000)], 0)
    np.testing.assert_allclose(others, [0.0, 0.5 * 3 / 4, 3 / 4], atol=0.04)
    policy.explore({"epsilon": 0.0, "temperature": np.array([1e-6, 1.0, 1e6])})
    others = np.mean([policy.act(obs)["action"] != best for _ in range(500)], 0)
    assert others[0] == 0 < others[1] < others[2] == pytest.approx(3 / 4, abs=0.08)

import numpy as np
import pytest
import torch
from continuous import gradient
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.losses.returns import lambda_returns
from drl_cli.testing import Case

SMALL = (
    *("env=CartPole-v1", "network.hidden=[8]", "network.layer_norm=false", "algo.q_lambda=0.7", "algo.lr=1e-2"),
    *("algo.epochs=1", "algo.minibatch_size=null", "optimizer.max_norm=null", "optimizer.name=adam"),
    "trainer.on_nonfinite=stop",
)


def q_lambda(reward, discount, best, cut, lambda_):
    """The mixture of all n-step returns of each row, weighted by (1 - lambda) lambda^(n - 1), as in the definition."""
    targets = []
    for t in range(len(reward)):
        end = next(i for i in range(t, len(reward)) if cut[i] or i == len(reward) - 1)
        total, product, n_step = 0.0, 1.0, []
        for k in range(t, end + 1):
            total += product * reward[k]
            product *= discount[k]
            n_step.append(total + product * best[k])
        shares = [(1 - lambda_) * lambda_**n for n in range(len(n_step) - 1)] + [lambda_ ** (len(n_step) - 1)]
        targets.append(sum(share * value for share, value in zip(shares, n_step, strict=True)))
    return torch.tensor(targets)


@pytest.mark.parametrize("lambda_", [0.0, 0.6, 1.0])
def test_the_targets_are_mixtures_of_n_step_returns(lambda_):
    rng = np.random.default_rng(0)
    reward, best = rng.standard_normal((2, 30))
    cut = rng.random(30) < 0.2
    discount = np.where(rng.random(30) < 0.5, 0.9, 0.9 * ~cut)  # some cuts are terminations
    columns = [torch.from_numpy(x) for x in (reward, discount, best, cut)]
    ours = lambda_returns(*columns, lambda_)
    torch.testing.assert_close(ours.double(), q_lambda(*columns, lambda_), rtol=1e-5, atol=1e-5)


def test_an_update_equals_an_independent_implementation():
    case = Case("pqn", *SMALL)
    algorithm, batch = case.algorithm(), case.batch(0, 40)
    network = sequential(algorithm.params["q"].flat.clone(), (4, 8, 2), "relu")
    doubled = {name: c.double() if c.dtype == torch.float32 else c for name, c in batch.items()}
    best = network(doubled["next_obs"]).max(1).values.detach()
    target = q_lambda(doubled["reward"], doubled["discount"], best, doubled["cut"], 0.7)
    error = network(doubled["obs"])[torch.arange(40), batch["action"]] - target
    loss = 0.5 * error.square().mean()
    loss.backward()
    start, update = algorithm.params.flat.clone(), algorithm.learn(dict(batch), Counts())
    assert update.steps == 1
    assert update.metrics["q_loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    assert (algorithm.params.flat - start).abs().max() > 5e-3
    torch.testing.assert_close(algorithm.params["q"].grad.double(), gradient(network), rtol=1e-3, atol=1e-5)


def test_rows_of_weight_0_change_neither_metrics_nor_gradients():
    case = Case("pqn", *SMALL)
    algorithm, batch = case.algorithm(), case.batch(0, 40)
    rows = {"obs": batch["obs"], "action": batch["action"], "target": batch["reward"]}
    gradients = algorithm.minibatches.gradients
    loss, expected = gradients({name: column[:30] for name, column in rows.items()}, ())
    grad = algorithm.params.grad.clone()
    weight = torch.cat([torch.full((30,), 4 / 3), torch.zeros(10)])
    torch.testing.assert_close(gradients(rows | {"weight": weight}, ()), (loss, expected))
    torch.testing.assert_close(algorithm.params.grad, grad)


def test_epsilon_falls_over_the_run_and_the_policy_follows_it():
    case = Case("pqn", "env=CartPole-v1", "network.hidden=[8]", "algo.epsilon_steps=100", "algo.epsilon_end=0.2")
    algorithm = case.algorithm()
    assert [algorithm.exploration(steps)["epsilon"] for steps in (0, 50, 1000)] == pytest.approx([1.0, 0.6, 0.2])
    policy, obs = case.policy(0, algorithm), np.zeros((4000, 4), np.float32)
    best = policy.greedy(obs)
    for epsilon in (1.0, 0.2, 0.0):
        policy.explore({"epsilon": epsilon})
        assert (policy.act(obs)["action"] != best).mean() == pytest.approx(epsilon / 2, abs=0.03)


def test_each_row_is_learned_from_once_in_every_epoch():
    case = Case("pqn", "env=CartPole-v1", "network.hidden=[8]", "algo.minibatch_size=10", "algo.epochs=3")
    assert case.algorithm().learn(case.batch(0, 40), Counts()).steps == 12

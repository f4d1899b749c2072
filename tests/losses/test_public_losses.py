"""Returns of rollouts [n, T] against sums over whole episodes, written in plain Python."""

import numpy as np
import pytest
import torch

from drl_cli import api as drl

losses = drl.losses
N, T = 3, 7


def rollout(seed=0, cuts=0.3):
    rng = np.random.default_rng(seed)
    reward, value, next_value, log_ratio = rng.standard_normal((4, N, T))
    cut = rng.random((N, T)) < cuts
    discount = np.where(cut & (rng.random((N, T)) < 0.5), 0.0, 0.9)
    following = np.concatenate([value[:, 1:], next_value[:, -1:]], 1)
    next_value = np.where(cut, next_value, following)  # inside an episode, next_obs is the next row's obs
    names = ("reward", "discount", "value", "next_value", "cut", "log_ratio")
    arrays = (reward, discount, value, next_value, cut, log_ratio)
    return {name: torch.from_numpy(x) for name, x in zip(names, arrays, strict=True)}


def pick(rows, *names):
    return [rows[name] for name in names]


def steps(cut, i, t, most=T):
    """Return the indices of the steps t, t + 1, ... of the same episode in piece i."""
    end = t
    while end < T - 1 and not cut[i, end] and end - t + 1 < most:
        end += 1
    return range(t, end + 1)


def brute(rows, term, decay):
    """Return sum_k (prod_{j < k} decay_{t+j}) term_{t+k} over the rest of the episode, for each step."""
    out = np.zeros((N, T))
    for i in range(N):
        for t in range(T):
            product = 1.0
            for k in steps(rows["cut"], i, t):
                out[i, t] += product * float(term[i, k])
                product *= float(decay[i, k])
    return out


@pytest.mark.parametrize("seed", range(3))
def test_gae(seed):
    rows = rollout(seed)
    reward, discount, value, next_value, cut = pick(rows, "reward", "discount", "value", "next_value", "cut")
    got = losses.gae(reward, discount, value, next_value, cut, 0.8)
    np.testing.assert_allclose(got, brute(rows, reward + discount * next_value - value, discount * 0.8))
    ends = cut.clone()
    ends[:, -1] = True  # all rows one after another, as in PPO
    flat = losses.gae(*(x.flatten() for x in (reward, discount, value, next_value, ends)), 0.8)
    torch.testing.assert_close(flat, got.flatten())
    returns = losses.lambda_returns(reward, discount, next_value, cut, 0.8)
    np.testing.assert_allclose(returns, got + value)


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_n_step_returns(n):
    rows = rollout()
    reward, discount, next_value, cut = pick(rows, "reward", "discount", "next_value", "cut")
    got = losses.n_step_returns(reward, discount, next_value, cut, n)
    for i in range(N):
        for t in range(T):
            expected, product = 0.0, 1.0
            for k in steps(cut, i, t, n):
                expected += product * float(reward[i, k])
                product *= float(discount[i, k])
            assert float(got[i, t]) == pytest.approx(expected + product * float(next_value[i, k]))


@pytest.mark.parametrize(("rho_max", "c_max", "lambda_"), [(1.0, 1.0, 1.0), (2.0, 0.5, 0.9)])
def test_vtrace(rho_max, c_max, lambda_):
    rows = rollout()
    reward, discount, value, next_value, cut, log_ratio = rows.values()
    rho, c = log_ratio.exp().clamp(max=rho_max), lambda_ * log_ratio.exp().clamp(max=c_max)
    delta = rho * (reward + discount * next_value - value)
    expected = value.numpy() + brute(rows, delta, discount * c)
    target, advantage = losses.vtrace(*rows.values(), rho_max, c_max, lambda_)
    np.testing.assert_allclose(target, expected)
    for i in range(N):
        for t in range(T):
            last = t == T - 1 or bool(cut[i, t])
            following = float(next_value[i, t]) if last else expected[i, t + 1]
            one = float(rho[i, t] * (reward[i, t] + discount[i, t] * following - value[i, t]))
            assert float(advantage[i, t]) == pytest.approx(one)


def test_vtrace_on_policy_gives_n_step_returns():
    rows = rollout()
    rows["log_ratio"] = torch.zeros(N, T, dtype=torch.float64)
    reward, discount, value, next_value, cut, _ = rows.values()
    target, advantage = losses.vtrace(*rows.values())
    expected = losses.n_step_returns(reward, discount, next_value, cut, T)
    torch.testing.assert_close(target, expected)
    torch.testing.assert_close(target, losses.lambda_returns(reward, discount, next_value, cut, 1.0))
    torch.testing.assert_close(advantage, expected - value)


def test_retrace():
    rows = rollout()
    reward, discount, q, next_value, cut, log_ratio = rows.values()
    next_value = next_value + 0.3  # the expectation of Q differs from Q of the next action
    c = 0.9 * np.minimum(1.0, np.exp(log_ratio.numpy()))
    following = np.concatenate([c[:, 1:], np.zeros((N, 1))], 1)
    expected = q.numpy() + brute(rows, reward + discount * next_value - q, discount.numpy() * following)
    np.testing.assert_allclose(losses.retrace(reward, discount, q, next_value, cut, log_ratio, 0.9), expected)


def test_literal_numbers():
    """Two steps of reward 1 and 2, gamma 0.5, V = 0, V(last next_obs) = 4: 1 + 0.5 * (2 + 0.5 * 4) = 3."""
    reward, value, next_value = (torch.tensor([x]) for x in ([1.0, 2.0], [0.0, 0.0], [0.0, 4.0]))
    discount, cut = torch.full((1, 2), 0.5), torch.tensor([[False, False]])
    assert losses.n_step_returns(reward, discount, next_value, cut, 2).tolist() == [[3.0, 4.0]]
    assert losses.gae(reward, discount, value, next_value, cut, 0.5).tolist() == [[2.0, 4.0]]
    log_ratio = torch.tensor([[3.0, 0.5]]).log()  # rho = c = (1, 0.5): v_1 = 0.5 * 4 = 2, v_0 = 1 + 0.5 * 2 = 2
    target, advantage = losses.vtrace(reward, discount, value, next_value, cut, log_ratio)
    torch.testing.assert_close(target, torch.tensor([[2.0, 2.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[2.0, 2.0]]))
    torch.testing.assert_close(
        losses.retrace(reward, discount, value, next_value, cut, log_ratio), torch.tensor([[2.0, 4.0]])
    )


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def test_losses_are_scalars_with_gradients():
    error = leaf(0.5, -3.0)
    losses.huber(error).backward()
    assert (losses.huber(error).item(), error.grad.tolist()) == (pytest.approx((0.125 + 2.5) / 2), [0.25, -0.5])
    weight = torch.tensor([2.0, 0.0])
    assert losses.mse(error, weight).item() == pytest.approx(0.25)
    q = torch.tensor([[1.0, 2.0, 1.0], [3.0, 5.0, 2.0]], requires_grad=True)
    loss = losses.twin_critics(q, torch.ones(3), torch.tensor([3.0, 0.0, 6.0]))
    loss.backward()
    assert (loss.item(), q.grad.tolist()) == (pytest.approx(6.0), [[0.0, 0.0, 0.0], [4.0, 0.0, 4.0]])
    quantiles = torch.tensor([[0.0, 2.0]], requires_grad=True)
    loss = losses.quantile_critic(quantiles, torch.tensor([[1.0]]), torch.tensor([0.25, 0.75]))
    loss.backward()
    assert (loss.item(), quantiles.grad.tolist()) == (pytest.approx(0.25 * 0.5 + 0.25 * 0.5), [[-0.25, 0.25]])
    logits = torch.zeros(1, 2, requires_grad=True)
    losses.categorical_critic(logits, torch.tensor([[1.0, 0.0]])).backward()
    assert logits.grad.tolist() == [[-0.5, 0.5]]


@pytest.mark.parametrize("shapes", [((2, 5, 1), (5,)), ((2, 5), (5, 1)), ((5, 2), (5,)), ((5,), (5,))])
def test_critics_of_other_shapes_are_refused(shapes):
    with pytest.raises(ValueError, match=r"q has shape .* needed are \[N, B\] and \[B\]"):
        losses.twin_critics(*(torch.zeros(shape) for shape in shapes))


def test_clipped_surrogate():
    log_ratio = torch.tensor([1.5, 1.1, 0.5]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 2.0])
    loss = losses.clipped_surrogate(log_ratio, advantage, 0.2)
    loss.backward()
    assert loss.item() == pytest.approx(-(1.2 - 1.1 + 1.0) / 3)
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, 1.1, -1.0]) / 3)
    masked = losses.clipped_surrogate(log_ratio, advantage, 0.2, torch.tensor([0.0, 1.0, 1.0]))
    assert masked.item() == pytest.approx(-(-1.1 + 1.0) / 3)

"""Returns and advantages of steps in time order, `[..., T]`, as pure functions of tensors.

Arguments of the functions, without gradients and all in one shape, `[T]` for a rollout or `[n, T]` for n pieces of it:

- `reward`, and `discount`, which is gamma, or 0 if the episode terminated with this step
- `value` = V(obs), and `next_value` = V(next_obs)
- `cut`, bool: True if the next step does not continue this step's episode. The last step always counts as a cut. At a
  cut, results bootstrap from `next_value`.
"""

from drl_cli.utils.lazy import Tensor, torch


def backward_sum(term: Tensor, decay: Tensor) -> Tensor:
    """Return x with x_t = term_t + decay_t x_{t+1} and, for the last step, x_T = term_T. All tensors are `[..., T]`.

    Each pass of the loop doubles the number of steps in each sum, so log2(T) passes suffice (Hillis and Steele 1986).
    """
    sums, products, covered, length = term, decay, 1, term.shape[-1]
    while covered < length:  # sums_t covers `covered` steps from t on, and products_t is the product of their decays
        begin = length - covered
        longer = torch.addcmul(sums[..., :begin], products[..., :begin], sums[..., covered:])
        sums = torch.cat([longer, sums[..., begin:]], -1)
        products = products[..., :-covered] * products[..., covered:]
        covered *= 2
    return sums


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float = 0.95
) -> Tensor:
    """Return generalised advantage estimates `[..., T]` (GAE, Schulman et al. 2015, arXiv 1506.02438, eq. 16).

    The critic's targets, which are lambda-returns, are the advantages plus `value`.
    """
    delta = reward + discount * next_value - value
    return backward_sum(delta, torch.where(cut, 0.0, discount * lambda_))


def lambda_returns(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, lambda_: float = 0.95) -> Tensor:
    """Return lambda-returns `[..., T]`: G_t = r_t + discount_t ((1 - lambda) V(next_obs_t) + lambda G_{t+1}).

    At a cut, G_{t+1} is V(next_obs_t) (Sutton & Barto 2018, eq. 12.2). With lambda = 1, the results are n-step returns
    that end at the next cut. With lambda = 0, they are 1-step returns. With V(next_obs) = max_a Q(next_obs, a), they
    are the targets of Q(lambda) (Peng & Williams 1994).
    """
    is_last = cut.clone()
    is_last[..., -1] = True
    share = torch.full_like(reward, 1.0 - lambda_).masked_fill(is_last, 1.0)
    return backward_sum(reward + discount * share * next_value, torch.where(cut, 0.0, discount * lambda_))


def n_step_returns(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, n: int) -> Tensor:
    """Return the return of each step over at most `n` steps, in the shape of `reward`.

    G_t = sum_{k < m} (prod_{j < k} discount_{t+j}) r_{t+k} + (prod_{j < m} discount_{t+j}) V(next_obs_{t+m-1})

    The number of steps m is `n`, or fewer if the next cut comes earlier (Sutton & Barto 2018, eq. 7.1).
    """
    result = reward + discount * next_value
    for _ in range(n - 1):
        following = torch.cat([result[..., 1:], next_value[..., -1:]], -1)
        result = reward + discount * torch.where(cut, next_value, following)
    return result


def vtrace(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    cut: Tensor,
    log_ratio: Tensor,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    lambda_: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return V-trace's value targets and advantages, `[..., T]` each (IMPALA, Espeholt et al. 2018, eq. 1).

    `log_ratio` is log pi(a|s) - log mu(a|s), where pi is the learner's policy and mu is the policy that acted.

        delta_t = rho_t (r_t + discount_t V(next_obs_t) - V_t)
        v_t = V_t + delta_t + discount_t c_t (v_{t+1} - V_{t+1})
        advantage_t = rho_t (r_t + discount_t v_{t+1} - V_t), with v_{t+1} = V(next_obs_t) at a cut

    Here rho = min(rho_max, ratio) and c = lambda min(c_max, ratio). The advantage contains rho, as in the paper's
    policy gradient. If both policies are equal (ratio 1), v_t is the n-step return that ends at the next cut.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_max), lambda_ * ratio.clamp(max=c_max)
    delta = rho * (reward + discount * next_value - value)
    target = value + backward_sum(delta, torch.where(cut, 0.0, discount * c))
    following = torch.where(cut, next_value, torch.cat([target[..., 1:], next_value[..., -1:]], -1))
    return target, rho * (reward + discount * following - value)


def retrace(
    reward: Tensor,
    discount: Tensor,
    q: Tensor,
    next_value: Tensor,
    cut: Tensor,
    log_ratio: Tensor,
    lambda_: float = 1.0,
) -> Tensor:
    """Return Retrace's targets for Q(s, a), `[..., T]` (Munos et al. 2016, arXiv 1606.02647, eq. 3 and 4).

    `q` is Q(s_t, a_t), and `next_value` is the mean of Q(next_obs_t, a) over actions a of the learner's policy pi.
    `log_ratio` is log pi(a|s) - log mu(a|s), where mu is the policy that acted.

        delta_t = r_t + discount_t next_value_t - Q_t
        target_t = Q_t + delta_t + discount_t c_{t+1} (target_{t+1} - Q_{t+1}),   c = lambda min(1, ratio)
    """
    delta = reward + discount * next_value - q
    c = lambda_ * log_ratio.exp().clamp(max=1.0)
    following = torch.cat([c[..., 1:], torch.zeros_like(c[..., :1])], -1)
    return q + backward_sum(delta, torch.where(cut, 0.0, discount * following))


def n_step_windows(reward: Tensor, discount: Tensor, valid: Tensor, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the n-step rewards and discounts of sequences, and the index of each window's last step, `[B, L]` each.

    The window of step t has m steps: n, or fewer if the sequence or the episode ends earlier. With rewards r_i and
    1-step discounts d_i, which are 0 only if the episode terminated:

        reward_t = sum_{k < m} (prod_{j < k} d_{t+j}) r_{t+k},   discount_t = prod_{j < m} d_{t+j}

    The caller bootstraps from the observation after the window's last step, t + m - 1. `valid` is False for padding.
    Consecutive valid steps of a row have to belong to one episode. The results for padding are meaningless.
    """
    total, product, last = reward.clone(), discount.clone(), torch.arange(valid.shape[1], device=valid.device)
    last = last.expand(valid.shape).clone()
    for k in range(1, min(n_step, valid.shape[1])):
        follows = valid[:, :-k] & valid[:, k:]  # whether the window of step t contains step t + k
        total[:, :-k] += torch.where(follows, product[:, :-k] * reward[:, k:], 0.0)
        product[:, :-k] *= torch.where(follows, discount[:, k:], 1.0)
        last[:, :-k] += follows
    return total, product, last

"""Returns and advantages of consecutive steps, as pure functions of tensors.

All tensors have one shape: `[T]` for a rollout of T steps, or `[n, T]` for n sequences of T steps. The functions do not
detach them from autograd's graph. The arguments are:

- `reward`: the rewards of the steps
- `discount`: gamma, or 0 if the episode terminated with this step
- `value`: V(obs), an estimate of the return from this step on
- `next_value`: V(next_obs)
- `cut`, bool: True if the next step belongs to another episode. The last of the T steps always counts as a cut. At a
  cut, results bootstrap from `next_value`.
"""

from drl_cli.utils.lazy import Tensor, torch


def backward_sum(term: Tensor, decay: Tensor) -> Tensor:
    """Return x with x_t = term_t + decay_t x_{t+1} and, for the last step, x_T = term_T. All tensors are `[..., T]`.

    The last decay has no effect. Each pass of the loop doubles the number of terms in each sum, so log2(T) passes
    suffice (Hillis and Steele 1986).
    """
    num_steps = term.shape[-1]
    num_terms = 1  # in each sum; a sum that reaches the last step is complete and may have fewer
    # sums_t has the terms from step t on, and products_t is the product of the decays of these steps.
    sums, products = term, decay
    while num_terms < num_steps:
        num_incomplete = num_steps - num_terms
        following = sums[..., num_terms:]  # the sum of the next terms, for each incomplete sum
        longer = torch.addcmul(sums[..., :num_incomplete], products[..., :num_incomplete], following)
        sums = torch.cat([longer, sums[..., num_incomplete:]], -1)
        products = products[..., :-num_terms] * products[..., num_terms:]  # complete sums need no products
        num_terms *= 2
    return sums


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float = 0.95
) -> Tensor:
    """Return generalised advantage estimates `[..., T]` (GAE, Schulman et al. 2015, arXiv 1506.02438, eq. 16).

        delta_t = reward_t + discount_t next_value_t - value_t
        advantage_t = delta_t + discount_t lambda advantage_{t+1}, or delta_t at a cut

    A cut is a step where `cut` is True, or the last of the T steps. The advantages plus `value` are lambda-returns,
    which are targets for the critic.
    """
    delta = reward + discount * next_value - value
    decay = torch.where(cut, 0.0, discount * lambda_)
    return backward_sum(delta, decay)


def lambda_returns(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, lambda_: float = 0.95) -> Tensor:
    """Return lambda-returns `[..., T]`: G_t = r_t + discount_t ((1 - lambda) V(next_obs_t) + lambda G_{t+1}).

    V(next_obs_t) is `next_value`. At a cut (`cut` is True, or the last of the T steps), V(next_obs_t) replaces G_{t+1}
    (Sutton & Barto 2018, eq. 12.2 as a recursion). With lambda = 1, the results are n-step returns that end at the next
    cut. With lambda = 0, the results are 1-step returns. If `next_value` is max_a Q(next_obs, a), the results are the
    targets of Q(lambda) (Peng & Williams 1994).
    """
    is_cut = cut.clone()
    is_cut[..., -1] = True
    value_share = torch.full_like(reward, 1.0 - lambda_).masked_fill(is_cut, 1.0)  # the factor of V(next_obs)
    term = reward + discount * value_share * next_value
    decay = torch.where(is_cut, 0.0, discount * lambda_)
    return backward_sum(term, decay)


def n_step_returns(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, n: int) -> Tensor:
    """Return the n-step return of each step, `[..., T]` (Sutton & Barto 2018, eq. 7.1).

        G_t = sum_{k < m} (prod_{j < k} discount_{t+j}) r_{t+k} + (prod_{j < m} discount_{t+j}) V(next_obs_{t+m-1})

    The number of steps m is `n`, or fewer if a cut (`cut` is True, or the last of the T steps) comes earlier.
    V(next_obs) is `next_value`.
    """
    result = reward + discount * next_value
    for _ in range(n - 1):  # each pass makes the returns one step longer, except at a cut
        following = torch.cat([result[..., 1:], next_value[..., -1:]], -1)  # the return of the next step
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
    """Return V-trace's value targets v and advantages, `[..., T]` each (IMPALA, Espeholt et al. 2018, eq. 1).

    V is `value`, and V(next_obs) is `next_value`. `log_ratio` is log pi(a|s) - log mu(a|s), where pi is the learner's
    policy and mu is the policy that acted. With ratio = pi(a|s) / mu(a|s), rho = min(rho_max, ratio) and
    c = lambda min(c_max, ratio):

        delta_t = rho_t (r_t + discount_t V(next_obs_t) - V_t)
        v_t = V_t + delta_t + discount_t c_t (v_{t+1} - V_{t+1})
        advantage_t = rho_t (r_t + discount_t v_{t+1} - V_t), with v_{t+1} = V(next_obs_t) at a cut

    A cut is a step where `cut` is True, or the last of the T steps. There, the last term of v_t is 0. The advantage
    contains the factor rho, as in the paper's policy gradient. If both policies are equal, the default `rho_max`,
    `c_max` and `lambda_` make v_t the n-step return that ends at the next cut.
    """
    ratio = log_ratio.exp()
    rho = ratio.clamp(max=rho_max)
    c = lambda_ * ratio.clamp(max=c_max)
    delta = rho * (reward + discount * next_value - value)
    decay = torch.where(cut, 0.0, discount * c)
    target = value + backward_sum(delta, decay)
    following = torch.cat([target[..., 1:], next_value[..., -1:]], -1)  # the target of the next step
    next_target = torch.where(cut, next_value, following)
    advantage = rho * (reward + discount * next_target - value)
    return target, advantage


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

    `q` is Q_t = Q(s_t, a_t), and `next_value` is the mean of Q(next_obs_t, a) over actions a of the learner's policy
    pi. `log_ratio` is log pi(a|s) - log mu(a|s), where mu is the policy that acted. With c = lambda min(1, pi(a|s) /
    mu(a|s)):

        delta_t = r_t + discount_t next_value_t - Q_t
        target_t = Q_t + delta_t + discount_t c_{t+1} (target_{t+1} - Q_{t+1})

    At a cut (`cut` is True, or the last of the T steps), the last term is 0.
    """
    delta = reward + discount * next_value - q
    c = lambda_ * log_ratio.exp().clamp(max=1.0)
    next_c = torch.cat([c[..., 1:], torch.zeros_like(c[..., :1])], -1)
    decay = torch.where(cut, 0.0, discount * next_c)
    return q + backward_sum(delta, decay)


def n_step_windows(reward: Tensor, discount: Tensor, valid: Tensor, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return n-step rewards, n-step discounts, and the index of the last step of each n-step window, `[B, L]` each.

    `reward`, `discount` and `valid` `[B, L]` have B sequences of L steps. `valid` is False for padding. The valid steps
    of a sequence have to be consecutive steps of one episode. The window of step t has m steps from t on: m = `n_step`,
    or fewer if the valid steps end earlier. With rewards r and 1-step discounts d, the results are

        reward_t = sum_{k < m} (prod_{j < k} d_{t+j}) r_{t+k}
        discount_t = prod_{j < m} d_{t+j}
        last_t = t + m - 1

    The caller bootstraps from the observation after the step `last_t`. The results for padding are meaningless.
    """
    length = valid.shape[1]
    total, product = reward.clone(), discount.clone()
    last = torch.arange(length, device=valid.device).expand(valid.shape).clone()
    for k in range(1, min(n_step, length)):  # add step t + k, [:, k:], to the window of step t, [:, :-k]
        is_added = valid[:, :-k] & valid[:, k:]
        total[:, :-k] += torch.where(is_added, product[:, :-k] * reward[:, k:], 0.0)
        product[:, :-k] *= torch.where(is_added, discount[:, k:], 1.0)
        last[:, :-k] += is_added.long()
    return total, product, last

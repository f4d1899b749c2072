"""Returns and advantages of rollouts `[n, T]`: n pieces of T consecutive steps, as pure functions of tensors.

Each function takes `reward`, `discount` (gamma, or 0 where the episode terminated), `value` = V(obs) and `next_value` =
V(next_obs), all `[n, T]` and without a gradient. `cut`, bool `[n, T]`, is True where the next step does not continue
this step's episode. The last step of a piece counts as a cut. At a cut, results bootstrap from `next_value`.
"""

from drl_cli.utils.lazy import Tensor, torch


def backward_sum(term: Tensor, decay: Tensor) -> Tensor:
    """Return x with x_t = term_t + decay_t x_{t+1}, and x_T = term_T. Everything is `[n, T]`."""
    sums, following = [], torch.zeros_like(term[:, 0])
    for t in range(term.shape[1] - 1, -1, -1):
        following = term[:, t] + decay[:, t] * following
        sums.append(following)
    return torch.stack(sums[::-1], 1)


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lambda_: float = 0.95
) -> Tensor:
    """Return generalised advantage estimates `[n, T]` (GAE, Schulman et al. 2015, arXiv 1506.02438, eq. 16).

    The lambda-returns, targets for the critic, are the advantages plus `value`.
    """
    delta = reward + discount * next_value - value
    return backward_sum(delta, torch.where(cut, 0.0, discount * lambda_))


def lambda_returns(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, lambda_: float = 0.95) -> Tensor:
    """Return lambda-returns `[n, T]`: G_t = r_t + discount_t ((1 - lambda) V(next_obs_t) + lambda G_{t+1}).

    With lambda = 1, these are the n-step returns up to the next cut; with lambda = 0, the 1-step returns. At a cut,
    G_{t+1} is V(next_obs_t) (Sutton & Barto 2018, eq. 12.2).
    """
    is_last = cut.clone()
    is_last[:, -1] = True
    share = torch.full_like(reward, 1.0 - lambda_).masked_fill(is_last, 1.0)
    return backward_sum(reward + discount * share * next_value, torch.where(cut, 0.0, discount * lambda_))


def n_step_returns(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, n: int) -> Tensor:
    """Return the return of each step over at most `n` steps, in the shape of `reward`.

    G_t = sum_{k < m} (prod_{j < k} discount_{t+j}) r_{t+k} + (prod_{j < m} discount_{t+j}) V(next_obs_{t+m-1}), where
    m is `n`, or the number of steps up to and including the next cut if this is less (Sutton & Barto 2018, eq. 7.1).
    """
    result = reward + discount * next_value
    for _ in range(n - 1):
        following = torch.cat([result[:, 1:], next_value[:, -1:]], 1)
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
    """Return V-trace's value targets and advantages, `[n, T]` each (IMPALA, Espeholt et al. 2018, eq. 1).

    `log_ratio` is log pi(a|s) - log mu(a|s): the learner's log-probability minus the log-probability when acting.

        delta_t = rho_t (r_t + discount_t V(next_obs_t) - V_t)
        v_t = V_t + delta_t + discount_t c_t (v_{t+1} - V_{t+1})
        advantage_t = rho_t (r_t + discount_t v_{t+1} - V_t), with v_{t+1} = V(next_obs_t) at a cut

    rho = min(rho_max, ratio) and c = lambda min(c_max, ratio). The advantage already contains rho, as in the paper's
    policy gradient. On-policy (ratio 1), v_t is the n-step return up to the next cut.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_max), lambda_ * ratio.clamp(max=c_max)
    delta = rho * (reward + discount * next_value - value)
    target = value + backward_sum(delta, torch.where(cut, 0.0, discount * c))
    following = torch.where(cut, next_value, torch.cat([target[:, 1:], next_value[:, -1:]], 1))
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
    """Return Retrace's targets for Q(s, a), `[n, T]` (Munos et al. 2016, arXiv 1606.02647, eq. 3 and 4).

    `q` is Q(s_t, a_t) and `next_value` the expectation of Q(next_obs_t, .) under the learner's policy. `log_ratio` is
    log pi(a|s) - log mu(a|s).

        target_t = Q_t + delta_t + discount_t c_{t+1} (target_{t+1} - Q_{t+1}),   c = lambda min(1, ratio)
    """
    delta = reward + discount * next_value - q
    c = lambda_ * log_ratio.exp().clamp(max=1.0)
    following = torch.cat([c[:, 1:], torch.zeros_like(c[:, :1])], 1)
    return q + backward_sum(delta, torch.where(cut, 0.0, discount * following))

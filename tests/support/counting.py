"""What the rows of the Counter probe must look like."""

import numpy as np


def check_counter_rows(rows, n_step, gamma, env_steps, may_miss=0):
    """Rows of all environments, in order of insertion: none lost, doubled, reordered or across an episode."""
    tags = np.unique(rows["obs"][:, 0])
    total = 0
    for tag in tags:
        mine = rows["obs"][:, 0] == tag
        episode, count = 0, 0
        for obs, next_obs, reward, discount, terminated, truncated in zip(
            *(rows[name][mine] for name in ("obs", "next_obs", "reward", "discount", "terminated", "truncated")),
            strict=True,
        ):
            length = 3 + episode % 5
            assert tuple(obs) == (tag, episode, count)
            steps = min(n_step, length - count)
            ended = count + steps == length
            assert tuple(next_obs) == (tag, episode, count + steps)
            assert np.isclose(reward, sum(gamma**j * (count + 1 + j) for j in range(steps)), rtol=1e-5)
            assert terminated == (ended and episode % 2 == 0)
            assert truncated == (ended and episode % 2 == 1)
            assert np.isclose(discount, 0.0 if terminated else gamma**steps)
            total += 1
            count += 1
            if count == length:
                episode, count = episode + 1, 0
    assert env_steps - (n_step - 1) * len(tags) - may_miss <= total <= env_steps

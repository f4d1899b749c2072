"""Checks of rows of the probes Counter and Tree."""

import numpy as np

from drl_cli.envs.probes import stamp


def check_counter_rows(rows, n_step, gamma, env_steps, may_miss=0, failed_after=None):
    """Check n-step rows in order of insertion: none is lost, doubled, reordered or spans two episodes.

    `failed_after` has, by the environment's tag, the number of steps after which it failed.
    """
    tags = np.unique(rows["obs"][:, 0])
    total = 0
    for tag in tags:
        mine = rows["obs"][:, 0] == tag
        episode, count, left = 0, 0, (failed_after or {}).get(tag, np.inf)
        for obs, next_obs, reward, discount, terminated, truncated in zip(
            *(rows[name][mine] for name in ("obs", "next_obs", "reward", "discount", "terminated", "truncated")),
            strict=True,
        ):
            length = 3 + episode % 5
            assert tuple(obs) == (tag, episode, count)
            steps = min(n_step, length - count, left)
            ended = count + steps == length
            is_cut = not ended and steps < n_step
            assert tuple(next_obs) == (tag, episode, count + steps)
            assert np.isclose(reward, sum(gamma**j * (count + 1 + j) for j in range(steps)), rtol=1e-5)
            assert terminated == (ended and episode % 2 == 0)
            assert truncated == ((ended and episode % 2 == 1) or is_cut)
            assert np.isclose(discount, 0.0 if terminated else gamma**steps)
            total, count, left = total + 1, count + 1, left - 1
            if count == length:
                episode, count = episode + 1, 0
        assert left in (0, np.inf)
    assert env_steps - (n_step - 1) * len(tags) - may_miss <= total <= env_steps


def check_counter_sequences(
    rows, num_envs, num_steps, seq_len, burn_in, overlap, gamma=0.99, scale=1.0, base_length=3, spread=5
):
    """Check that sequences in order of insertion are exactly those of Counter.

    Return for each row (environment, its steps before the episode, first valid step in the episode), and the number of
    steps of all environments that are in no row yet.
    """
    tags, starts = np.unique(rows["obs"][rows["valid"]][:, 0]), [None] * len(rows["valid"])
    expected, covered = _counter_sequences(num_steps, seq_len, overlap, base_length, spread)
    assert len(tags) == (num_envs if expected else 0)
    for tag in tags:
        mine = [i for i, real in enumerate(rows["valid"]) if rows["obs"][i, real][0, 0] == tag]
        assert len(mine) == len(expected)
        for i, (episode, start, length, begun) in zip(mine, expected, strict=True):
            count = start - burn_in + np.arange(burn_in + seq_len)
            real = (count >= 0) & (count < length)
            row = {name: column[i] for name, column in rows.items()}
            here = np.stack([np.full_like(count, tag), np.full_like(count, episode), count], 1)
            is_last = count == length - 1
            np.testing.assert_array_equal(row["valid"], real)
            np.testing.assert_array_equal(row["obs"], here * real[:, None])
            np.testing.assert_array_equal(row["next_obs"], (here + np.array([0, 0, 1])) * real[:, None])
            np.testing.assert_array_equal(row["reward"], np.float32(scale) * (count + 1) * real)
            np.testing.assert_array_equal(row["terminated"], is_last & (episode % 2 == 0))
            np.testing.assert_array_equal(row["truncated"], is_last & (episode % 2 == 1))
            np.testing.assert_array_equal(row["discount"], np.float32(gamma) * (real & ~row["terminated"]))
            starts[i] = (tag, begun, max(0, start - burn_in))
    return starts, num_envs * (num_steps - covered)


def _counter_sequences(num_steps, seq_len, overlap, base_length, spread):
    """Return (episode, first learned step, episode length, steps before it) per row, and the steps in rows."""
    rows, begun, episode = [], 0, 0
    while begun < num_steps:
        length, start, covered = base_length + episode % spread, 0, 0
        while covered < length:
            needed = begun + min(length, start + seq_len)
            if needed > num_steps:
                return rows, begun + covered
            rows.append((episode, start, length, begun))
            covered, start = min(length, start + seq_len), start + seq_len - overlap
        begun, episode = begun + length, episode + 1
    return rows, num_steps


def check_tree(rows, is_real=...):
    """Check all parts of Tree-v0's observations in valid rows, and return the rows as rows of Counter."""
    for name in ("obs", "next_obs"):
        who, camera, step, choices, bits = (
            rows[f"{name}.{path}"][is_real] for path in ("who", "camera", "inner.0", "inner.1", "inner.2")
        )
        assert (camera.dtype, step.dtype, choices.dtype, bits.dtype) == (np.uint8, np.int32, np.int32, np.bool_)
        tag, episode, count = np.moveaxis(who.astype(np.int64), -1, 0)
        before, newest = np.moveaxis(stamp(np.moveaxis(camera, -1, -3)), -2, 0)
        np.testing.assert_array_equal(newest, who)
        np.testing.assert_array_equal(before, np.stack([tag, episode, np.maximum(0, count - 1)], -1))
        np.testing.assert_array_equal(step, count)
        np.testing.assert_array_equal(choices, np.stack([tag % 1000, episode, count], -1))
        np.testing.assert_array_equal(bits, count[..., None] >> np.arange(4) & 1)
    return {**rows, "obs": rows["obs.who"], "next_obs": rows["next_obs.who"]}

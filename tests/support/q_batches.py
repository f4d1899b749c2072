"""Batches of transitions for algorithms that learn action values."""

import torch


def q_batch(seed=0, rows=32, choices=4, gamma=0.99, scale=2.0, weighted=True):
    """Return rows with observations of five numbers, rewards of this standard deviation, a fifth terminated."""
    rng = torch.Generator().manual_seed(seed)
    terminated = torch.rand(rows, generator=rng) < 0.2
    batch = {
        "obs": torch.randn(rows, 5, generator=rng),
        "action": torch.randint(choices, (rows,), generator=rng),
        "reward": scale * torch.randn(rows, generator=rng),
        "next_obs": torch.randn(rows, 5, generator=rng),
        "discount": torch.where(terminated, 0.0, gamma),
        "terminated": terminated,
        "truncated": torch.zeros(rows, dtype=torch.bool),
    }
    return batch | ({"weight": torch.rand(rows, generator=rng)} if weighted else {})

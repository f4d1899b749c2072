"""Batched tree search over a learned model: `puct` and `gumbel` in run.py, and sampled actions in model.py."""

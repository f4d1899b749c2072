"""Intrinsic rewards: the stream that an on-policy algorithm adds to its own rewards, RND and ICM."""

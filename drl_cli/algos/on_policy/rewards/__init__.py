"""Intrinsic rewards for on-policy algorithms: RND, ICM and classes of the user."""

"""Algorithms for continuous actions with gradients by autograd: one file for each."""

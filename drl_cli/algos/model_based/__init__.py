"""Algorithms that learn a model of the environment and search with it."""

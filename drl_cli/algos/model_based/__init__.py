"""Algorithms that learn a model of the environment and choose actions by a tree search with this model."""

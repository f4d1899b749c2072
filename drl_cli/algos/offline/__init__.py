"""Algorithms that learn from a dataset: one file for each algorithm. All except BC can also learn online."""

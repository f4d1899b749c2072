"""Algorithms that learn from data without an environment: one file for each. All but BC also learn online."""

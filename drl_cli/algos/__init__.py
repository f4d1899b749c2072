"""Algorithms: one file each, found by name."""

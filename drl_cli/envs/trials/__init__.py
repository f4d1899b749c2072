"""Trials: take a few steps of an environment before a run, in a process of its own if it may crash."""

"""Distributed deep reinforcement learning from the command line."""

from drl_cli.utils.ranges import Count, Fraction, Natural, NonNegative, Positive, Range

__version__ = "0.1.0"
__all__ = ["Count", "Fraction", "Natural", "NonNegative", "Positive", "Range"]

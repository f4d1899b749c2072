"""The algorithm of docs/more-algorithms.md."""

from pages import run_block

run_block("more-algorithms.md", "Gumbel MuZero in one file", globals())

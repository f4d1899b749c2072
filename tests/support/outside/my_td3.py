"""The algorithm of docs/add-an-algorithm.md, with its own modules."""

from pages import run_block

run_block("add-an-algorithm.md", "TD3", globals())

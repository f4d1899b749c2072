"""The algorithm of docs/add-an-algorithm.md."""

from pages import run_block

run_block("add-an-algorithm.md", "A2C", globals())

"""The algorithm of docs/more-algorithms.md."""

from pages import run_block

run_block("more-algorithms.md", "An actor-critic that learns from windows", globals())

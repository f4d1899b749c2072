"""`python -m drl_cli`: list the commands."""

import importlib

from drl_cli.settings.bare_words import command_names
from drl_cli.utils.shown import print


def main() -> None:
    """Print a line per command."""
    for name in command_names():
        about = importlib.import_module(f"drl_cli.cli.{name.removeprefix('drl-')}").__doc__ or ""
        print(f"{name:<12} {about.partition(': ')[2].splitlines()[0]}")
    print("\nEach command has --help. To begin: drl-train env=CartPole-v1 stop.return=475")


if __name__ == "__main__":
    main()

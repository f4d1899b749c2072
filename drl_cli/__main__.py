"""`python -m drl_cli`: list the commands."""

import importlib
import shlex
import sys

from drl_cli.errors import USAGE
from drl_cli.settings.command_line import command_names
from drl_cli.utils.shown import print


def main(words: list[str]) -> int:
    """Print a line per command. Return the exit code: words are refused, because nothing would read them."""
    if words and words[0] not in ("-h", "--help"):
        command = f"drl-{words[0].removeprefix('drl-')}"
        typed = shlex.join([command, *words[1:]]) if command in command_names() else "python -m drl_cli"
        print(f"error: python -m drl_cli lists the commands and takes no words; say {typed}", file=sys.stderr)
        return USAGE
    for name in command_names():
        about = importlib.import_module(f"drl_cli.cli.{name.removeprefix('drl-')}").__doc__ or ""
        print(f"{name:<12} {about.partition(': ')[2].splitlines()[0]}")
    print("\nEach command has --help. To begin: drl-train env=CartPole-v1 stop.return=475")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The version of the package, which pyproject.toml reads from this file, and the versions of other packages."""

from importlib.metadata import version

__version__ = "1.0.0.dev0"


def versions(*packages: str) -> dict[str, str]:
    """Return the version of drl-cli and of these installed packages, by name."""
    return {"drl-cli": __version__, **{name: version(name) for name in packages}}

"""The version of the package. pyproject.toml reads it from this file."""

__version__ = "1.0.0.dev0"

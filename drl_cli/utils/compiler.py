"""The C++ compiler of this machine, and the folder for what it compiled."""

import os
import sys
import tempfile
from pathlib import Path


def compiler() -> str:
    """Return the name of the C++ compiler: CXX, or the system's own."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def library_dir() -> Path:
    """Return a folder below torch's own for compiled code. The import of torch's function would take a second.

    Raise PermissionError if the folder belongs to another user.
    """
    own = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or own) / "drl_cli"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():  # its libraries would run with the rights of this user
        raise PermissionError(f"{folder} belongs to another user; set TORCHINDUCTOR_CACHE_DIR")
    return folder

"""What Linux says about the processor."""

from pathlib import Path


def describe_processor() -> str:
    """Return Linux's description of the first CPU, or '' on other systems."""
    info = Path("/proc/cpuinfo")
    return info.read_text().partition("\n\n")[0] if info.exists() else ""

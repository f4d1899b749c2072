"""What Linux says about the processor."""

import re
from pathlib import Path

ZEN_5 = 0x1A
"""CPU family of AMD's Zen 5, where MKL computes wide products at less than half of the processor's speed."""


def describe_processor() -> str:
    """Return Linux's description of the first CPU, or '' on other systems."""
    info = Path("/proc/cpuinfo")
    return info.read_text().partition("\n\n")[0] if info.exists() else ""


def is_zen_5() -> bool:
    """Return whether the CPU is AMD's Zen 5, or a later one."""
    found = re.search(r"AuthenticAMD\s+cpu family\s*:\s*(\d+)", describe_processor())
    return found is not None and int(found[1]) >= ZEN_5

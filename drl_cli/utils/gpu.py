"""The GPUs of this machine. No other module asks torch about them.

A child process asks torch, and computes a product on each GPU. So this process does not initialise CUDA, after which it
could not fork, and takes no memory of a GPU. Nothing here imports torch in this process, which is slow.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

ANSWER_S = 120.0
"""Time limit for the child process. On a busy machine, the import of torch may take a minute."""
SIDE = 64
"""Rows and columns of the matrices of a trial product."""
DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of the drivers of NVIDIA, of NVIDIA in a container, of Windows (WSL) and of AMD."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpu(NamedTuple):
    """A GPU that torch finds. `id` is its name in CUDA_VISIBLE_DEVICES. `problem` is why torch can't use it, or ''."""

    id: str
    name: str
    problem: str = ""


def has_driver() -> bool:
    """Return whether this machine has loaded the driver of a GPU."""
    return any(Path(file).exists() for file in DRIVERS)


def expects_gpu(device: str) -> bool:
    """Return whether a trainer with the key `device` may compute on a GPU, as far as this is known without torch."""
    return device.startswith("cuda") or (device == "auto" and has_driver())


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that torch finds here, in torch's order. The first call takes seconds."""
    lines, problem = ask([sys.executable, "-P", __file__])  # -P: without modules of the current folder
    return told(lines, problem, os.environ.get(VISIBLE))


def told(lines: list[Any], problem: str, visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs in the lines of a child that ended by a `problem`, with the names in CUDA_VISIBLE_DEVICES."""
    if not lines:
        log.warning("torch could not be asked about GPUs: %s", problem)
    count = lines[0] if lines else 0
    ids = visible.split(",") if visible else [str(index) for index in range(count)]
    tried = [*lines[1:], *[[f"GPU {index}", problem] for index in range(len(lines) - 1, count)]]
    return tuple(Gpu(id, name, problem) for id, (name, problem) in zip(ids, tried, strict=False))


def ask(command: list[str], limit_s: float = ANSWER_S) -> tuple[list[Any], str]:
    """Return the lines of json that a child process printed, and how the process ended."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        text, errors = child.communicate(timeout=limit_s)
        end = (errors.strip().splitlines() or [f"the trial ended with exit code {child.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        child.kill()
        text, _ = child.communicate()
        end = f"no answer within {limit_s:.0f} s"
    return [json.loads(line) for line in text.splitlines()], end


def answers(torch: Any) -> Iterator[Any]:
    """Yield the number of GPUs, and then the name of each GPU and why torch can't use it, or ''."""
    yield (count := torch.cuda.device_count() if torch.cuda.is_available() else 0)
    for index in range(count):
        name = f"GPU {index}"
        try:
            name = torch.cuda.get_device_name(index)
            ones = torch.ones(SIDE, SIDE, device=f"cuda:{index}")
            total = float((ones @ ones).sum())
            yield name, "" if total == SIDE**3 else f"the sum of a product is {total:g}, not {SIDE**3}"
        except Exception as error:  # of torch, of CUDA or of the driver
            yield name, (str(error) or type(error).__name__).partition("\n")[0]


if __name__ == "__main__":
    import torch

    for value in answers(torch):
        sys.stdout.write(f"{json.dumps(value)}\n")
        sys.stdout.flush()

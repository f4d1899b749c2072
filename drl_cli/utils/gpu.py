"""Facts about GPUs that are known without torch, whose import is slow."""

from pathlib import Path


def has_nvidia_driver() -> bool:
    """Return whether Linux has loaded the driver of an NVIDIA GPU."""
    return Path("/proc/driver/nvidia/version").exists()


def expects_gpu(device: str) -> bool:
    """Return whether a trainer with the key `device` computes on a GPU, as far as this is known without torch.

    With `auto`, torch also has to be a build for CUDA.
    """
    return device.startswith("cuda") or (device == "auto" and has_nvidia_driver())

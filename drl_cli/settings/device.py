"""The device of the trainers: what device=auto chooses, and whether the GPUs that a run needs can be used."""

import dataclasses
from collections.abc import Sequence

from drl_cli.errors import MISSING, UsageError
from drl_cli.networks.config import TORSOS
from drl_cli.networks.torsos import torso_name
from drl_cli.runtime.config import Config
from drl_cli.runtime.place.cluster import Node
from drl_cli.types import EnvSpec
from drl_cli.utils import gpu
from drl_cli.utils.gpu import Gpu
from drl_cli.utils.run_log import tell

WIDE = 512
"""From about this number of units in a layer, a GPU is faster than a CPU. For images, it always is."""


def with_device(config: Config, spec: EnvSpec, nodes: Sequence[Node] = ()) -> tuple[Config, list[str]]:
    """Return the config with cpu or cuda in place of device=auto, and a line with the reason if there is a GPU.

    Raise UsageError (exit 3) if the config names a GPU that can't be used. `nodes` are the nodes of a cluster.
    """
    if config.device == "cpu":
        return config, []
    is_placed = config.ray.address is not None and config.trains_apart and ":" not in config.device  # by Ray

    def check(config: Config) -> None:
        if is_placed:
            from drl_cli.runtime.place.nodes import node_gpus

            check_gpus(config, node_gpus(nodes), "in the cluster")
        else:
            check_gpus(config, gpu.gpus())

    if config.device != "auto":
        check(config)
        return config, []
    on_cpu, on_gpu = (dataclasses.replace(config, device=device) for device in ("cpu", "cuda"))
    if not (any(node.gpus for node in nodes) if is_placed else gpu.has_driver()):
        return on_cpu, []
    if (reason := gain(config, spec)) is None:
        return on_cpu, ["device: cpu, because the network is small; device=cuda takes the GPU"]
    try:
        check(on_gpu)
    except UsageError as error:
        tell(f"warning: device=auto takes the CPU. {error}")
        return on_cpu, []
    return on_gpu, [f"device: cuda, because of {reason}"]


def gain(config: Config, spec: EnvSpec) -> str | None:
    """Return why a GPU makes the updates of this run faster, or None if it makes them slower."""
    network = config.network
    if (torso := torso_name(network, spec)) is not None:
        return "images" if torso in TORSOS else f"the torso {torso}"
    widest = max([*network.hidden, network.memory_size if network.memory != "none" else 0], default=0)
    return f"layers of {widest} units" if widest >= WIDE else None


def check_gpus(config: Config, found: Sequence[Gpu], place: str = "here") -> None:
    """Raise UsageError (exit 3) if these GPUs are not enough for the config, or if torch can't use the first ones."""
    device, num = config.device, config.trainer.num
    index = device.partition(":")[2]
    if index and num > 1:
        raise UsageError(f"device={device} is one device; for trainer.num={num} say device=cuda")
    if not found:
        line = f"device={device}, but torch finds no CUDA device {place}; device=cpu works everywhere"
        raise UsageError(line, MISSING)
    if index and int(index) >= len(found):
        raise UsageError(f"device={device}: the CUDA devices here are cuda:0 to cuda:{len(found) - 1}", MISSING)
    if len(found) < num:
        raise UsageError(f"device={device}: trainer.num={num}, but there are {len(found)} devices", MISSING)
    needed = found[int(index) : int(index) + 1] if index else found[:num]
    if lines := [f"device={device}: torch can't use {one.name}: {one.problem}" for one in needed if one.problem]:
        raise UsageError([*lines[:-1], f"{lines[-1]}; device=cpu works everywhere"], MISSING)

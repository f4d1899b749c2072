"""Torsos: modules that turn observations into features, and the choice of a torso for an environment."""

from typing import TYPE_CHECKING

from drl_cli.errors import Refused
from drl_cli.networks.config import TORSOS, NetworkConfig
from drl_cli.networks.images import IMPALA_SIDE, Image, Kind, image, is_large, num_features
from drl_cli.networks.inputs import Inputs, visible
from drl_cli.types import Column, EnvSpec, leaves
from drl_cli.utils.outside import NotFound, import_object

if TYPE_CHECKING:
    from torch import Generator, nn


def torso_name(network: NetworkConfig, spec: EnvSpec) -> str | None:
    """Return the name of the torso for an environment: `cnn`, `resnet`, `multi`, or the import path of a user's class.

    Return None if observations are only flattened. Raise ValueError if `network.torso` does not fit the observations.
    """
    name, images = network.torso, _images(spec)
    has_one_part = isinstance(spec.obs, Column)
    if name not in TORSOS:
        return name
    if name == "multi" and has_one_part:
        raise ValueError(_misfit(network, spec, "a Dict or Tuple space", "auto"))
    if name in ("cnn", "resnet") and not images:
        raise ValueError(_misfit(network, spec, "an image", "auto or network.torso=mlp"))
    if name == "mlp" or not images:
        return None
    if name == "resnet" and any(min(found.height, found.width) < IMPALA_SIDE for found in images.values()):
        raise ValueError(_misfit(network, spec, f"images of at least {IMPALA_SIDE}x{IMPALA_SIDE} pixels", "cnn"))
    return _kind(network) if has_one_part else "multi"


def describe(network: NetworkConfig, spec: EnvSpec) -> str:
    """Return a description of a network in one line, such as `cnn (Nature) 84x84x4 -> 3136, mlp [512]`."""
    name, hidden = torso_name(network, spec), f"[{', '.join(map(str, network.hidden))}]"
    steps = [] if network.memory == "none" else [f"{network.memory} {network.memory_size}"]
    steps.append(f"mlp {hidden}{' with layer norm' if network.layer_norm else ''}")
    if network.dropout:
        steps.append(f"dropout {network.dropout:g}")
    if name is None:
        steps.insert(0, f"{Inputs(spec.obs).size} inputs")
    elif name not in TORSOS:
        steps.insert(0, name)
    else:
        images, others = _images(spec), _others(spec)
        torsos = [f"{path} {_describe(network, found)}".lstrip() for path, found in images.items()]
        if others.parts:
            torsos.append(f"{' '.join(others.parts)} {others.size}")
        steps.insert(0, f"multi ({'; '.join(torsos)})" if name == "multi" else torsos[0])
    return ", ".join(steps)


def make_torso(network: NetworkConfig, spec: EnvSpec, generator: "Generator") -> "nn.Module | None":
    """Return a new torso, initialised from the generator, or None if observations are only flattened.

    A torso turns observations `[n, ...]`, as replay stores them, into features `[n, size]`. Raise ValueError if
    `network.torso` does not fit the observations, or if it names a class that cannot be used.
    """
    name, parts = torso_name(network, spec), visible(spec.obs)
    if name is None:
        return None
    from drl_cli.networks import modules  # imports torch

    with modules.seeded(generator):
        if name not in TORSOS:
            try:
                user_class = import_object(name)
            except NotFound as error:
                raise ValueError(f"network.torso={name}: {error}") from error
            torso = modules.checked(user_class(parts, network), name)
            return torso if parts is spec.obs or isinstance(parts, Column) else modules.Unmasked(torso, list(parts))
        columns = leaves(parts)
        torsos = {path: modules.convolution(_kind(network), columns[path], network) for path in _images(spec)}
        return modules.Multi(torsos, _others(spec)) if name == "multi" else torsos[""]


def torso(network: NetworkConfig, spec: EnvSpec) -> "nn.Module":
    """Return a module that turns observations `[n, ...]` into features `[n, size]`, for a user's algorithm.

    The module also turns sequences `[B, L, ...]` into `[B, L, size]`. By default, images go through a CNN, the entries
    of a Dict or Tuple are joined, and other observations are only flattened. torch's default generator draws the
    weights. Raise Refused if `network.torso` does not fit the observations.
    """
    import torch

    from drl_cli.networks import modules  # imports torch

    try:
        made = make_torso(network, spec, torch.default_generator)
    except ValueError as error:
        raise Refused(str(error)) from error
    return modules.AnyRows(modules.Flat(Inputs(spec.obs)) if made is None else made, spec.obs)


def _images(spec: EnvSpec) -> dict[str, Image]:
    """Return the layout of each image in an observation, by its path in a Dict or Tuple, or "" for a single image."""
    layouts = {path: image(column) for path, column in leaves(visible(spec.obs)).items()}
    return {path: layout for path, layout in layouts.items() if layout is not None}


def _others(spec: EnvSpec) -> Inputs:
    """Return the Inputs of everything in a Dict or Tuple that is neither an image nor the legal-action mask."""
    images, parts = _images(spec), leaves(visible(spec.obs))
    return Inputs({path: column for path, column in parts.items() if path not in images})


def _kind(network: NetworkConfig) -> Kind:
    return "resnet" if network.torso == "resnet" else "cnn"


def _describe(network: NetworkConfig, found: Image) -> str:
    kind = _kind(network)
    source = "IMPALA" if kind == "resnet" else "Nature" if is_large(found) else "MinAtar"
    return f"{kind} ({source}) {found} -> {num_features(kind, found, network.channels)}"


def _misfit(network: NetworkConfig, spec: EnvSpec, needed: str, fits: str) -> str:
    parts = leaves(visible(spec.obs)).items()
    given = ", ".join(f"{path} {column.dtype} {list(column.shape)}".lstrip() for path, column in parts)
    return f"network.torso={network.torso} needs {needed}; {spec.id} gives {given}. For this: network.torso={fits}"

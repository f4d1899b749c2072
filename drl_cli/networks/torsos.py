"""Torsos: modules that turn observations into features, and the choice of a torso for an environment."""

from typing import TYPE_CHECKING

from drl_cli.errors import Refused
from drl_cli.networks.config import TORSOS, NetworkConfig
from drl_cli.networks.inputs import IMPALA_SIDE, Image, Inputs, Kind, as_image, is_large, num_features, visible
from drl_cli.types import Column, EnvSpec, leaves
from drl_cli.utils.deferred import NotInNumpy, present
from drl_cli.utils.outside import NotFound, import_object

if TYPE_CHECKING:
    from torch import Generator, nn


def torso_name(network: NetworkConfig, spec: EnvSpec) -> str | None:
    """Return the name of the torso for an environment: `cnn`, `resnet`, `multi`, or the import path of a user's class.

    Return None if observations are only flattened. Raise Refused if `network.torso` does not fit the observations.
    """
    name, images = network.torso, _images(spec)
    has_one_part = isinstance(spec.obs, Column)
    if name not in TORSOS:
        return name
    if name == "multi" and has_one_part:
        raise Refused(_misfit(network, spec, "a Dict or Tuple space", "auto"))
    if name in ("cnn", "resnet") and not images:
        raise Refused(_misfit(network, spec, "an image", "auto or network.torso=mlp"))
    if name == "mlp" or not images:
        return None
    if name == "resnet" and any(min(image.height, image.width) < IMPALA_SIDE for image in images.values()):
        raise Refused(_misfit(network, spec, f"images of at least {IMPALA_SIDE}x{IMPALA_SIDE} pixels", "cnn"))
    return _kind(network) if has_one_part else "multi"


def describe(network: NetworkConfig, spec: EnvSpec) -> str:
    """Return a description of a network in one line, such as `cnn (Nature) 84x84x4 -> 3136, mlp [512]`.

    Raise Refused if `network.torso` does not fit the observations.
    """
    name, hidden = torso_name(network, spec), ", ".join(map(str, network.hidden))
    if name is None:
        parts = [f"{Inputs(spec.obs).size} inputs"]
    elif name not in TORSOS:
        parts = [name]
    else:
        images, others = _images(spec), _others(spec)
        torsos = [f"{path} {_describe(network, image)}".lstrip() for path, image in images.items()]
        if others.parts:
            torsos.append(f"{' '.join(others.parts)} {others.size}")
        parts = [f"multi ({'; '.join(torsos)})" if name == "multi" else torsos[0]]
    if network.memory != "none":
        parts.append(f"{network.memory} {network.memory_size}")
    parts.append(f"mlp [{hidden}]{' with layer norm' if network.layer_norm else ''}")
    if network.dropout:
        parts.append(f"dropout {network.dropout:g}")
    return ", ".join(parts)


def make_torso(network: NetworkConfig, spec: EnvSpec, generator: "Generator") -> "nn.Module | None":
    """Return a new torso, initialised from the generator, or None if observations are only flattened.

    A torso turns observations `[n, ...]`, as replay stores them, into features `[n, size]`. Raise Refused if
    `network.torso` does not fit the observations, or if it names a class that cannot be used.
    """
    name = torso_name(network, spec)
    if name is None:
        return None
    from drl_cli.networks import modules  # imports torch

    with modules.seeded(generator):
        if name not in TORSOS:
            return _user_torso(name, network, spec)
        torsos = {path: modules.convolution(_kind(network), image, network) for path, image in _images(spec).items()}
        return modules.Multi(torsos, _others(spec)) if name == "multi" else torsos[""]


def torso(network: NetworkConfig, spec: EnvSpec) -> "nn.Module":
    """Return a module that turns observations `[n, ...]` into features `[n, size]`, for a user's algorithm.

    The module also turns sequences `[B, L, ...]` into `[B, L, size]`. By default, images go through a CNN, the entries
    of a Dict or Tuple are joined, and other observations are only flattened. torch's default generator draws the
    weights. Raise Refused if `network.torso` does not fit the observations.
    """
    if present.in_numpy:
        raise NotInNumpy("drl.torso makes a torch module")
    import torch

    from drl_cli.networks import modules  # imports torch

    made = make_torso(network, spec, torch.default_generator)
    return modules.AnyBatchAxes(modules.Flat(Inputs(spec.obs)) if made is None else made, spec.obs)


def _user_torso(path: str, network: NetworkConfig, spec: EnvSpec) -> "nn.Module":
    """Return a new torso of the user's class at this import path. The torso never gets the legal-action mask."""
    from drl_cli.networks import modules  # imports torch

    try:
        user_class = import_object(path)
    except NotFound as error:
        raise Refused(f"network.torso={path}: {error}") from error
    obs = visible(spec.obs)
    torso = modules.checked(user_class(obs, network), path)
    return torso if isinstance(obs, Column) else modules.Unmasked(torso, list(obs))


def _images(spec: EnvSpec) -> dict[str, Image]:
    """Return the layout of each image in an observation, by its path in a Dict or Tuple, or "" for a single image."""
    layouts = {path: as_image(column) for path, column in leaves(visible(spec.obs)).items()}
    return {path: layout for path, layout in layouts.items() if layout is not None}


def _others(spec: EnvSpec) -> Inputs:
    """Return the Inputs of everything in a Dict or Tuple that is neither an image nor the legal-action mask."""
    images, parts = _images(spec), leaves(visible(spec.obs))
    return Inputs({path: column for path, column in parts.items() if path not in images})


def _kind(network: NetworkConfig) -> Kind:
    """Return which of the two convolutional torsos images go through."""
    return "resnet" if network.torso == "resnet" else "cnn"


def _describe(network: NetworkConfig, image: Image) -> str:
    kind = _kind(network)
    source = "IMPALA" if kind == "resnet" else "Nature" if is_large(image) else "MinAtar"
    return f"{kind} ({source}) {image} -> {num_features(kind, image, network.channels)}"


def _misfit(network: NetworkConfig, spec: EnvSpec, needed: str, fits: str) -> str:
    """Return the message of an error: the torso needs other observations, and the torso `fits` would do."""
    parts = leaves(visible(spec.obs)).items()
    given = ", ".join(f"{path} {column.dtype} {list(column.shape)}".lstrip() for path, column in parts)
    return f"network.torso={network.torso} needs {needed}; {spec.id} gives {given}. For this: network.torso={fits}"

"""Checks of options that several off-policy algorithms share."""

from typing import Any

import drl_cli.api as drl


def check_batch_norm(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
    """Raise Refused if options of the network do not fit batch norm in critics."""
    if network.layer_norm:
        raise drl.Refused(f"network.layer_norm=true: {config.name} has batch norm; say network.layer_norm=false")
    if network.dropout:
        raise drl.Refused(f"network.dropout={network.dropout:g}: {config.name} has batch norm; say network.dropout=0")
    if network.memory != "none":
        raise drl.Refused(
            f"network.memory={network.memory}: the batch norm of {config.name} would see the padding of sequences; "
            "say network.memory=none"
        )


def check_one_trainer(name: str, context: drl.Context) -> None:
    """Raise Refused if there are several trainers, because the batch norm of each would see only some of the rows."""
    if (num := context.group.size) > 1:
        raise drl.Refused(f"trainer.num={num}: the batch statistics of {name} need all rows; say trainer.num=1")


def check_support(atoms: int, v_min: float, v_max: float) -> None:
    """Raise Refused if `atoms` values from `v_min` to `v_max` cannot be the support of a categorical distribution."""
    if atoms < 2 or v_min >= v_max:
        given = f"algo.atoms={atoms} has to be at least 2, and algo.v_min={v_min:g} below algo.v_max={v_max:g}"
        raise drl.Refused(given)

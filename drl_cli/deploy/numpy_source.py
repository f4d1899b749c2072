"""Write a policy's graph as a Python file that imports numpy only."""

import inspect

import numpy as np
import torch
from torch import Tensor

from drl_cli.convert.convert import ROWS, general
from drl_cli.convert.kernels import KERNELS
from drl_cli.convert.source import write
from drl_cli.convert.trace import Draws, NotConverted, Trace, record
from drl_cli.deploy.graph import Graph, example
from drl_cli.envs.units import Units
from drl_cli.types import Array

HEAD = """\"\"\"The network of {name}, written by drl-export: `act` maps observations `[n, ...]` to actions.

`load_act` computes what depends only on the parameters `v` and on the constants `c`. `act` gets the result as `w`.
\"\"\"

from collections.abc import Sequence

import numpy as np

Array = np.ndarray
"""


def numpy_source(graph: Graph, units: Units, name: str) -> tuple[str, dict[str, Array]]:
    """Return the source, and its arrays: `parameters` `[size]`, and `constant0` and so on.

    Raise ValueError, with the reason, if numpy can't compute the policy.
    """
    constants: list[Array] = []
    try:
        traces = [_trace(graph, example(units, graph, rows)) for rows in ROWS]
        source = write("act", general(*traces), constants)
    except NotConverted as error:
        raise ValueError(f"{error}; say format=onnx or format=torch") from error
    kernels = [inspect.getsource(kernel) for key, kernel in KERNELS.items() if f"{key}(" in source]
    parameters = torch.cat([each.detach().flatten() for each in graph.parameters()] or [torch.zeros(0)]).numpy()
    arrays = {f"constant{i}": np.ascontiguousarray(array) for i, array in enumerate(constants)}
    return "\n\n".join([HEAD.format(name=name), *kernels, source]), {"parameters": parameters, **arrays}


def _trace(graph: Graph, inputs: dict[str, Tensor]) -> Trace:
    def compute() -> dict[str, Tensor]:
        return {str(i): output for i, output in enumerate(graph(*inputs.values()))}

    with torch.no_grad():
        compute()  # modules may prepare views of their parameters in the first call
    names = {name.replace(".", "_"): tensor for name, tensor in inputs.items()}
    return record(compute, names, [each.detach() for each in graph.parameters()], Draws(np.random.PCG64()))

"""The steps of a search in C++: compile kernel.cpp once for a machine, load the library, and call it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drl_cli.chains.program import InPlace
from drl_cli.search.formulas import Gumbel
from drl_cli.search.model import Embedding, Memory, check_shape, parts_of
from drl_cli.search.plain import Plain
from drl_cli.search.trees import Trees
from drl_cli.types import Array
from drl_cli.utils.machine import compiler, library_dir

SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-O3", "-shared", "-fPIC", "-std=c++17", "-ffp-contract=off", "-fno-math-errno")
COMPILE_S = 60.0


class _Buffer(ctypes.Structure):
    _fields_ = [("roots", c_int64), ("nodes", c_int64), ("actions", c_int64), ("begin", c_void_p)]


class _Rule(ctypes.Structure):
    _fields_ = [
        ("is_gumbel", c_int64),
        ("visit_init", c_double),
        ("value_scale", c_double),
        ("table", c_void_p),
        ("considered", c_void_p),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [
        (name, c_int64 if name == "parts" else c_void_p) for name in ("parts", "stores", "selected", "added", "bytes")
    ]


class _Model(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("call", "inputs", "outputs", "steps")]


class HostMemory(Memory):
    """Embeddings on the CPU, which the kernel copies: `take` returns the same tensors each time."""

    def __init__(self, root: Embedding, nodes: int) -> None:
        self.is_tuple, self.parts = isinstance(root, tuple), parts_of(root)
        shapes = [(part.shape, part.dtype) for part in self.parts]
        self.stores = [torch.empty((shape[0], nodes, *shape[1:]), dtype=dtype) for shape, dtype in shapes]
        selected = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
        self._selected: Embedding = tuple(selected) if self.is_tuple else selected[0]
        self._shapes, self._added = shapes, list[Tensor]()
        num = len(shapes)
        addresses = [x.data_ptr() for x in (*self.stores, *selected)]
        self._addresses = (c_void_p * (3 * num))(*addresses)
        self._bytes = (c_int64 * num)(*[x.nbytes // max(1, x.shape[0]) for x in selected])
        first, step = ctypes.addressof(self._addresses), num * ctypes.sizeof(c_void_p)
        self.struct = _Memory(num, first, first + step, first + 2 * step, ctypes.addressof(self._bytes))
        self.put(0, root)

    def put(self, node: int, embedding: Embedding) -> None:
        """Keep the embedding until the kernel copies it."""
        self._added = []
        for part, (shape, dtype) in zip(parts_of(embedding), self._shapes, strict=True):
            check_shape("embedding", part, shape)
            is_ready = part.dtype == dtype and part.is_contiguous() and part.is_cpu
            self._added.append(part if is_ready else part.to("cpu", dtype).contiguous())
            self._addresses[2 * len(self.parts) + len(self._added) - 1] = self._added[-1].data_ptr()

    def take(self, rows: Tensor, action: Tensor) -> tuple[Embedding, Tensor]:
        return self._selected, action

    @property
    def added(self) -> Sequence[Tensor]:
        """The tensors of the last embedding, which the kernel copies."""
        return self._added


class Compiled:
    """The steps of one search; `Plain` describes the methods."""

    def __init__(self, trees: Trees, library: ctypes.CDLL, memory: Memory) -> None:
        self._host = memory
        self._buffer = _Buffer(trees.roots, trees.nodes, trees.actions, trees.buffer.ctypes.data)
        self._memory = memory.struct if isinstance(memory, HostMemory) else _Memory(0)
        self._rule, self._library, self._size = _Rule(), library, (trees.roots, trees.actions)
        self._kept: list[object] = [trees, memory]  # the kernel has their addresses, so they have to exist
        self._arguments = tuple([ctypes.addressof(x) for x in (self._buffer, self._memory, self._rule)])

    def plant(self, logits: Tensor, value: Tensor) -> None:
        self._library.plant(*self._arguments[:2], logits.data_ptr(), value.data_ptr())

    def puct(self, exploration: Array) -> None:
        self._kept.append(exploration)
        self._rule.table = exploration.ctypes.data

    def gumbel(self, rule: Gumbel, base: Array, considered: Array) -> None:
        self._kept += [base, considered]
        self._rule.is_gumbel, self._rule.visit_init, self._rule.value_scale = 1, rule.visit_init, rule.value_scale
        self._rule.table, self._rule.considered = base.ctypes.data, considered.ctypes.data

    def choose(self, simulation: int) -> None:
        self._library.choose(*self._arguments, simulation)

    def advance(self, node: int, reward: Tensor, discount: Tensor, logits: Tensor, value: Tensor) -> None:
        addresses = reward.data_ptr(), discount.data_ptr(), logits.data_ptr(), value.data_ptr()
        self._library.advance(*self._arguments, node, *addresses)

    def simulate(self, node: int, program: InPlace, results: Sequence[Tensor]) -> bool:
        """Make all simulations from this node on in one call, if the compiled model's `results` are its own tensors."""
        if not isinstance(self._host, HostMemory):
            return False
        used = [*results, *self._host.added]
        if len(used) != len(program.results) or any(x is not y for x, y in zip(used, program.results, strict=True)):
            return False
        addresses = [ctypes.addressof(x) for x in (program.inputs, program.outputs, program.no_steps)]
        model = _Model(program.address, *addresses)
        if (error := self._library.simulate(*self._arguments, node, ctypes.byref(model))) is not None:
            raise RuntimeError(error.decode())
        return True

    def finish_gumbel(self) -> tuple[Array, Array]:
        action, policy = np.empty(self._size[0], np.int64), np.empty(self._size)
        self._library.finish_gumbel(*self._arguments[::2], action.ctypes.data, policy.ctypes.data)
        return action, policy


Steps = Plain | Compiled


def make_steps(trees: Trees, root: Embedding) -> tuple[Steps, Memory]:
    """Return the steps in C++, or those in numpy if the kernel can't be compiled (a warning tells why), and the memory.

    The kernel copies embeddings if all are on the CPU.
    """
    library = load()
    if library is None:
        return Plain(trees), Memory(root, trees.nodes)
    is_near = all(part.is_cpu for part in parts_of(root))
    memory = HostMemory(root, trees.nodes) if is_near else Memory(root, trees.nodes)
    return Compiled(trees, library, memory), memory


@cache
def load() -> ctypes.CDLL | None:
    """Return the library of kernel.cpp, or None if it can't be compiled or loaded."""
    try:
        library = ctypes.CDLL(str(_build()))
    except (OSError, subprocess.SubprocessError) as error:
        text = "The search runs in numpy and is about 10 times slower, because kernel.cpp was not compiled: %s"
        logging.getLogger(__name__).warning(text, _reason(error))
        return None
    pointers = [c_void_p] * 4
    for name, arguments in {
        "plant": pointers,
        "choose": [c_void_p, c_void_p, c_void_p, c_int64],
        "advance": [c_void_p, c_void_p, c_void_p, c_int64, *pointers],
        "simulate": [c_void_p, c_void_p, c_void_p, c_int64, c_void_p],
        "finish_gumbel": pointers,
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.simulate.restype = ctypes.c_char_p
    return library


def _build() -> Path:
    """Return the path of the library, and compile it if it does not exist. It appears as a whole or not at all."""
    parts = (SOURCE.read_text(), FLAGS, platform.machine())
    path = library_dir() / f"search_{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.so"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            command = [compiler(), *FLAGS, "-o", str(unfinished), str(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_S)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return next((line for line in error.stderr.splitlines() if "error" in line), str(error))
    return str(error)

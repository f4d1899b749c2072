"""Compiled: the steps of a tree search in C++. The first search on a machine compiles kernel.cpp."""

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
from drl_cli.search.trees import Plain, Trees
from drl_cli.types import Array
from drl_cli.utils.machine import compiler, library_folder

SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-O3", "-shared", "-fPIC", "-std=c++17", "-ffp-contract=off")
"""With -ffp-contract=off, the compiler fuses no multiplication and addition, so that results are as in numpy."""
COMPILE_S = 60.0
"""The time limit of the compiler, in seconds."""

# The classes below are the structs of kernel.cpp, field by field. The fields are numbers and addresses.


class _Buffer(ctypes.Structure):
    _fields_ = [("roots", c_int64), ("nodes", c_int64), ("actions", c_int64), ("begin", c_void_p)]


class _Rule(ctypes.Structure):
    _fields_ = [
        ("is_gumbel", c_int64),
        ("visit_init", c_double),
        ("value_scale", c_double),
        ("table", c_void_p),
        ("needed_visits", c_void_p),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("parts", c_int64), *((name, c_void_p) for name in ("stores", "selected", "added", "bytes"))]


class _Model(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("call", "inputs", "outputs", "steps")]


class HostMemory(Memory):
    """Stores embeddings that are on the CPU. The C++ code copies them, which is faster than copies in Python.

    `put` only passes the addresses of an embedding's tensors to the C++ code, which then copies them into `stores`.
    Before `take`, the C++ code has copied the embeddings of the selected nodes into the tensors that `take` returns.
    `take` returns the same tensors in every call.
    """

    def __init__(self, root: Embedding, nodes: int) -> None:
        self.is_tuple, self.parts = isinstance(root, tuple), parts_of(root)
        self.stores = [torch.empty((len(part), nodes, *part.shape[1:]), dtype=part.dtype) for part in self.parts]
        selected = [torch.empty(part.shape, dtype=part.dtype) for part in self.parts]
        self._selected: Embedding = tuple(selected) if self.is_tuple else selected[0]
        self._added = list[Tensor]()
        num = len(self.parts)
        # The addresses of the tensors of `stores`, of `selected`, and of the added embedding, which `put` writes.
        addresses = [x.data_ptr() for x in (*self.stores, *selected)]
        self._addresses = (c_void_p * (3 * num))(*addresses)
        self._bytes = (c_int64 * num)(*[x.nbytes // max(1, x.shape[0]) for x in selected])  # of one tree
        begin, third = ctypes.addressof(self._addresses), num * ctypes.sizeof(c_void_p)
        self.struct = _Memory(num, begin, begin + third, begin + 2 * third, ctypes.addressof(self._bytes))
        self.put(0, root)

    def put(self, node: int, embedding: Embedding) -> None:
        """Keep the embedding `[B, ...]` of a new node until the C++ code copies it.

        Raise ValueError if the embedding has another shape than the embedding of the roots. `node` is not used.
        """
        self._added = []
        first_added = 2 * len(self.parts)
        for i, (part, first) in enumerate(zip(parts_of(embedding), self.parts, strict=True)):
            check_shape("embedding", part, first.shape)
            is_ready = part.dtype == first.dtype and part.is_contiguous() and part.is_cpu
            added = part if is_ready else part.to("cpu", first.dtype).contiguous()
            self._added.append(added)
            self._addresses[first_added + i] = added.data_ptr()

    def take(self, rows: Tensor, action: Tensor) -> tuple[Embedding, Tensor]:
        return self._selected, action

    @property
    def added(self) -> Sequence[Tensor]:
        """The tensors of the last embedding that `put` got."""
        return self._added


class Compiled:
    """The steps of one search, computed by the functions of kernel.cpp; `Plain` describes the methods.

    The C++ functions get the addresses of the arrays. The arrays are kept in `_kept`, so that the addresses stay valid.
    """

    def __init__(self, trees: Trees, library: ctypes.CDLL, memory: Memory) -> None:
        self._embeddings = memory
        self._buffer = _Buffer(trees.roots, trees.nodes, trees.actions, trees.buffer.ctypes.data)
        # A struct without parts lets the C++ code copy nothing, because `Memory` copies its embeddings itself.
        self._memory = memory.struct if isinstance(memory, HostMemory) else _Memory(0)
        self._rule, self._library, self._size = _Rule(), library, (trees.roots, trees.actions)
        self._kept: list[object] = [trees, memory]
        structs = self._buffer, self._memory, self._rule  # most C++ functions begin with these arguments
        self._arguments = tuple([ctypes.addressof(struct) for struct in structs])

    def plant(self, logits: Tensor, value: Tensor) -> None:
        self._library.plant(*self._arguments[:2], logits.data_ptr(), value.data_ptr())  # without the rule

    def puct(self, exploration: Array) -> None:
        self._kept.append(exploration)
        self._rule.table = exploration.ctypes.data

    def gumbel(self, rule: Gumbel, noisy_logits: Array, needed_visits: Array) -> None:
        self._kept += [noisy_logits, needed_visits]
        self._rule.is_gumbel = 1
        self._rule.visit_init = rule.visit_init
        self._rule.value_scale = rule.value_scale
        self._rule.table = noisy_logits.ctypes.data
        self._rule.needed_visits = needed_visits.ctypes.data

    def choose(self, simulation: int) -> None:
        self._library.choose(*self._arguments, simulation)

    def advance(self, node: int, reward: Tensor, discount: Tensor, logits: Tensor, value: Tensor) -> None:
        addresses = reward.data_ptr(), discount.data_ptr(), logits.data_ptr(), value.data_ptr()
        self._library.advance(*self._arguments, node, *addresses)

    def simulate(self, node: int, program: InPlace, results: Sequence[Tensor]) -> bool:
        """Make all remaining simulations in one call, and return True; return False if this is not possible.

        The new nodes begin with the index `node`. `program` is the compiled model. `results` are the tensors of its
        last call: reward, discount, logits and value. The C++ code reads the program's own result tensors, so `results`
        and the embedding have to be these tensors and not copies.
        """
        if not isinstance(self._embeddings, HostMemory):
            return False
        used = [*results, *self._embeddings.added]
        own = program.results
        if len(used) != len(own) or any(x is not y for x, y in zip(used, own, strict=True)):
            return False
        addresses = [ctypes.addressof(x) for x in (program.inputs, program.outputs, program.no_steps)]
        model = _Model(program.address, *addresses)
        error = self._library.simulate(*self._arguments, node, ctypes.byref(model))
        if error is not None:
            raise RuntimeError(error.decode())
        return True

    def finish_gumbel(self) -> tuple[Array, Array]:
        action, policy = np.empty(self._size[0], np.int64), np.empty(self._size)
        buffer, _, rule = self._arguments
        self._library.finish_gumbel(buffer, rule, action.ctypes.data, policy.ctypes.data)
        return action, policy


Steps = Plain | Compiled


def make_steps(trees: Trees, root: Embedding) -> tuple[Steps, Memory]:
    """Return an object whose methods are the steps of a search, and a memory for the embeddings of all nodes.

    The object is `Compiled` (C++), or `Plain` (numpy) if kernel.cpp can't be compiled; a warning tells why. `root` is
    the embedding of the roots `[B, ...]`.
    """
    library = load()
    if library is None:
        return Plain(trees), Memory(root, trees.nodes)
    is_on_cpu = all(part.is_cpu for part in parts_of(root))
    memory = HostMemory(root, trees.nodes) if is_on_cpu else Memory(root, trees.nodes)
    return Compiled(trees, library, memory), memory


@cache
def load() -> ctypes.CDLL | None:
    """Return the compiled kernel.cpp, or None after a warning if it can't be compiled or loaded."""
    try:
        library = ctypes.CDLL(str(_build()))
    except (OSError, subprocess.SubprocessError) as error:
        text = "The search runs in numpy and is about 10 times slower, because kernel.cpp was not compiled: %s"
        logging.getLogger(__name__).warning(text, _reason(error))
        return None
    pointers = [c_void_p] * 4
    signatures = {  # the types of the arguments
        "plant": pointers,
        "choose": [c_void_p, c_void_p, c_void_p, c_int64],
        "advance": [c_void_p, c_void_p, c_void_p, c_int64, *pointers],
        "simulate": [c_void_p, c_void_p, c_void_p, c_int64, c_void_p],
        "finish_gumbel": pointers,
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.simulate.restype = ctypes.c_char_p  # an error message, or None
    return library


def _build() -> Path:
    """Return the path of the compiled kernel.cpp; compile it if this file does not exist.

    The name of the file contains a hash of the source, the compiler's flags and the machine. Raise OSError or
    SubprocessError if this machine cannot compile the file.
    """
    parts = (SOURCE.read_text(), FLAGS, platform.machine())
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    folder = library_folder()
    path = folder.opened / f"search_{key}.so"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            command = [compiler(), *FLAGS, "-o", str(unfinished), str(SOURCE)]
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                timeout=COMPILE_S,
                pass_fds=(folder.descriptor,),
            )
            os.replace(unfinished, path)  # so that another process never sees an unfinished file
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def _reason(error: Exception) -> str:
    """Return the first line of the compiler's output that contains "error", or the text of any other exception."""
    if isinstance(error, subprocess.CalledProcessError):
        return next((line for line in error.stderr.splitlines() if "error" in line), str(error))
    return str(error)

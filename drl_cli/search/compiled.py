"""The steps of a search in C++: compile kernel.cpp once for a machine, load the library, and call it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
from ctypes import c_double, c_int64, c_void_p
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
from torch import Tensor

from drl_cli.search.formulas import Gumbel
from drl_cli.search.plain import Plain, Select
from drl_cli.search.trees import Trees
from drl_cli.types import Array
from drl_cli.utils.compiler import compiler, library_dir

SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-O3", "-shared", "-fPIC", "-std=c++17", "-ffp-contract=off", "-fno-math-errno")
COMPILE_S = 60.0


class _Trees(ctypes.Structure):
    """`Trees` as kernel.cpp reads them: three sizes, and the addresses of the arrays."""

    _fields_ = [(field.name, c_int64 if field.init else c_void_p) for field in fields(Trees)]


class Compiled:
    """The steps of one search; `Plain` describes the methods."""

    def __init__(self, trees: Trees, library: ctypes.CDLL) -> None:
        values = [getattr(trees, field.name) for field in fields(trees)]
        self._arrays = values  # the kernel has their addresses, so they have to exist
        self._trees = ctypes.byref(_Trees(*[x if isinstance(x, int) else x.ctypes.data for x in values]))
        self._library = library

    def grow(self, node: int, reward: Tensor, discount: Tensor, logits: Tensor, value: Tensor) -> None:
        addresses = reward.data_ptr(), discount.data_ptr(), logits.data_ptr(), value.data_ptr()
        self._library.grow(self._trees, node, *addresses)

    def puct(self, exploration: Array) -> Select:
        self._arrays.append(exploration)
        select, trees, table = self._library.select_puct, self._trees, exploration.ctypes.data
        return lambda simulation: select(trees, table)

    def gumbel(self, rule: Gumbel, base: Array, considered: Array) -> Select:
        select, first, row = self._library.select_gumbel, considered.ctypes.data, considered.strides[0]
        self._arrays += [base, considered]
        arguments = self._trees, rule.visit_init, rule.value_scale, base.ctypes.data
        return lambda simulation: select(*arguments, first + simulation * row)

    def finish_gumbel(self, rule: Gumbel, base: Array) -> tuple[Array, Array]:
        action, policy = np.empty(len(base), np.int64), np.empty_like(base)
        constants = rule.visit_init, rule.value_scale
        self._library.finish_gumbel(self._trees, *constants, base.ctypes.data, action.ctypes.data, policy.ctypes.data)
        return action, policy


Steps = Plain | Compiled


def make_steps(trees: Trees) -> Steps:
    """Return the compiled steps, or those in numpy where the kernel can't be compiled; a warning tells why."""
    library = load()
    return Plain(trees) if library is None else Compiled(trees, library)


@cache
def load() -> ctypes.CDLL | None:
    """Return the library of kernel.cpp, or None if it can't be compiled or loaded."""
    try:
        library = ctypes.CDLL(str(_build()))
    except (OSError, subprocess.SubprocessError) as error:
        text = "The search runs in numpy and is about 10 times slower, because kernel.cpp was not compiled: %s"
        logging.getLogger(__name__).warning(text, _reason(error))
        return None
    library.grow.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p]
    library.select_puct.argtypes = [c_void_p, c_void_p]
    library.select_gumbel.argtypes = [c_void_p, c_double, c_double, c_void_p, c_void_p]
    library.finish_gumbel.argtypes = [c_void_p, c_double, c_double, c_void_p, c_void_p, c_void_p]
    for function in (library.grow, library.select_puct, library.select_gumbel, library.finish_gumbel):
        function.restype = None
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

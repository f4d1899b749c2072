"""Compiles a recorded update into a library, in a process of low priority, or uses the library of an earlier run.

    python -m drl_cli.chains.compiling LIBRARY < GRAPH      # the process that `Compilation` starts

Libraries are kept beside torch's other compiled code, in `library_folder`. Their names have a hash of everything that
they depend on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from drl_cli.chains import native
from drl_cli.chains.program import in_place
from drl_cli.utils.clock import waiting_for_compiler
from drl_cli.utils.machine import describe_processor, library_folder
from drl_cli.utils.torch_ops import keep_headers_in

if TYPE_CHECKING:
    from drl_cli.chains.record import Record

PARENT, NICENESS = "DRL_PARENT", "DRL_NICENESS"
"""Environment variables of the process that compiles: the id of its parent, and its niceness."""


COMPILE_S = 600.0
"""Maximum time [s] of a compilation. The largest updates take one or two minutes on a busy machine."""


class NotCompiled(Exception):
    """A compilation has failed. The message gives the reason."""


class Compilation:
    """The compilation of one record. With `is_urgent`, its process has normal priority, because the run waits."""

    def __init__(self, record: Record, *, is_urgent: bool) -> None:
        self.cpu_s = 0.0
        """Processor seconds that the compilation took; 0 if the library was there."""
        graph = in_place(record)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._folder = library_folder()
            self._library = self._folder.opened / f"{key(graph, record.examples)}.so"
            if self._library.exists():
                return
            self._start(graph, record, is_urgent=is_urgent)
        except OSError as error:
            raise NotCompiled(str(error)) from error

    def _start(self, graph: fx.Graph, record: Record, *, is_urgent: bool) -> None:
        """Start the process. Its input and its errors are temporary files, because a pipe could fill up and block."""
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1")
        self._until = time.monotonic() + COMPILE_S
        own = {PARENT: str(os.getpid()), NICENESS: "0" if is_urgent else "5"}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # read after the end of the process
        with tempfile.TemporaryFile() as source:
            torch.save((fx.GraphModule({}, graph), record.examples), source)
            source.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "drl_cli.chains.compiling", str(self._library)],
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={**os.environ, **one_thread, **own},
                start_new_session=True,  # so that `close` also ends the C++ compiler
                pass_fds=(self._folder.descriptor,),
            )

    def library(self, *, wait: bool) -> str | None:
        """Return the path of the library, or None if it is not ready and `wait` is False.

        Raise NotCompiled if the compilation has failed, or takes longer than COMPILE_S.
        """
        if self._process is None:
            return str(self._library)
        before = _cpu_of_ended_children()
        left_s = max(0.0, self._until - time.monotonic())
        if not wait and left_s > 0 and self._process.poll() is None:
            return None
        try:
            with waiting_for_compiler():
                status, self._process = self._process.wait(left_s), None
        except subprocess.TimeoutExpired:
            self.close()
            raise NotCompiled(f"the compiler takes more than {COMPILE_S:g} s") from None
        self.cpu_s = _cpu_of_ended_children() - before
        if status or not self._library.exists():
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()] or [f"exit code {status}"]
            errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)] or lines
            raise NotCompiled(errors[-1][:300])
        return str(self._library)

    def close(self) -> None:
        """End the compilation if it still runs."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _cpu_of_ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def key(graph: fx.Graph, examples: Sequence[Tensor]) -> str:
    """Return a hash of everything that the compiled code depends on."""
    sizes = [(tuple(x.shape), tuple(x.stride()), str(x.dtype), str(x.device)) for x in examples]
    machine = (platform.machine(), torch.backends.cpu.get_cpu_capability(), _flags())
    folder = Path(__file__).parent
    own = [path.read_text() for path in (Path(__file__), folder / "native.py", *sorted(folder.glob("*.h")))]
    parts = (str(graph), sizes, torch.__version__, sys.version, machine, torch.get_num_threads(), own)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _flags() -> str:
    """Return the vendor and the instruction sets of the processor, or its name if /proc/cpuinfo does not list them."""
    lines = describe_processor().splitlines()
    return "".join(line for line in lines if line.startswith(("vendor_id", "flags"))) or platform.processor()


def compile_graph(library: str) -> None:
    """Compile the graph that is read from stdin, and write the library. There is never an unfinished library."""
    from torch._inductor import aot_compile, config

    keep_headers_in(library_folder().path)
    config.memory_planning = True  # one allocation for all intermediate results
    with open(0, "rb") as source:
        module, examples = torch.load(source, weights_only=False)
    native.call_natively(examples)
    use_torchs_products(module)
    compute_scalars_once(module, examples)
    built = aot_compile(module, tuple(examples))
    unfinished = f"{library}.{os.getpid()}"
    try:
        shutil.copyfile(str(built), unfinished)
        os.replace(unfinished, library)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def use_torchs_products(module: fx.GraphModule) -> None:
    """Replace oneDNN's matrix products in a graph by torch's products.

    This is necessary because AOTInductor compiles oneDNN's products only with constant weights.
    """
    if not torch._C._has_mkldnn:
        return
    aten, onednn = torch.ops.aten, torch.ops.mkldnn._linear_pointwise.default
    for node in module.graph.find_nodes(op="call_function", target=onednn):
        a, weight, bias = node.args[:3]  # a weight^T + bias
        with module.graph.inserting_before(node):
            b = module.graph.call_function(aten.t.default, (weight,))
            product, args = (aten.mm.default, (a, b)) if bias is None else (aten.addmm.default, (bias, a, b))
            node.replace_all_uses_with(module.graph.call_function(product, args))
        module.graph.erase_node(node)
    module.recompile()


def compute_scalars_once(module: fx.GraphModule, examples: Sequence[Tensor]) -> None:
    """Change a graph so that single numbers, such as Adam's bias correction `1 - beta^step`, are computed only once.

    Without this change, torch's code computes a number again for every few elements of a larger tensor that uses it.
    """
    FakeTensorProp(module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*examples)

    for node in [*module.graph.nodes]:
        if _size(node) == 1 and not _is_view(node) and _is_used_by_larger(node):
            value = node.meta["val"]
            with module.graph.inserting_after(node):
                # this view, unlike others, needs a tensor in memory
                stored = module.graph.call_function(
                    torch.ops.aten.as_strided.default, (node, [*value.shape], [*value.stride()])
                )
            node.replace_all_uses_with(stored, delete_user_cb=lambda user, own=stored: user is not own)
    module.recompile()


def _size(node: fx.Node) -> int:
    """Return the number of elements of the tensor that a node computes, or 0 if its value is no tensor."""
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) else 0


def _is_view(node: fx.Node) -> bool:
    """Return whether a node's value may share memory with another value.

    This includes inputs of the graph, and single results of an operation with several results.
    """
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _is_used_by_larger(node: fx.Node) -> bool:
    """Return whether an operation with a larger result uses a node's value, itself or a view of it."""
    return any(
        _size(user) > 1 or (_size(user) == 1 and _is_view(user) and _is_used_by_larger(user)) for user in node.users
    )


def _end_with_parent() -> None:
    """End this process when the process that started it ends, on Linux."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != int(os.environ[PARENT]):
            sys.exit(1)


if __name__ == "__main__":
    _end_with_parent()
    os.nice(int(os.environ[NICENESS]))
    compile_graph(sys.argv[1])

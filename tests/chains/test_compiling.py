import os
import subprocess
import sys
import time

import psutil
import pytest
import torch
from torch import fx

from drl_cli.chains.compiling import (
    NICENESS,
    PARENT,
    Compilation,
    NotCompiled,
    compute_scalars_once,
    key,
    use_torchs_products,
)
from drl_cli.utils.clock import compiler_since

aten = torch.ops.aten


def traced(build):
    """Return a graph module of `build(graph, parameters [6], step [1])`, and examples of its inputs."""
    graph = fx.Graph()
    parameters, step = graph.placeholder("parameters"), graph.placeholder("step")
    graph.output((build(graph, parameters, step),))
    return fx.GraphModule({}, graph), [torch.arange(6.0), torch.tensor([3.0])]


def stored(module):
    """Return the operations whose values the module stores."""
    return [node.args[0].target for node in module.graph.nodes if node.target is aten.as_strided.default]


def check(build, expected):
    module, examples = traced(build)
    (before,) = module(*examples)
    compute_scalars_once(module, examples)
    assert stored(module) == expected
    torch.testing.assert_close(module(*examples)[0], before, rtol=0, atol=0)


def test_a_value_that_many_parameters_use_is_stored_once():
    def build(graph, parameters, step):
        power = graph.call_function(aten.pow.Scalar, (0.9, step))
        scale = graph.call_function(aten.rsub.Scalar, (power, 1.0))
        return graph.call_function(aten.mul.Tensor, (parameters, scale))

    check(build, [aten.rsub.Scalar])


def test_a_value_that_is_used_by_a_view_is_stored_too():
    def build(graph, parameters, step):
        scale = graph.call_function(aten.rsub.Scalar, (step, 1.0))
        scalar = graph.call_function(aten.view.default, (scale, []))
        return graph.call_function(aten.mul.Tensor, (parameters, scalar))

    check(build, [aten.rsub.Scalar])


def test_one_element_of_an_input_stays_a_view():
    def build(graph, parameters, step):
        last = graph.call_function(aten.slice.Tensor, (parameters, 0, 5, 6))
        return graph.call_function(aten.mul.Tensor, (parameters, last))

    check(build, [])


def test_a_value_that_only_single_values_use_is_not_stored():
    def build(graph, parameters, step):
        power = graph.call_function(aten.pow.Scalar, (0.9, step))
        return graph.call_function(aten.rsub.Scalar, (power, 1.0))

    check(build, [])


def test_values_with_several_elements_are_not_stored():
    def build(graph, parameters, step):
        double = graph.call_function(aten.mul.Tensor, (parameters, 2.0))
        return graph.call_function(aten.add.Tensor, (double, step))

    check(build, [])


class Busy(Compilation):
    """A compilation whose process, or a child of the process, works for half a second of processor time."""

    def __init__(self, library, script):
        self._library, self.cpu_s, self._until = library, 0.0, time.monotonic() + 60.0
        self._process = subprocess.Popen([sys.executable, "-S", "-c", script], start_new_session=True)


WORK = "import time\nwhile time.process_time() < 0.5: pass"


def test_the_processor_time_of_a_compilation_has_that_of_its_compiler_and_of_nothing_else(tmp_path):
    (tmp_path / "x.so").touch()
    subprocess.run([sys.executable, "-S", "-c", WORK], check=True)
    for script in (WORK, f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {WORK!r}])"):
        compilation = Busy(tmp_path / "x.so", script)
        assert compilation.library(wait=True) == str(tmp_path / "x.so")
        assert 0.5 <= compilation.cpu_s < 0.9


def test_a_process_tells_since_when_it_waits_for_the_compiler(tmp_path):
    (tmp_path / "x.so").touch()
    compilation, before, found = Busy(tmp_path / "x.so", "pass"), time.time(), []
    wait = compilation._process.wait
    compilation._process.wait = lambda limit: (found.append(compiler_since()), wait(limit))[1]
    assert compilation.library(wait=True) == str(tmp_path / "x.so")
    assert before <= found[0] <= time.time()
    assert compiler_since() is None


SLEEP = "import time; time.sleep(600)"


@pytest.mark.parametrize("wait", [True, False])
def test_a_compilation_that_takes_too_long_is_ended_with_its_compiler(tmp_path, wait):
    compilation = Busy(tmp_path / "x.so", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])")
    assert compilation.library(wait=False) is None
    process = psutil.Process(compilation._process.pid)
    while not (compilers := process.children()):
        assert process.is_running()
    compilation._until = time.monotonic()
    with pytest.raises(NotCompiled, match="the compiler takes more than 600 s"):
        compilation.library(wait=wait)
    assert not process.is_running()
    assert psutil.wait_procs(compilers, 10)[1] == []


def with_onednn():
    """Return a graph module with two products of oneDNN, one of them with a bias, and examples of its inputs."""
    graph = fx.Graph()
    x, weight, bias = (graph.placeholder(name) for name in ("x", "weight", "bias"))
    onednn = torch.ops.mkldnn._linear_pointwise.default
    hidden = graph.call_function(onednn, (x, weight, bias, "none", [], ""))
    graph.output((graph.call_function(onednn, (hidden, weight, None, "none", [], "")),))
    return fx.GraphModule({}, graph), [torch.randn(5, 4), torch.randn(4, 4), torch.randn(4)]


needs_onednn = pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch without oneDNN")


@needs_onednn
def test_products_of_onednn_become_those_of_torch():
    module, examples = with_onednn()
    (before,) = module(*examples)
    use_torchs_products(module)
    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert targets == [aten.t.default, aten.addmm.default, aten.t.default, aten.mm.default]
    torch.testing.assert_close(module(*examples)[0], before)


@needs_onednn
@pytest.mark.slow
def test_a_graph_with_products_of_onednn_is_compiled(tmp_path):
    """AOTInductor alone fails, because the weights are no constants."""
    torch.save(with_onednn(), tmp_path / "graph")
    with open(tmp_path / "graph", "rb") as source:
        command = [sys.executable, "-m", "drl_cli.chains.compiling", str(tmp_path / "x.so")]
        subprocess.run(command, stdin=source, check=True, env={**os.environ, PARENT: str(os.getpid()), NICENESS: "0"})
    assert (tmp_path / "x.so").exists()


def test_the_name_of_a_library_depends_on_the_graph_the_sizes_and_the_processor(monkeypatch):
    def name(module, examples):
        return key(module.graph, examples)

    def pretend(vendor):
        text = f"vendor_id\t: {vendor}\ncpu MHz\t\t: {next(clock)}\nflags\t\t: fpu\n"
        monkeypatch.setattr("drl_cli.chains.compiling.describe_processor", lambda: text)

    clock = iter(range(9))
    module, examples = with_onednn()
    pretend("AuthenticAMD")
    first = name(module, examples)
    others = [name(module, [torch.randn(6, 4), *examples[1:]]), name(module, [x.double() for x in examples])]
    pretend("AuthenticAMD")  # at another clock rate
    assert name(module, examples) == first
    pretend("GenuineIntel")
    others.append(name(module, examples))
    use_torchs_products(module)
    others.append(name(module, examples))
    assert len({first, *others}) == 5

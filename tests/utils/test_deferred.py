import copy
import subprocess
import sys

import pytest

DEFINED = """
import sys

from drl_cli.api import nn, torch

F = nn.functional


class Net(nn.Module):
    def __init__(self, size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 2, bias=bias)

    def forward(self, x: "torch.Tensor | None") -> torch.Tensor | None:
        return F.relu(self.layer(x))


class Actor(Net):
    pass


assert not isinstance(3, torch.Tensor)
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def printed():
    """What a new process prints that defines modules before it imports torch."""
    uses = """
import copy

import torch as real

actor = Actor(3, bias=False)
same = copy.deepcopy(actor)
assert isinstance(actor, (Actor, Net, real.nn.Module, nn.Module)) and not isinstance(nn.Linear(1, 1), Net)
assert isinstance(nn.Linear(1, 1), nn.Module) and type(same) is type(actor) is type(Actor(3))
assert nn.Module is real.nn.Module and torch.Tensor is real.Tensor and torch.nn is not None
assert isinstance(torch.zeros(1), torch.Tensor)
with torch.no_grad():
    assert torch.equal(same(torch.ones(2, 3)), actor(torch.ones(2, 3)))
print(type(actor).__module__, type(actor).__qualname__, *actor.state_dict(), nn.Sequential(actor))
"""
    done = subprocess.run([sys.executable, "-c", DEFINED + uses], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_module_that_was_defined_before_torch_is_a_module_of_torch(printed):
    assert printed.startswith("__main__ Actor layer.weight Sequential(\n  (0): Actor(\n    (layer): Linear")


def test_with_torch_the_names_are_those_of_torch():
    import torch

    from drl_cli.api import nn
    from drl_cli.api import torch as deferred

    class Net(nn.Module):
        pass

    assert Net.__mro__[1] is torch.nn.Module
    assert deferred.Tensor is torch.Tensor
    assert type(copy.deepcopy(Net())) is Net


@pytest.mark.parametrize("line", ["class Net(nn.Linear): pass", "torch.float32", "nn.ReLU"])
def test_everything_else_imports_torch(line):
    code = f"import sys\nfrom drl_cli.api import nn, torch\n{line}\nassert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

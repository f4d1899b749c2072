from collections import Counter

import pytest
import torch

from drl_cli.testing import Case


@pytest.mark.parametrize(
    ("algo", "probe", "online"),
    [
        (("dqn", "algo.double=true"), "Patch", 2),  # obs and next_obs
        (("dqn", "algo.double=false"), "Patch", 1),
        (("sac",), "PatchReach", 2),
    ],
)
def test_no_image_goes_through_a_torso_for_nothing(algo, probe, online):
    """The target encoder sees next observations alone, without autograd; convolutions take most of an update's time."""
    case = Case(*algo, f"env=drl_cli.envs.probes:{probe}-v0", "+env.kwargs.size=36", "network.hidden=[8]")
    algorithm, calls = case.algorithm(), Counter()
    params = algorithm.params
    for name, torso in (("online", params.modules["torso"]), ("target", params.targets["torso"].module)):
        torso.register_forward_hook(lambda *args, name=name: calls.update([(name, torch.is_grad_enabled())]))
    case.learn(algorithm, 0, 1)
    assert calls["online", True] + calls["online", False] == online
    assert calls["target", False] == calls.total() - online == 1

"""Which policies are known to the exporters: by whose `forward` and `greedy` they act."""

import pytest

from drl_cli.algos import c51, dqn, iqn, qr_dqn, sac
from drl_cli.deploy.head import find_head


@pytest.mark.parametrize("module", [c51, dqn, iqn, qr_dqn, sac])
@pytest.mark.parametrize("name", ["forward", "greedy"])
def test_one_that_acts_in_a_way_of_its_own_is_not_taken_for_ours(module, name):
    own = type("Own", (module.Policy,), {name: lambda self, obs, last: None})
    assert find_head(object.__new__(own)) is None

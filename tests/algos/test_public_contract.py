"""The public contract, `check_algorithm`, of every built-in algorithm."""

import pytest
from choices import some

from drl_cli.algos.lookup import algorithms, load_algorithm
from drl_cli.testing import check_algorithm, contract

OWN_TEST = ("dreamer", "tdmpc2")
"""Their tests call check_algorithm with options that keep rounding small."""
CASES = [(name, kind) for name in algorithms() if name not in OWN_TEST for kind in load_algorithm(name).ACTIONS]
FEW = [
    *(("dqn", "discrete"), ("gumbel_muzero", "discrete"), ("impala", "discrete"), ("ppo", "box")),
    *(("iql", "box"), ("mpo", "box"), ("mrq", "box"), ("sac", "box")),
]
"""One case of each family."""


@pytest.mark.parametrize(("name", "kind"), some(CASES, *FEW), ids=["-".join(case) for case in CASES])
def test_the_public_contract_and_that_updates_are_replayed(name, kind, monkeypatch):
    reasons, check_replays = [], contract.check_replays
    monkeypatch.setattr(contract, "check_replays", lambda case: reasons.extend(check_replays(case)))
    options = load_algorithm(name).Config.__dataclass_fields__
    few = [f"algo.{option}=2" for option in ("epochs", "simulations") if option in options]
    env = f"env=drl_cli.envs.probes:{ {'box': 'Reach', 'discrete': 'Choose', 'multidiscrete': 'Switches'}[kind] }-v0"
    check_algorithm(name, env, "network.hidden=[16,16]", *few)
    assert reasons == []

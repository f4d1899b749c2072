"""The search for keys without effect: each key is typed with other values, and the weights are compared."""

import pytest
from advice import loops
from key_search import typed_without_effect

from drl_cli.settings.conf import options

ALLOWED = {
    "stop.return": "ends a run only if an evaluation reaches it",
    "orchestrator.stall_s": "a limit for processes that do not answer",
    "worker.step_timeout_s": "a limit for environments that hang",
    "worker.max_restarts": "a limit for workers that crash",
    "worker.unroll": "the typed length may be the length of the default",
    "worker.random_steps": "0 says what an on-policy run does",
    "trainer.updates_per_call": "sets how many updates one call makes, not what they compute",
    "trainer.threads": "changes the speed",
    "trainer.products": "changes the speed; two libraries may round equally",
    "trainer.on_nonfinite": "decides only after a loss that is not finite",
    "replay.capacity": "a limit, which a short run does not reach",
    "replay.remover": "chooses only in a full table",
    "replay.max_staleness": "a limit, which a short run does not reach",
    "replay.sampler": "the queue fifo serves each row once by default, as fifo-once does",
    "network.torso": "mlp says what auto chooses for vectors",
    **dict.fromkeys(("manage", "checkpoint", "logger", "ray", "debug"), "evaluates, saves, records or hosts the run"),
}
"""Keys and groups that may change nothing that is learned, each with the reason."""

FAMILIES = [
    (f"env={env} algo={algo} mode=single", "algo.,network.,optimizer.,replay.")
    for env, names in {
        "CartPole-v1": "dqn c51 qr_dqn iqn sac_discrete ppo impala vmpo pqn mrq",
        "Pendulum-v1": "sac td3 ddpg d4pg tqc redq crossq xqc mpo reppo mrq ppo vmpo",
    }.items()
    for algo in names.split()
] + [
    (f"env=Pendulum-v1 algo={algo} mode={mode}", "orchestrator.,worker.,trainer.")
    for algo in ("sac", "ppo")
    for mode in ("single", "sync", "async")
]


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("base", "groups"), FAMILIES, ids=lambda text: text)
def test_no_typed_key_is_accepted_without_effect(base, groups):
    found = [*typed_without_effect(base.split(), groups.split(","))]
    unexplained = [line for line in found if not {line.partition("=")[0], line.partition(".")[0]} & ALLOWED.keys()]
    assert unexplained == []


def test_no_option_of_noise_is_accepted_without_effect():
    base = ["env=Pendulum-v1", "algo=td3", "mode=single"]
    assert [*typed_without_effect(base, ["algo.noise", "algo.ou_theta"])] == []


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("algo", options("algo"))
def test_no_advice_leads_back(algo):
    for env in ("CartPole-v1", "Pendulum-v1", "everything:Stacked-v0"):
        for network in ("auto", "lstm", "cnn"):
            for replay in options("replay"):
                for mode in ("single", "async"):
                    words = {"env": env, "algo": algo, "network": network, "replay": replay, "mode": mode}
                    assert [*loops({**words, "tuned": "none"})] == []

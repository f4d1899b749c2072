import pytest
from advice import loops
from key_search import SMALL, outcome, typed_without_effect

from drl_cli.run_folder.resume import verdict
from drl_cli.settings.conf import options

ALLOWED = {
    "stop.return": "ends a run only if an evaluation reaches it",
    "orchestrator.band": "a limit, which a short run does not reach",
    "orchestrator.gather_window_s": "a wait for other processes; in one process all calls are done",
    "orchestrator.stall_s": "a limit for processes that do not answer",
    "worker.step_timeout_s": "a limit for environments that hang",
    "worker.max_restarts": "a limit for workers that crash",
    "worker.unroll": "the typed length may be the length of the default",
    "worker.random_steps": "0 says what an on-policy run does",
    "trainer.updates_per_call": "sets how many updates one call makes, not what they compute",
    "trainer.threads": "changes the speed",
    "trainer.products": "changes the speed; two libraries may round equally",
    "trainer.on_nonfinite": "decides only after a loss that is not finite",
    "replay.shards": "1 is what null chooses here",
    "replay.capacity": "a limit, which a short run does not reach",
    "replay.remover": "chooses only in a full table",
    "replay.max_staleness": "a limit, which a short run does not reach",
    "replay.sampler": "the queue fifo serves each row once by default, as fifo-once does",
    "network.torso": "mlp says what auto chooses for vectors",
    **dict.fromkeys(("manage", "checkpoint", "logger", "ray", "debug"), "evaluates, saves, records or hosts the run"),
}
"""Keys and groups that may change nothing that is learned, each with the reason."""

LEARNS, RUNS = (
    ("algo.", "network.", "optimizer.", "replay.", "env.", "reward."),
    ("orchestrator.", "worker.", "trainer."),
)
UNTYPED = ("algo.name", "algo.preset", "env.name", "env.id", "env.backend")
"""Keys that choose what the family is."""

FAST = "algo.lr=0.05 algo.epsilon_steps=64 algo.target_period=4"
"""DQN learns fast enough that options of targets and exploration have an effect within 128 steps."""

APEX = f"env=CartPole-v1 algo=apex mode=single {FAST} orchestrator.sample_insert_ratio=1"
"""Ape-X with as many updates as steps, so that the online and the target network soon prefer different actions."""

PIECES = "algo.lr=0.05 replay.seq_len=8 replay.burn_in=4 replay.overlap=2"
"""Sequences that are shorter than the first episodes."""

FAMILIES = [
    (f"env=CartPole-v1 algo=dqn mode=single {FAST}", LEARNS),
    (f"env=CartPole-v1 algo=c51 mode=single {FAST} algo.risk_level=0.1", ("algo.", "replay.")),
    (APEX, ("algo.", "replay.")),
    ("env=Pendulum-v1 algo=sac mode=single algo.lr=0.05", LEARNS),
    ("env=Pendulum-v1 algo=xqc mode=single algo.lr=0.05", ("algo.",)),
    ("env=Pendulum-v1 algo=mpo mode=single algo.lr=0.05 algo.target_period=2", ("algo.",)),
    ("env=Pendulum-v1 algo=td3 mode=single", ("algo.", "replay.")),
    ("env=CartPole-v1 algo=ppo mode=single algo.lr=0.05", LEARNS),
    ("env=CartPole-v1 algo=impala mode=single algo.lr=0.05", ("algo.", "replay.")),
    ("env=Pendulum-v1 algo=vmpo mode=single algo.lr=0.05", ("algo.",)),
    ("env=Pendulum-v1 algo=reppo mode=single algo.lr=0.05", ("algo.",)),
    ("env=Pendulum-v1 algo=mrq mode=single total_env_steps=64", ("algo.",)),
    ("env=Pendulum-v1 algo=mrq mode=single", ("replay.",)),
    (f"env=CartPole-v1 algo=r2d2 mode=single total_env_steps=512 {PIECES}", ("replay.",)),
    ("env=BitFlip algo=dqn replay=hindsight mode=single total_env_steps=512", ("replay.",)),
    *((f"env=Pendulum-v1 algo=sac mode={mode}", RUNS) for mode in ("sync", "async")),
    ("env=Pendulum-v1 algo=ppo mode=sync worker.block_rows=16", RUNS),
    # The queue of the first 128 steps is never full, so that orchestrator.limiter=none changes nothing.
    ("env=Pendulum-v1 algo=ppo mode=async worker.block_rows=16", ("orchestrator.s", "worker.", "trainer.")),
]
"""What a family of runs is, and the groups of keys that are tried with it."""


def is_allowed(name):
    return {name, name.partition(".")[0]} & ALLOWED.keys()


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("base", "groups"), FAMILIES, ids=lambda value: value if isinstance(value, str) else "")
def test_no_typed_key_is_accepted_without_effect(base, groups):
    def names(keys):
        return [key for key in keys if key.startswith(groups) and key not in UNTYPED and not is_allowed(key)]

    assert "\n".join(typed_without_effect(base.split(), names)) == ""


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "base",
    ["env=Pendulum-v1 algo=sac mode=single", "env=CartPole-v1 algo=ppo mode=single algo.lr=0.05 algo.kl_coef=0.2"],
)
def test_no_key_is_changed_without_effect_by_a_resume(base, tmp_path):
    saved = tmp_path / "checkpoints/last"
    saved.parent.mkdir()
    outcome([*SMALL, *base.split()], end=saved)

    def names(keys):
        return [key for key in keys if "." in key and verdict(key) == "careful" and not is_allowed(key)]

    assert "\n".join(typed_without_effect([*base.split(), "total_env_steps=256"], names, start=saved)) == ""


@pytest.mark.slow
def test_no_option_of_noise_is_accepted_without_effect():
    base = ["env=Pendulum-v1", "algo=td3", "mode=single"]
    assert [
        *typed_without_effect(base, lambda keys: [k for k in keys if k.startswith(("algo.noise", "algo.ou_"))])
    ] == []


@pytest.mark.slow
def test_double_q_learning_of_ape_x_has_an_effect():
    assert [*typed_without_effect(APEX.split(), lambda keys: ["algo.double"])] == []


@pytest.mark.slow
def test_the_search_finds_a_key_without_effect_and_a_crash(monkeypatch):
    base = ["env=CartPole-v1", "algo=dqn", "mode=single"]
    monkeypatch.setattr("drl_cli.preflight.unread.rules", list)
    (found,) = typed_without_effect(base, lambda keys: ["network.memory_size"])
    assert found.startswith("network.memory_size=")

    def fails(words, typed=(), start=None):
        if typed:
            raise KeyError("kind")
        return "the same"

    monkeypatch.setattr("key_search.outcome", fails)
    found = [*typed_without_effect(base, lambda keys: ["algo.double"])]
    assert found == ["crash: algo.double=false: KeyError: 'kind'"]


ON = {
    "CartPole-v1": ("dqn", "c51", "iqn", "sac_discrete", "impala", "pqn", "r2d2", "ppo"),
    "Pendulum-v1": ("sac", "td3", "mpo", "redq", "crossq", "mrq", "reppo", "vmpo"),
}
"""One algorithm of each family, by an environment for it."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("env", "algo"), [(env, algo) for env, algos in ON.items() for algo in algos])
def test_no_advice_leads_back(env, algo):
    other = next(iter(ON.keys() - {env}))
    more = [
        *({"replay": replay, "network": network} for replay in options("replay") for network in ("auto", "lstm")),
        *({"env": other}, {"network": "cnn"}, {"mode": "async", "network": "lstm"}),
        *({"reward": name} for name in options("reward")),
        {"reward.coef": "0.5"},
    ]
    base = {"env": env, "algo": algo, "mode": "single", "tuned": "none"}
    assert "\n".join(dict.fromkeys(line for words in more for line in loops({**base, **words}))) == ""

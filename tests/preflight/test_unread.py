"""A key that the user typed and that the run does not read is an error with the reason and what to type instead."""

import pytest
from advice import advised, loops
from graphs import make_config
from key_search import checked

from drl_cli.cli.train import answer
from drl_cli.errors import USAGE, UsageError
from drl_cli.preflight.unread import rules, unread_keys

PENDULUM, CUE = "env=Pendulum-v1", "env=CartPole-v1"
TD3, DQN, PPO = (PENDULUM, "algo=td3"), (CUE, "algo=dqn"), (CUE, "algo=ppo", "mode=single")
OFFLINE = (*TD3, "mode=offline", "data.source=recorded.npz")
BC = (PENDULUM, "algo=bc", *OFFLINE[2:])
FLASHSAC = (PENDULUM, "algo=flashsac")
REWARD_KEYS = ("normalize_reward=true", "reward_scale=0.1", "reward_clip=1")
NO_ENV = ("env=none", *OFFLINE[1:])
MRQ, A2C = (PENDULUM, "algo=mrq"), (CUE, "algo=a2c", "mode=single")
SEARCH = (CUE, "algo=gumbel_muzero")
RAINBOW, C51 = (CUE, "algo=dqn", "algo.noisy=true"), (CUE, "algo=c51")

UNREAD = [
    (OFFLINE, "total_env_steps=5000"),
    (OFFLINE, "data.share=0.3"),
    *((algo, f"env.{typed}") for algo in (BC, FLASHSAC) for typed in REWARD_KEYS),
    *(
        (NO_ENV, f"manage.{typed}")
        for typed in ("eval_period=5", "eval_episodes=3", "confirm_episodes=3", "max_episode_steps=9", "video_period=1")
    ),
    *[(NO_ENV, "manage.evaluator=my_mod:MyEvaluator"), (OFFLINE, "data.download=true"), (TD3, "data.share=0.3")],
    ((*TD3, "mode=single"), "total_updates=5000"),
    *(
        (OFFLINE, typed)
        for typed in (
            *("worker.num=2", "worker.proxies=1", "worker.envs=4", "worker.block_rows=64", "worker.unroll=4"),
            *("worker.random_steps=10", "worker.fetch=2", "worker.exploration=ladder", "worker.max_restarts=3"),
            *("env.max_episode_steps=100", "replay.shards=2"),
            *("orchestrator.sample_insert_ratio=4", "orchestrator.sample_load_ratio=4", "orchestrator.min_inserts=9"),
            *("orchestrator.limiter=none", "orchestrator.band=100", "orchestrator.gather_window_s=1"),
        )
    ),
    (PPO, "orchestrator.sample_insert_ratio=4"),
    (PPO, "trainer.updates_per_call=2"),
    (PPO, "orchestrator.min_inserts=4000"),
    ((CUE, "algo=ppo", "mode=async"), "orchestrator.band=50"),
    ((*DQN, "mode=sync"), "orchestrator.limiter=none"),
    ((*DQN, "mode=single"), "orchestrator.band=100"),
    ((*DQN, "mode=sync"), "orchestrator.sample_load_ratio=4"),
    ((*DQN, "mode=sync"), "orchestrator.gather_window_s=1"),
    ((*DQN, "mode=single"), "worker.num=4"),
    ((*DQN, "mode=sync", "worker.num=1"), "worker.exploration=ladder"),
    ((*DQN, "mode=sync", "worker.num=1", "worker.envs=1"), "worker.exploration=env_ladder"),
    (TD3, "replay.her_k=8"),
    *((SEARCH, f"reanalyzer.{typed}") for typed in ("ratio=2", "windows=8", "max_restarts=3")),
    *[(TD3, "replay.seq_len=4"), (TD3, "replay.burn_in=2"), (TD3, "replay.overlap=2")],
    *[((*DQN, "replay=windows"), "replay.overlap=2"), ((*DQN, "replay=prioritized"), "replay.eta=0.5")],
    *[(MRQ, "replay.beta=0.5"), (MRQ, "replay.eta=0.5"), (DQN, "network.memory_size=64")],
    ((*DQN, "network=lstm", "replay=sequences", "device=cpu"), "trainer.compile=true"),
    ((CUE, "algo=ppo", "mode=single", "network=gru", "device=cpu"), "trainer.compile=true"),
    ((PENDULUM, "algo=rebrac", "mode=sync", "trainer.num=2", "device=cpu"), "trainer.compile=true"),
    *[(DQN, "optimizer.end=0.1"), (DQN, "sweep.jobs=2"), (DQN, "hpo.trials=5")],
    *[((*DQN, "hpo=tpe"), "hpo.members=4"), ((*DQN, "hpo=tpe"), "hpo.rounds=4")],
    *[((*DQN, "hpo=tpe"), "hpo.quantile=0.3"), ((*DQN, "hpo=tpe"), "hpo.resample=0.3")],
    *[((*DQN, "hpo=pbt"), "hpo.trials=5"), ((*DQN, "hpo=pbt"), "hpo.seeds=5")],
    *[((*DQN, "hpo=pbt"), "hpo.pruner=median"), ((*DQN, "hpo=pbt"), "hpo.fresh_seeds=5")],
    (TD3, "algo.ou_theta=0.3"),
    ((*TD3, "algo.target_noise=0"), "algo.noise_clip=0.3"),
    ((*DQN, "algo.soft_temperature=0.9"), "algo.munchausen_floor=-2"),
    (RAINBOW, "algo.epsilon_start=0.5"),
    (RAINBOW, "algo.epsilon_end=0.1"),
    *[(RAINBOW, "algo.epsilon_steps=10"), (RAINBOW, "algo.epsilon_repeat=4")],
    ((*DQN, "algo.epsilon_start=0.1", "algo.epsilon_end=0.1"), "algo.epsilon_steps=50"),
    *[(C51, "algo.risk_level=0.5"), (C51, "algo.risk=cvar"), (C51, "algo.loss=mse"), (PPO, "algo.seq_len=8")],
    *[(PPO, "algo.kl_target=0.1"), (A2C, "algo.target_kl=0.1"), (A2C, "algo.clip=0.1")],
    *[(A2C, "algo.value_clip=0.1"), (MRQ, "algo.gumbel_temperature=5"), (MRQ, "algo.infonce_temperature=0.2")],
    ((*MRQ, *OFFLINE[2:]), "replay.age_factor=0.999"),
    *[((CUE, "algo=vmpo"), "algo.epsilon_std=0.1"), (DQN, "network.channels=2")],
    *[(DQN, "network.torso_activation=tanh"), (DQN, "replay.compress=lz4"), (DQN, "env.frame_storage=none")],
    (("env=Taxi-v4", "algo=dqn"), "env.normalize_obs=true"),
]
"""What the run is, and a key that it does not read."""
READ = [
    *[(TD3, "orchestrator.sample_insert_ratio=0.5"), (PPO, "orchestrator.min_inserts=0")],
    *[((*DQN, "mode=async"), "orchestrator.band=5000"), ((*DQN, "mode=sync"), "orchestrator.limiter=ratio")],
    *[((*DQN, "mode=single"), "worker.num=1"), ((*DQN, "mode=sync"), "worker.num=2")],
    ((*DQN, "mode=single", "resume=latest"), "worker.num=2"),
    *[(BC, "env.normalize_obs=true"), (OFFLINE, "env.normalize_reward=true")],
    *(
        ((*DQN, "mode=sync", *words), f"worker.exploration={kind}")
        for words, kind in (
            *[(("worker.num=2",), "ladder"), (("worker.num=2", "worker.envs=1"), "env_ladder")],
            (("worker.num=1", "worker.envs=2"), "env_ladder"),
            (("worker.num=1",), "[{epsilon:0.1}]"),
        )
    ),
    (DQN, "algo.epsilon_end=0.1"),
    (DQN, "algo.epsilon_steps=50"),
    ((*DQN, "algo.munchausen=0.9", "algo.soft_temperature=0.03"), "algo.munchausen_floor=-2"),
    *[(DQN, "replay.burn_in=0"), ((*DQN, "replay=windows"), "replay.seq_len=4")],
    *[((*DQN, "replay=sequences"), "replay.eta=0.5"), ((*DQN, "replay=prioritized"), "replay.beta=0.5")],
    *[((*C51, "algo.risk_level=0.5"), "algo.risk=cvar"), (C51, "algo.risk=power")],
    *[((*C51, "algo.risk=cvar"), "algo.risk_level=1.0"), (PPO, "algo.clip=0.1"), (PPO, "algo.target_kl=0.1")],
    (A2C, "algo.target_kl=null"),
    ((CUE, "algo=ppo", "mode=async", "algo.epochs=1", "algo.minibatch_size=null"), "algo.clip=0.1"),
    ((CUE, "algo=impala", "mode=single", "algo.target_period=2"), "algo.clip=0.1"),
    *[((*A2C, "algo.minibatch_size=4"), "algo.clip=0.1"), ((CUE, "algo=mrq"), "algo.gumbel_temperature=5")],
    *[((*MRQ, "algo.infonce_weight=1"), "algo.infonce_temperature=0.2"), (MRQ, "replay.age_factor=0.999")],
    *[((PENDULUM, "algo=dr_q"), "algo.infonce_temperature=0.2"), ((*MRQ, *OFFLINE[2:]), "replay.age_factor=1")],
    *[((PENDULUM, "algo=vmpo"), "algo.epsilon_std=0.1"), ((PENDULUM, "algo=mpo"), "algo.epsilon_std=0.1")],
    (("env=everything:Stacked-v0", "algo=dqn"), "network.channels=2"),
    (("env=everything:Stacked-v0", "algo=dqn"), "env.frame_storage=none"),
    ((*DQN, "network=lstm", "replay=sequences", "device=cpu"), "trainer.compile=auto"),
    ((*DQN, "network=lstm", "replay=sequences", "device=cpu"), "trainer.compile=false"),
    ((*DQN, "network=lstm", "replay=sequences", "device=cuda"), "trainer.compile=true"),
    ((*DQN, "network=lstm", "replay=sequences", "device=cpu", "mode=sync", "trainer.num=2"), "trainer.compile=true"),
    ((*DQN, "device=cpu"), "trainer.compile=true"),
    ((PENDULUM, "algo=rebrac", "mode=sync", "trainer.num=2", "device=cpu"), "trainer.compile=replay"),
    ((PENDULUM, "algo=rebrac", "mode=sync", "device=cpu"), "trainer.compile=true"),
    ((*DQN, "hpo=pbt"), "hpo.members=4"),
    ((*DQN, "hpo=tpe"), "hpo.trials=4"),
    ((*DQN, "hpo=tpe"), "hpo.evaluations=2"),
]


def lines_for(base, typed):
    from drl_cli.envs.make import read_spec

    config = make_config("tuned=none", *base, typed)
    env = config.env if config.has_env else make_config(PENDULUM).env
    return unread_keys(config, [*base, typed], read_spec(env))


@pytest.mark.parametrize(("base", "typed"), UNREAD, ids=lambda value: value if isinstance(value, str) else value[-1])
def test_a_typed_key_that_nothing_reads(base, typed):
    (line,) = [line for line in lines_for(base, typed) if line.startswith(f"{typed.partition('=')[0]}=")]
    assert line.partition(" ")[0].partition("=")[0] == typed.partition("=")[0]
    assert "; " in line  # a reason, and what to type


@pytest.mark.parametrize(("base", "typed"), READ, ids=lambda value: value if isinstance(value, str) else value[-1])
def test_a_typed_key_that_is_read_or_says_what_is_done_anyway(base, typed):
    assert [line for line in lines_for(base, typed) if line.startswith(typed.partition("=")[0])] == []


def test_every_rule_has_a_case():
    cased = tuple({typed.partition("=")[0] for _, typed in UNREAD})
    keys = {key for rule in rules() for key in rule["keys"].split(", ")}
    missing = [key for key in keys if not any(case.startswith(key) for case in cased)]
    assert missing == []


@pytest.mark.slow
def test_the_advice_of_every_rule_leads_to_a_run_that_reads_the_key():
    for base, typed in UNREAD:
        for line in lines_for(base, typed):
            for words in advised(line):
                more = [f"{key}={value}" for key, value in words.items()]
                kept = [word for word in base if word.partition("=")[0] not in words]
                assert line not in lines_for((*kept, *more), typed), (line, more)


def test_values_of_presets_and_tuned_values_are_not_judged():
    config = make_config(CUE, "algo=ppo", "mode=single", "orchestrator.min_inserts=4000", "algo.seq_len=3")
    assert unread_keys(config, [CUE, "algo=ppo"]) == []


def refused(*words):
    with pytest.raises(UsageError) as caught:
        answer([*words])
    assert caught.value.exit_code == USAGE
    return caught.value.problems


@pytest.mark.parametrize("last", ["dry_run=true", "explain=true"])
def test_a_command_is_refused(last):
    (line,) = refused(*TD3, "algo.ou_theta=0.3", last)
    assert line == (
        "algo.ou_theta=0.3 has no effect: Gaussian noise has no theta; leave it out, or say algo.noise_kind=ou"
    )


@pytest.mark.slow
def test_a_sweep_names_the_jobs_that_do_not_read_the_key():
    (line,) = refused("-m", *TD3, "algo.noise_kind=ou,gaussian", "algo.ou_theta=0.2", "dry_run=true")
    assert line.endswith("(job 2 of 2)")
    (line,) = refused("-m", *TD3, "seed=0,1", "hpo.trials=3", "dry_run=true")
    assert line.startswith("hpo.trials=3 has no effect")


@pytest.mark.slow
def test_the_keys_of_a_sweep_are_not_judged_in_its_jobs():
    assert answer(["-m", *TD3, "seed=0,1", "sweep.jobs=1", "dry_run=true"]) == 0


@pytest.mark.slow
def test_a_reward_module_by_its_name_alone_is_refused_with_the_option_that_sets_its_values():
    for name, options in {
        "rnd": "reward.features, reward.hidden",
        "icm": "reward.features, reward.forward_share",
    }.items():
        (line,) = refused(*PPO, f"reward.name={name}", "dry_run=true")
        assert line.startswith(f"reward.name={name} sets no value for {options}")
        assert line.endswith(f"; say reward={name}")
        checked([*PPO, f"reward={name}"])


def test_actions_are_not_repeated_beyond_the_episode():
    (line,) = refused(CUE, "env.action_repeat=500", "dry_run=true")
    assert "ends after 500 steps" in line
    checked([CUE, "algo=dqn", "env.action_repeat=499"])


LOOPS = [
    {"env": "Pendulum-v1", "algo": "crossq", "network": "lstm"},
    {"env": "Pendulum-v1", "algo": "sac", "network": "lstm", "replay": "sequences"},
    {"env": "Pendulum-v1", "algo": "mrq", "network": "gru"},
    {"env": "CartPole-v1", "algo": "c51", "network": "lstm", "replay": "fifo"},
    {"env": "CartPole-v1", "algo": "ppo", "network": "lstm", "replay": "uniform"},
    {"env": "CartPole-v1", "algo": "dqn", "reward.coef": "0.5"},
]


@pytest.mark.parametrize("words", LOOPS, ids=lambda words: "-".join(words.values()))
def test_advice_that_is_typed_does_not_lead_back(words):
    assert [*loops({**words, "mode": "single", "tuned": "none"})] == []


def test_the_search_for_loops_finds_one():
    def ask(words):
        return ["b: say a=2"] if words["a"] == "1" else ["b: say a=1"]

    assert (len([*loops({"a": "1"}, ask)]), len([*loops({"a": "1"}, lambda words: ["b: say a=2"])])) == (1, 1)

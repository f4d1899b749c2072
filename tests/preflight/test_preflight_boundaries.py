import dataclasses

import pytest

from drl_cli.envs import apart
from drl_cli.errors import RESOURCES, UsageError
from drl_cli.preflight.algorithm import memory_problems, try_algorithm
from drl_cli.preflight.environment import argument_line, environment_spec, try_environment
from drl_cli.preflight.preflight import check_resources, check_workers
from drl_cli.runs.start_text import WORKER_BYTES
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill


@pytest.fixture(scope="module")
def base(composed):
    return build(composed("tuned=none", "env=Pendulum-v1", "worker.num=2"))


@pytest.mark.parametrize(("missing", "refused"), [(0, False), (1, True)])
def test_workers_may_fill_the_free_memory_exactly(base, missing, refused):
    free = 2 * WORKER_BYTES - missing
    config = dataclasses.replace(base, mode="async", worker=dataclasses.replace(base.worker, envs=1))
    if not refused:
        check_workers(config, free, 2)
        return
    with pytest.raises(UsageError, match=r"worker\.num=2 needs") as caught:
        check_workers(config, free, 2)
    assert caught.value.exit_code == RESOURCES


@pytest.mark.parametrize(("num", "is_said"), [(8, False), (9, True)])
def test_many_more_workers_than_cores_are_warned_of(base, capsys, num, is_said):
    worker = dataclasses.replace(base.worker, num=num)
    for mode in ("single", "async"):
        check_workers(dataclasses.replace(base, mode=mode, worker=worker), 2**40, 2)
    line = f"warning: worker.num={num}: so many processes slow each other down; this machine has 2 cores"
    assert capsys.readouterr().err.count(line) == is_said


@pytest.fixture(scope="module")
def spec(base):
    return environment_spec(base)


@pytest.mark.parametrize(
    ("overrides", "free", "line"),
    [
        (("mode=async", "ray.object_store_mb=300"), 300 * 2**20, None),
        (("mode=async", "ray.object_store_mb=301"), 300 * 2**20, "ray.object_store_mb=301 needs 0.3 GiB"),
        (("mode=single", "network.hidden=[256,256,256]"), 2 * 256 * 256 * 32, None),
        (("mode=single", "network.hidden=[256,256,257]"), 2 * 256 * 256 * 32, "network.hidden=[256, 256, 257] needs"),
    ],
)
def test_a_setting_may_fill_the_free_memory_exactly(composed, tmp_path, spec, overrides, free, line):
    small = (
        *("worker.num=2", "replay.capacity=1000", "trainer.batch_size=8", "trainer.updates_per_call=1"),
        f"output_dir={tmp_path}",
    )
    config = build(composed("tuned=none", "env=Pendulum-v1", *small, *overrides))
    if line is None:
        check_resources(config, spec, free)
        return
    with pytest.raises(UsageError) as caught:
        check_resources(config, spec, free)
    assert caught.value.problems[0].startswith(line)


RECURRENT = ("bc", "cql", "d4pg", "ddpg", "droq", "fql", "iql", "mpo", "redq", "sac", "td3", "tqc")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("algo=sac", "network=lstm"), "network.memory=lstm learns from sequences"),
        (("algo=ppo", "network=gru"), None),
        (("algo=ppo", "network=gru", "trainer.num=2"), "network.memory=gru: trainer.num=2 can't share rollouts; say"),
        (("algo=ppo", "trainer.num=2"), None),
        (("algo=sac", "network=lstm", "replay=sequences", "trainer.num=2"), None),
        *(((f"algo={algo}", "network=lstm", "replay=sequences", "algo.n_step=2"), None) for algo in RECURRENT),
        (("algo=crossq", "network=lstm", "replay=sequences"), "network.memory=lstm: CrossQ has no memory"),
        (("algo=dqn", "replay=sequences", "replay.initial_priority=worker"), "replay.initial_priority=worker: workers"),
    ],
)
def test_the_combinations_of_memory_and_replay(composed, overrides, line):
    lines = list(memory_problems(build(composed("tuned=none", "env=Pendulum-v1", *overrides))))
    assert [each[: len(line or "")] for each in lines] == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("overrides", "num", "seconds"),
    [((), 1, 0.3), (("dry_run=true",), 2, 5.0), (("dry_run=true", "worker.envs=1"), 1, 5.0)],
)
def test_a_dry_run_tries_the_environment_for_longer(composed, monkeypatch, spec, overrides, num, seconds):
    tried = []
    monkeypatch.setattr(apart, "try_apart", lambda config, spec, **limits: (tried.append(limits), [])[1])
    config = build(composed("tuned=none", "env=Pendulum-v1", "worker.step_timeout_s=9", *overrides))
    try_environment(config, spec)
    is_dry = "dry_run=true" in overrides
    assert tried == [{"num": num, "seconds": seconds, "timeout_s": 9, "is_thorough": is_dry}]


OFFLINE = ("mode=offline", "data.source=recorded.npz")


@pytest.mark.parametrize(
    ("words", "is_silent"),
    [
        (("algo=bc", *OFFLINE), True),
        (("algo=iql", "env.normalize_reward=false", *OFFLINE), False),
        (("algo=mrq",), True),
        (("algo=sampled_muzero",), True),
        (("algo=sac", "env.normalize_reward=false"), False),
    ],
)
def test_algorithms_that_read_no_rewards_or_scale_them_get_no_advice_about_their_size(
    composed, monkeypatch, spec, words, is_silent
):
    tried = []
    monkeypatch.setattr(apart, "try_apart", lambda env, spec, **limits: (tried.append(env.normalize_reward), [])[1])
    config = build(composed("env=Pendulum-v1", *words))
    try_environment(config, spec)
    assert (config.env.normalize_reward, tried) == (False, [is_silent])


@pytest.mark.parametrize(
    ("error", "is_answered"),
    [
        (TypeError("f() got an unexpected keyword argument 'gg'"), True),
        (ValueError("f() got an unexpected keyword argument 'gg'"), False),
        (TypeError("f() got an unexpected keyword argument 'other'"), False),
        (TypeError("f() takes no arguments"), False),
    ],
)
def test_only_a_wrong_argument_of_the_user_is_answered_with_the_arguments(base, error, is_answered):
    config = dataclasses.replace(base, env=dataclasses.replace(base.env, kwargs={"gg": 1.0}))
    line = "env.kwargs.gg: Pendulum-v1 has no argument 'gg'. Did you mean g?   arguments: "
    assert str(argument_line(config, error)).startswith(line) == is_answered


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_policy_of_a_user_needs_a_state_only_for_a_memory(composed, monkeypatch, spec, memory):
    monkeypatch.syspath_prepend("tests/support/outside")
    config = fill(build(composed("tuned=none", "env=Pendulum-v1", "algo=my_sac")))
    config = dataclasses.replace(config, network=dataclasses.replace(config.network, memory=memory))
    if memory == "none":
        try_algorithm(config, spec)
    else:
        with pytest.raises(UsageError, match=r"network\.memory=lstm: the policy of my_sac has no memory"):
            try_algorithm(config, spec)

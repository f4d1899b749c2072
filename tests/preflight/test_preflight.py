"""What is checked before anything starts."""

import os
import sys
import types

import fake_envpool
import pytest

from drl_cli.errors import MISSING, RESOURCES, USAGE, USER_CODE, UsageError
from drl_cli.preflight.environment import environment_spec
from drl_cli.preflight.pace import pace_problems
from drl_cli.preflight.preflight import preflight
from drl_cli.preflight.resources import check_resources, replay_bytes
from drl_cli.runtime.orchestrator.rate_limiter import required_band
from drl_cli.runtime.run import object_store_mb
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill


@pytest.fixture
def config(composed, tmp_path):
    def make(*overrides):
        return build(composed("tuned=none", "env=Pendulum-v1", "worker.num=2", f"output_dir={tmp_path}", *overrides))

    return make


def refusal(config):
    with pytest.raises(UsageError) as caught:
        preflight(config)
    return caught.value.exit_code, caught.value.problems


def test_what_fits_gives_the_spec_and_writes_nothing(config, tmp_path):
    spec = preflight(config())
    assert (spec.id, spec.obs.shape, spec.action.kind, spec.action.size) == ("Pendulum-v1", (3,), "box", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("replay.capacity=999", ("replay.capacity=999", "orchestrator.min_inserts=1000")),
        ("worker.block_rows=15", ("worker.block_rows=15", "worker.envs=16")),
        ("worker.proxies=3", ("worker.num=2", "worker.proxies=3")),
        ("orchestrator.band=1", ("orchestrator.band=1", "sample_insert_ratio 0.25", "256 rows")),
        ("trainer.num=3", ("trainer.batch_size=256", "trainer.num=3")),
    ],
)
def test_a_setting_that_would_never_get_going_is_refused_with_its_numbers(config, override, parts):
    code, problems = refusal(config(override))
    assert code == USAGE
    assert len(problems) == 1
    assert all(part in problems[0] for part in parts)


def test_all_problems_of_the_pace_at_once(config):
    overrides = ("replay.capacity=9", "worker.block_rows=4", "worker.proxies=3", "env=CartPole-v1")
    code, problems = refusal(config(*overrides))
    assert code == USAGE
    assert len(problems) >= 3


def test_a_replay_below_one_hand_over_is_refused(config):
    code, problems = refusal(
        config("replay.capacity=200", "orchestrator.min_inserts=100", "worker.block_rows=256", "trainer.batch_size=64")
    )
    assert (code, len(problems)) == (USAGE, 1)
    assert "one hand-over of 256" in problems[0]


def test_every_shard_holds_a_hand_over(config):
    assert pace_problems(config("replay.capacity=1000", "replay.shards=3", "worker.block_rows=256", "mode=sync")) == []
    overrides = ("replay.capacity=1000", "replay.shards=4", "orchestrator.min_inserts=100", "worker.block_rows=256")
    (problem,) = pace_problems(config(*overrides))
    assert "replay.capacity=1000 / replay.shards=4 is below one hand-over of 256" in problem


def test_a_shard_for_every_25_workers_more(config):
    nums = {num: config(f"worker.num={num}", "mode=sync").num_shards for num in (1, 24, 25, 26, 49, 50)}
    assert nums == {1: 1, 24: 1, 25: 2, 26: 2, 49: 2, 50: 3}


def test_the_smallest_band_that_is_let_through_runs(config, train_here):
    """The bound is neither too strict nor too lax by more than a little: at it, a run ends by itself."""
    overrides = ("env=Pendulum-v1", "tuned=none", "orchestrator.sample_insert_ratio=1", "worker.num=1")
    small = config(*overrides, "worker.envs=2", "worker.block_rows=16")
    band = required_band(1.0, small.rows_per_collect, small.updates_per_call)
    assert pace_problems(config(*overrides, "worker.envs=2", "worker.block_rows=16", f"orchestrator.band={band - 0.5}"))
    summary, _ = train_here(*overrides, f"orchestrator.band={band}")
    assert (summary["status"], summary["env_steps"]) == ("done", 160)
    assert summary["opt_steps"] > 100


def test_an_unbounded_pace_needs_no_band(config):
    assert pace_problems(config("mode=sync", "orchestrator.band=1")) == []


def test_sequences_must_fit_and_move_on(config):
    code, problems = refusal(config("replay=sequences", "replay.overlap=80", "replay.seq_len=80"))
    assert (code, problems) == (USAGE, ["replay.overlap=80 must be below replay.seq_len=80"])
    (problem,) = pace_problems(config("replay=sequences", "worker.block_rows=256", "replay.capacity=10000"))
    assert problem == "replay.capacity=10000 = 250 sequences is below one hand-over of 256 transitions"
    assert pace_problems(config("replay=sequences", "worker.block_rows=256", "replay.capacity=20000")) == []


def test_sequences_are_as_large_as_they_are_long(config):
    spec = preflight(config())
    check_resources(config("replay=sequences", "replay.capacity=1e6"), spec)
    with pytest.raises(UsageError, match=r"replay.capacity=1000000 needs .* lower it to \d+"):
        check_resources(config("replay=sequences", "replay.capacity=1e6", "replay.burn_in=1e6"), spec)


def test_a_policy_without_a_critic_gives_no_priorities(config):
    worker = ("replay=prioritized", "replay.initial_priority=worker")
    code, problems = refusal(config(*worker))
    assert (code, len(problems)) == (USAGE, 1)
    assert problems[0] == (
        "SAC's policy has no critic to compute replay.initial_priority=worker with; say replay.initial_priority=max"
    )
    assert preflight(config(*worker, "algo=dqn", "env=CartPole-v1")).action.kind == "discrete"


@pytest.mark.parametrize(
    ("overrides", "code", "says"),
    [
        (["env=CartPole-v1"], USAGE, "SAC needs a continuous (Box) action space; CartPole-v1 has Discrete(2)."),
        (["env=drl_cli.envs.probes:Choose-v0"], USAGE, "SAC needs a continuous (Box) action space"),
        (["env=Pendulum-v1", "algo=dqn"], USAGE, "DQN needs a discrete action space; Pendulum-v1 has Box(1,). For"),
        (["env=user_envs:Words-v0"], USAGE, "env: user_envs:Words-v0 has observations of Text("),
        (["env.wrappers=[no_such_mod:W]"], USAGE, "env.wrappers: can't import 'no_such_mod'"),
        (["env.wrappers=[user_envs:Twise]"], USAGE, "env.wrappers: user_envs has no 'Twise'. Did you mean Twice?"),
        (["env.wrappers=[user_envs:Broken]"], USER_CODE, "env.wrappers: user_envs:Broken raised RuntimeError: does"),
        (["env.id=NoSuch-v1"], USAGE, "env: 'NoSuch-v1' can't be made"),
        (["env.id=no_such_module:Env-v1"], USAGE, "env: can't import 'no_such_module'"),
        (["env=user_envs:Other-v0"], USAGE, "env: 'user_envs:Other-v0' can't be made"),
        (["env=user_envs:Tiny-v0", "+env.kwargs.fail=init"], USER_CODE, "user_envs:Tiny-v0 raised RuntimeError: no"),
        (["env=Pendulum-v1", "+env.kwargs.colour=1"], USER_CODE, "Pendulum-v1 raised TypeError"),
        (["replay=fifo-once"], USAGE, "SAC can't learn from replay=fifo-once; say replay=uniform or replay=prior"),
        (["algo=ppo", "replay=sequences"], USAGE, "PPO can't learn from replay=sequences; say replay=fifo-once"),
        (["replay.capacity=1e12"], RESOURCES, "replay.capacity=1000000000000 needs"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_own_exit_code(config, user_folder, monkeypatch, overrides, code, says):
    monkeypatch.syspath_prepend(str(user_folder))
    found, problems = refusal(config(*overrides))
    assert (found, len(problems)) == (code, 1)
    assert problems[0].startswith(says)


def test_too_large_a_replay_names_a_size_that_fits(config, monkeypatch):
    free = types.SimpleNamespace(available=2**33)  # other programs' memory comes and goes
    monkeypatch.setattr("drl_cli.preflight.resources.psutil.virtual_memory", lambda: free)
    problem = refusal(config("replay.capacity=1e12"))[1][0]
    fits = float(problem.rpartition(" ")[2])
    assert preflight(config(f"replay.capacity={fits:.0f}")).id == "Pendulum-v1"
    assert refusal(config(f"replay.capacity={2.1 * fits:.0f}"))[1]


IMAGES = ("env=drl_cli.envs.probes:Frames-v0", "algo=dqn")


@pytest.mark.parametrize(
    ("overrides", "least", "most"),
    [
        ((), 1.0, 1.1),  # each frame once, not eight times
        (("worker.num=60",), 1.0, 1.1),
        (("replay=prioritized",), 1.0, 1.1),
        (("replay.compress=lz4",), 0.5, 0.56),
        (("env.frame_stack=none",), 8.0, 8.1),
    ],
)
def test_the_memory_of_images_is_that_of_their_frames(config, overrides, least, most):
    made = config(*IMAGES, "replay.capacity=100000", *overrides)
    frames = replay_bytes(made, preflight(made)) / (100_000 * 84 * 84)
    assert least < frames < most


def test_the_memory_of_trees_is_that_of_their_columns_and_frames(config):
    made = config("env=drl_cli.envs.probes:Tree-v0", "replay.capacity=100000")
    spec = environment_spec(made)
    columns = 2 * (4 + 3 * 4 + 4 + 3 * 4 + 2 * 8) + 3 * 4 + 4 + 4 + 1 + 1 + 4  # the camera's are two references
    frames = (6 * 4 + 48) * 17 / 16
    assert replay_bytes(made, spec) / 100_000 == pytest.approx(columns + frames)
    both = config("env=drl_cli.envs.probes:BothReach-v0", "trainer.batch_size=256", "trainer.updates_per_call=16")
    assert object_store_mb(both, environment_spec(both)) == 4 * 16 * 256 * 2 * (84 * 84 * 4 + 4) // 2**20


def test_actions_without_bounds_are_said_once(config, user_folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(user_folder))
    preflight(config("env=user_envs:Free-v0"))
    said = "user_envs:Free-v0: 1 dimension of its action has no bounds; the policy's values go in as they are"
    assert capsys.readouterr().err == f"warning: {said}\n"


def test_the_object_store_has_room_for_batches_of_images(config):
    small, large = config(), config(*IMAGES, "trainer.batch_size=256", "trainer.updates_per_call=16")
    assert object_store_mb(small, preflight(small)) == 256
    assert object_store_mb(large, preflight(large)) * 2**20 > 3 * 16 * 256 * 2 * 4 * 84 * 84
    asked = config(*IMAGES, "ray.object_store_mb=100")
    assert object_store_mb(asked, preflight(asked)) == 100


def test_the_sum_tree_is_memory_too(config):
    plain, prioritized = (config("replay.capacity=1000", f"replay={name}") for name in ("uniform", "prioritized"))
    spec = preflight(plain)
    assert replay_bytes(plain, spec) == 1000 * (4 * 3 + 4 + 4 + 4 * 3 + 4 + 1 + 1 + 4)
    assert replay_bytes(prioritized, spec) == replay_bytes(plain, spec) + 1008 * 8  # whole families of 16


def test_compression_without_its_package_is_refused(config, monkeypatch):
    preflight(config("replay.compress=lz4"))
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    code, problems = refusal(config("replay.compress=lz4"))
    assert code == MISSING
    assert "pip install 'drl-cli[lz4]'" in problems[0]
    preflight(config())


def test_compiling_without_a_compiler_is_refused(config, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, problems = refusal(config("trainer.compile=true"))
    assert code == MISSING
    assert problems == [
        "trainer.compile=true needs a C++ compiler: there is no no-such-compiler. Install one, or name it by CXX=..."
    ]
    preflight(config("trainer.compile=true", "ray.address=host:1"))
    preflight(config())


def test_a_backend_without_its_package_is_refused(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    code, problems = refusal(config("env.backend=envpool"))
    assert (code, len(problems)) == (MISSING, 1)
    assert "pip install 'drl-cli[envpool]'" in problems[0]
    environment_spec(config("env.backend=envpool"), trains=False)


def test_what_the_backend_does_not_have_is_a_usage_error(config, monkeypatch):
    fake_envpool.install(monkeypatch)
    preflight(config("env=FakeOnly-v0", "env.backend=envpool"))
    for overrides, part in (
        (("env=Pendulum-v1",), "EnvPool has no 'Pendulum-v1'"),
        (("env=FakeOnly-v0", "+env.kwargs.spread=2"), "env.kwargs.spread"),
    ):
        code, problems = refusal(config(*overrides, "env.backend=envpool"))
        assert code == USAGE
        assert part in problems[0]


def test_an_output_dir_that_can_not_be_made_is_refused(config, tmp_path):
    (tmp_path / "file").touch()
    code, problems = refusal(config(f"output_dir={tmp_path}/file/below"))
    assert code == RESOURCES
    assert str(tmp_path / "file") in problems[0]


def test_cuda_is_refused_where_there_is_none(config):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    code, problems = refusal(config("device=cuda"))
    assert code == MISSING
    assert "device=cpu" in problems[0]


@pytest.mark.parametrize("reason", ["mode=single", "debug.in_process=true"])
def test_several_trainers_need_processes(config, reason):
    code, problems = refusal(config("trainer.num=2", reason))
    assert (code, len(problems)) == (USAGE, 1)
    assert all(part in problems[0] for part in ("trainer.num=2", "processes of their own", reason))


def test_a_number_of_workers_is_left_alone(config):
    assert fill(config("worker.num=7")).num_workers == 7


def test_a_core_is_left_to_each_trainer(config, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert fill(config("worker.num=null")).num_workers == 7
    assert fill(config("worker.num=null", "trainer.num=2")).num_workers == 6
    assert fill(config("worker.num=null", "trainer.num=8")).num_workers == 1
    assert fill(config("worker.num=null", "mode=single")).num_workers == 1


@pytest.mark.parametrize("cores", [1, 2, 4, 6, 64])
@pytest.mark.parametrize("proxies", [1, 2, 3])
def test_the_filled_in_workers_can_be_shared_by_the_proxies(config, monkeypatch, cores, proxies):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    filled = fill(config("worker.num=null", f"worker.proxies={proxies}"))
    assert pace_problems(filled) == []


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("replay.max_staleness=0", "mode=async"), ("replay.max_staleness=0", "mode=async", "max_staleness=1")),
        (("total_env_steps=2047",), ("total_env_steps=2047", "trainer.batch_size=2048")),
        (("replay.capacity=4095",), ("replay.capacity=4095", "below 4096")),
        (("worker.num=1", "replay.max_staleness=2", "worker.block_rows=4112"), ("4112", "batch_size 2048", "too old")),
        (("worker.block_rows=8", "orchestrator.band=1e-9"), ("worker.block_rows=8", "worker.envs=16")),
    ],
)
def test_an_on_policy_pace_that_can_not_work_is_refused(config, overrides, parts):
    code, problems = refusal(config("algo=ppo", *overrides))
    assert (code, len(problems)) == (USAGE, 1)
    assert all(part in problems[0] for part in parts)


@pytest.mark.parametrize("workers", [1, 3, 7])
@pytest.mark.parametrize("mode", ["single", "sync", "async"])
def test_the_workers_of_an_on_policy_run_share_a_batch(config, workers, mode):
    checked = config("algo=ppo", f"worker.num={workers}", f"mode={mode}")
    assert preflight(checked).id == "Pendulum-v1"
    assert 2048 <= workers * checked.rows_per_collect < 2048 + 16 * workers


@pytest.mark.parametrize("overrides", [("algo=ppo", "replay=uniform"), ("algo=sac", "replay=fifo-once")])
def test_a_table_that_the_algorithm_can_not_learn_from_is_refused(config, overrides):
    code, (problem,) = refusal(config(*overrides))
    assert code == USAGE
    assert (
        f"can't learn from {overrides[1]}; say replay={'fifo-once' if 'algo=ppo' in overrides else 'uniform'}"
        in problem
    )


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("worker.fetch=episode", "mode=sync"), ("worker.fetch=episode", "mode=sync", "mode=async")),
        (("worker.fetch=3", "mode=single"), ("worker.fetch=3", "mode=single")),
        (("worker.exploration=ladder",), ("sac has no exploration values",)),
        (("worker.exploration=[{lr: 1e-3}]", "env=CartPole-v1", "algo=dqn"), ("'lr'", "dqn has: epsilon")),
        (("worker.exploration=[{hidden: 32}]", "env=CartPole-v1", "algo=dqn"), ("'hidden'", "may differ")),
        (("env=CarRacing-v3", "env.normalize_obs=true"), ("env.normalize_obs", "images")),
        (("env=Taxi-v4", "algo=dqn", "env.normalize_obs=true"), ("env.normalize_obs", "choices")),
    ],
)
def test_what_workers_may_not_do_is_refused_before_anything_starts(config, overrides, parts):
    code, (problem,) = refusal(config(*overrides))
    assert code == USAGE
    assert all(part in problem for part in parts)


@pytest.mark.parametrize("fetch", ["collect", 2, "episode"])
def test_fetch_policies_are_for_async(config, fetch):
    assert preflight(config(f"worker.fetch={fetch}", "mode=async")).id == "Pendulum-v1"

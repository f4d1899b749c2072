import dataclasses
import os
import re
import shlex
import shutil
import sys
from types import SimpleNamespace

import fake_envpool
import pytest

from drl_cli.errors import MISSING, RESOURCES, USAGE, USER_CODE, UsageError
from drl_cli.preflight.environment import environment_spec
from drl_cli.preflight.pace import pace_problems
from drl_cli.preflight.preflight import check_resources, preflight
from drl_cli.runs.start_text import memory_text, precision_text, rollout_text
from drl_cli.runtime.factories import make_limiter, make_replay
from drl_cli.runtime.orchestrator.rate_limiter import required_band
from drl_cli.runtime.run import object_store_mb
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill, replay_bytes, with_capacity


@pytest.fixture
def config(composed, tmp_path):
    def make(*overrides):
        return build(composed("tuned=none", "env=Pendulum-v1", "worker.num=2", f"output_dir={tmp_path}", *overrides))

    return make


def refusal(config):
    with pytest.raises(UsageError) as caught:
        preflight(config)
    return caught.value.exit_code, caught.value.problems


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ((), "env.frame_stack=4 joins the last four"),
        (("env.frame_stack=2",), None),
        (("++env.kwargs.k=2",), None),
        (("++env.kwargs.size=20",), None),  # small images are boards rather than pictures
        (("network=lstm", "replay=sequences"), None),
    ],
)
def test_single_images_are_warned_of(config, capsys, words, advice):
    images = (
        "env=drl_cli.envs.probes:Frames-v0",
        "+env.kwargs.k=1",
        "+env.kwargs.size=36",
        "algo=dqn",
        "algo.n_step=1",
    )
    preflight(config(*images, *words))
    line = "warning: drl_cli.envs.probes:Frames-v0: each observation is one image, in which no motion shows"
    assert capsys.readouterr().err == (f"{line}; {advice}\n" if advice else "")


def test_a_config_that_passes_gives_the_spec_and_writes_nothing(config, tmp_path):
    spec = preflight(config())
    assert (spec.id, spec.obs.shape, spec.action.kind, spec.action.size) == ("Pendulum-v1", (3,), "box", 1)
    assert list(tmp_path.iterdir()) == []


CUE = ("env=CartPole-v1", "algo=dqn")
REFUSED = {
    USAGE: [
        ("worker.block_rows=15", "worker.block_rows=15", "worker.envs=16"),
        ("worker.proxies=3", "worker.num=2", "worker.proxies=3"),
        ("orchestrator.band=1", "orchestrator.band=1", "sample_insert_ratio 0.25", "256 rows"),
        ("trainer.num=3", "trainer.batch_size=256", "trainer.num=3"),
        ("trainer.num=2 mode=single", "trainer.num=2", "processes of their own", "mode=single"),
        ("trainer.num=2 debug.in_process=true", "processes of their own", "debug.in_process=true"),
        ("replay=sequences replay.overlap=80 replay.seq_len=80", "overlap=80 must be below", "say replay.overlap=40"),
        ("env=CartPole-v1 algo=muzero replay.seq_len=10", "replay.seq_len=10 is below 11 = a", "say replay.seq_len=11"),
        ("env=CartPole-v1 algo=muzero algo.simulations=0", "algo.simulations=0: training ", "0, which plays the prior"),
        (
            "env=CartPole-v1 algo=gumbel_muzero mode=single reanalyzer.num=1",
            "mode=single has no re-analysers; say mode=async",
            "algo.reanalyze=0.5",
        ),
        ("env=CartPole-v1 algo=muzero mode=sync reanalyzer.num=1", "mode=sync has no re-analysers"),
        ("env=CartPole-v1 algo=dqn mode=async reanalyzer.num=1", "DQN stores no results of a search"),
        (
            "env=CartPole-v1 algo=muzero mode=async reanalyzer.num=1 algo.reanalyze=0.5",
            "the trainer does not search again; say algo.reanalyze=0",
        ),
        (
            "env=CartPole-v1 algo=muzero mode=async reanalyzer.num=1 reanalyzer.windows=100_000",
            "a call searches 1100000 steps, more than replay.capacity=1000000",
        ),
        ("env=CartPole-v1 algo=gumbel_muzero network=gru", "network.memory=gru", "network.memory=none"),
        ("algo=muzero", "MuZero needs a discrete action space", "For this: algo=sampled_muzero, or one of"),
        ("env=CartPole-v1 algo=sampled_muzero", "Sampled MuZero needs a co", "For this: algo=gumbel_muzero, or one of"),
        ("replay=prioritized replay.initial_priority=worker", "SAC's policy has no critic", "say replay"),
        ("algo=ppo replay.rows=windows", "replay=fifo-once serves rollouts; say replay.rows=rollouts"),
        ("replay.rows=rollouts", "replay=uniform can't serve rollouts; say replay=fifo-once"),
        ("algo=ppo replay.max_staleness=0 mode=async", "mode=async", "say replay.max_staleness=1"),
        ("algo=ppo worker.random_steps=64", "worker.random_steps=64: PPO is on-policy", "random actions"),
        ("algo=ppo worker.unroll=100", "worker.unroll=100 x worker.envs 16 = 1600", "say trainer.batch_size=3200"),
        ("algo=ppo worker.unroll=64 trainer.num=4", "trainer.batch_size 2048 / trainer", "say trainer.batch_size=4096"),
        ("worker.unroll=4 worker.block_rows=32", "worker.block_rows=32 is not 64 = worker.unroll 4"),
        ("algo=ppo total_env_steps=511", "total_env_steps=511", "trainer.batch_size=512"),
        ("algo=ppo replay.capacity=4095", "replay.capacity=4095", "below 4096"),
        ("algo=ppo worker.num=1 replay.max_staleness=2 worker.block_rows=4112", "4112", "batch_size 2048", "too old"),
        ("algo=ppo worker.block_rows=8 orchestrator.band=1e-9", "worker.block_rows=8", "worker.envs=16"),
        ("worker.fetch=episode mode=sync", "worker.fetch=episode", "mode=sync", "mode=async"),
        ("worker.exploration=ladder", "sac has no exploration values"),
        ("env=CartPole-v1 algo=dqn 'worker.exploration=[{lr: 1e-3}]'", "'lr'", "dqn has: epsilon"),
        ("env=CartPole-v1 algo=dqn 'worker.exploration=[{hidden: 32}]'", "'hidden'", "may differ"),
        ("replay=hindsight", "needs the parts achieved_goal and desired_goal", "say replay.rows=transitions"),
        ("algo=cal_ql replay=hindsight", "Cal-QL learns from returns, which other goals change", "replay=unif"),
        ("env=outside.my_goals:NoReward replay=hindsight", "NoReward has no compute_reward(achieved_goal, desired_goa"),
        ("env=user_envs:Words-v0", "env: user_envs:Words-v0 has observations of Text("),
        ("env.id=NoSuch-v1", "env: 'NoSuch-v1' can't be made"),
        ("env=user_envs:Other-v0", "env: 'user_envs:Other-v0' can't be made"),
    ],
    USER_CODE: [
        ("env=outside.my_goals:Raises replay=hindsight", "Raises: compute_reward raised RuntimeError: no goals"),
        ("env=outside.my_goals:Aborts replay=hindsight", "Aborts: compute_reward ended the process", "exit code 3"),
        ("env=user_envs:Tiny-v0 +env.kwargs.fail=init", "user_envs:Tiny-v0 raised RuntimeError: no"),
    ],
    MISSING: [
        ("replay.compress=lz4", "pip install 'drl-cli[lz4]'"),
        ("trainer.compile=true", "needs a C++ compiler: there is no no-such-compiler.", "by CXX=..."),
    ],
    RESOURCES: [
        ("output_dir=HERE/file/below", "can't write to HERE/file"),
        ("output_dir=/proc/x", "can't write to /proc (", "say output_dir=DIR"),
    ],
}


@pytest.mark.parametrize(
    ("code", "row"), [(code, row) for code, rows in REFUSED.items() for row in rows], ids=lambda value: str(value)[:80]
)
def test_a_config_that_can_not_run_is_refused_in_one_line(config, user_folder, tmp_path, monkeypatch, code, row):
    command, *parts = row
    monkeypatch.syspath_prepend(str(user_folder))
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "file").touch()
    found, problems = refusal(config(*shlex.split(command.replace("HERE", str(tmp_path)))))
    assert (found, len(problems)) == (code, 1)
    assert all(part.replace("HERE", str(tmp_path)) in problems[0] for part in parts)


def test_what_the_algorithm_cannot_do_comes_before_the_pace(config):
    _, problems = refusal(config("algo=mrq", "network=lstm", "replay=sequences"))
    assert problems[0].startswith("network.memory=lstm: mrq embeds only the first observation")
    assert problems[1].startswith("replay.burn_in=40: replay.rows=windows has no burn-in")


def test_all_problems_of_the_pace_are_found_at_once(config):
    code, problems = refusal(config("replay.capacity=9", "worker.block_rows=4", "worker.proxies=3", "env=CartPole-v1"))
    assert code == USAGE
    assert len(problems) >= 3


def test_an_unroll_is_the_steps_of_each_environment_in_a_block(config):
    asked = config("algo=ppo", "worker.unroll=8")
    assert (asked.block_rows, asked.rows_per_collect, pace_problems(asked)) == (128, 128, [])
    (line,) = rollout_text(asked)
    assert line.startswith("rollouts: blocks of 8 steps in each of 32 environments; a batch has 2,048 transitions")
    assert "blocks of 64 steps" in rollout_text(config("algo=ppo"))[0]
    assert rollout_text(config()) == []


@pytest.mark.parametrize(
    ("overrides", "allowed", "enough"),
    [
        (("worker.unroll=32",), 16, None),  # auto: 8
        (("worker.unroll=32", "replay.max_staleness=2"), 4, 8),
        (("worker.unroll=32", "replay.capacity=12288"), 8, 8),  # room for four batches beside those being collected
        (("worker.unroll=32", "replay.max_staleness=8"), 16, None),
        (("worker.unroll=32", "replay.max_staleness=7"), 14, 8),
        *[(("worker.unroll=32", "worker.num=4"), 4, None), ((), 32, None), (("worker.unroll=8",), 16, None)],
        (("worker.unroll=10",), 19, None),
        (("worker.unroll=10", "replay.max_staleness=2"), 12, 3),
        # In mode=sync, all workers collect with one version.
        (("worker.unroll=32", "mode=sync", "replay.max_staleness=2"), 4, None),
    ],
)
def test_a_line_tells_that_the_bound_on_the_age_lets_workers_wait(config, overrides, allowed, enough):
    sizes = ("algo=appo", "mode=async", "worker.num=16", "worker.envs=16", "trainer.batch_size=1024")
    made = fill(config(*sizes, *overrides))
    limiter, collecting = make_limiter(made), 0
    while collecting < 40 and limiter.may_collect(made.rows_per_collect):
        limiter.issue_collect(made.rows_per_collect)
        collecting += 1
    assert collecting == allowed
    _, *lines = rollout_text(made)
    assert len(lines) == (enough is not None)
    for line in lines:
        assert f"only {allowed} of 16 workers collect at the same time" in line
        assert f"replay.max_staleness={enough} or" in line


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("algo=sac",), (1000, 16, 1000)),
        (("algo=ppo",), (0, 1, 0)),
        (("algo=ppo", "orchestrator.min_inserts=64"), (64, 1, 0)),  # an on-policy run never begins at random
        (("algo=ppo", "orchestrator.sample_load_ratio=4"), (0, 4, 0)),
        (("algo=sac", "replay=fifo-once"), (0, 1, 0)),
    ],
)
def test_warm_up_and_versions_follow_from_the_table(config, overrides, expected):
    made = config(*overrides)
    assert (made.min_inserts, made.sample_load_ratio, made.random_steps) == expected


@pytest.mark.parametrize(
    ("overrides", "few"),
    [
        (("algo=ppo",), 10),
        (("algo=sac",), 10),
        (("algo=sac", "orchestrator.min_inserts=1000"), 1000),
        (("algo=sac", "orchestrator.sample_insert_ratio=1e-3"), 1050),  # 100 steps of warm-up
        (("algo=sac", "algo.n_step=5", "orchestrator.sample_insert_ratio=0.25"), 90),
    ],
)
def test_the_advised_budget_is_the_smallest_that_is_enough(config, overrides, few):
    def lines(budget):
        return pace_problems(config("mode=single", "worker.num=1", *overrides, f"total_env_steps={budget}"))

    advised = int(re.search(r"say total_env_steps=(\d+) or more", lines(few)[-1])[1])
    assert (lines(advised), bool(lines(advised - 1))) == ([], True)


@pytest.mark.parametrize(
    "words",
    [
        ("replay.shards=4", "orchestrator.min_inserts=100"),
        ("replay=sequences",),
        ("replay=sequences", "replay.seq_len=2000", "replay.overlap=100", "replay.shards=2"),
    ],
)
def test_the_advised_capacity_is_the_smallest_that_holds_a_block(config, words):
    def lines(capacity):
        found = pace_problems(config(*words, "worker.block_rows=256", f"replay.capacity={capacity}"))
        return [line for line in found if "below one block" in line]

    advised = int(re.search(r"say replay.capacity=(\d+) or more", lines(1000)[0])[1])
    assert (lines(advised), len(lines(advised - 1))) == ([], 1)


def test_one_more_shard_for_every_25_workers(config):
    nums = {num: config(f"worker.num={num}", "mode=sync").num_shards for num in (1, 24, 25, 26, 49, 50)}
    assert nums == {1: 1, 24: 1, 25: 2, 26: 2, 49: 2, 50: 3}


@pytest.mark.slow
def test_a_run_with_the_smallest_allowed_band_ends(config, train_here):
    overrides = ("env=Pendulum-v1", "tuned=none", "orchestrator.sample_insert_ratio=1", "worker.num=1")
    small = config(*overrides, "worker.envs=2", "worker.block_rows=16")
    band = required_band(1.0, small.rows_per_collect, small.updates_per_call)
    assert pace_problems(config(*overrides, "worker.envs=2", "worker.block_rows=16", f"orchestrator.band={band - 0.5}"))
    summary, _ = train_here(*overrides, f"orchestrator.band={band}")
    assert (summary["status"], summary["env_steps"]) == ("done", 160)
    assert summary["opt_steps"] > 100


@pytest.mark.parametrize(
    "overrides",
    [
        ("replay=prioritized", "replay.initial_priority=worker", *CUE),
        ("replay.compress=lz4",),
        ("trainer.compile=true", "ray.address=host:1"),  # the trainer may run on another machine
        ("worker.fetch=2", "mode=async"),
        ("worker.fetch=episode", "mode=async"),
    ],
)
def test_a_config_that_can_run_is_accepted(config, monkeypatch, overrides):
    monkeypatch.setenv("CXX", "no-such-compiler")
    preflight(config(*overrides))


def test_a_replay_that_is_too_large_names_a_capacity_that_fits(config, monkeypatch):
    monkeypatch.setattr("drl_cli.preflight.preflight.free_memory", lambda: 2**33)  # this machine's changes
    long = "total_env_steps=1e12"
    problem = refusal(config("replay.capacity=1e12", long))[1][0]
    fits = float(problem.rpartition(" ")[2])
    spec = preflight(config(f"replay.capacity={fits:.0f}", long))
    assert refusal(config(f"replay.capacity={2.1 * fits:.0f}", long))[1]
    check_resources(config("replay=sequences", "replay.capacity=1e6"), spec, 2**33)
    with pytest.raises(UsageError, match=r"replay.capacity=1000000 needs .* lower it to \d+"):
        check_resources(config("replay=sequences", "replay.capacity=1e6", "replay.burn_in=1e6"), spec, 2**33)


@pytest.mark.parametrize(
    ("flags", "overrides", "says"),
    [
        *[("avx512f avx512_bf16 avx", (), True), ("avx512_bf16", ("precision=bf16",), False)],
        *[("avx512_bf16", ("device=cuda",), False), ("avx512_bf16", ("device=cuda:1",), False)],
        *[("avx512_bf16", ("network.torso=mlp",), False), ("avx512f avx512_bf16x", (), False)],
    ],
)
def test_the_header_says_where_bfloat16_is_faster(config, monkeypatch, flags, overrides, says):
    monkeypatch.setattr("drl_cli.optim.products.describe_processor", lambda: f"flags\t\t: fpu {flags}\n")
    made = config(*PATCH, "device=cpu", *overrides)
    lines = precision_text(made, environment_spec(made))
    assert ["precision=bf16" in line for line in lines] == [True] * says
    vectors = config("env=CartPole-v1", "algo=dqn", "device=cpu")
    assert precision_text(vectors, environment_spec(vectors)) == []


PATCH = ("env=drl_cli.envs.probes:Patch-v0", "algo=dqn")


def test_a_table_needs_memory_for_the_rows_that_the_run_inserts(config, monkeypatch):
    monkeypatch.setattr("drl_cli.preflight.preflight.free_memory", lambda: 2**33)
    short = config(*PATCH, "replay.capacity=1000000", "total_env_steps=30000")
    spec = environment_spec(short)
    check_resources(short, spec, 2**33)
    assert 30_000 < replay_bytes(short, spec) / (84 * 84 * 4) < 33_000
    assert refusal(config(*PATCH, "replay.capacity=1000000"))[0] == RESOURCES
    assert make_replay(short, spec, 0).table.nbytes <= replay_bytes(short, spec)


def test_only_a_new_run_needs_much_free_space_on_the_disk(config, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    made = config("algo=ppo")
    spec = environment_spec(made)
    check_resources(dataclasses.replace(made, resume="latest"), spec, 2**33)
    with pytest.raises(UsageError, match="less than 50 MB are free"):
        check_resources(made, spec, 2**33)


@pytest.mark.parametrize(("gib", "capacity"), [(8, 125_000), (0.001, 15), (2**10, 10**6)])
def test_the_default_capacity_fits_in_half_of_the_free_memory(config, monkeypatch, gib, capacity):
    monkeypatch.setattr("drl_cli.settings.fill.free_memory", lambda: int(gib * 2**30))
    made = config(*PATCH, "total_env_steps=1000000")
    spec = environment_spec(made)
    fitted = with_capacity(made, spec)
    assert fitted.replay.capacity == capacity
    assert replay_bytes(fitted, spec) <= gib * 2**29 or gib == 2**10
    assert with_capacity(config(*PATCH, "total_env_steps=9000"), spec).replay.capacity == capacity  # resume adds steps
    typed = config(*PATCH, "replay.capacity=5000")
    assert with_capacity(typed, spec) == typed


IMAGES = ("env=drl_cli.envs.probes:Frames-v0", "algo=dqn")


@pytest.mark.parametrize(
    ("overrides", "least", "most"),
    [
        ((), 1.0, 1.1),  # each frame is stored once, not eight times
        (("replay=prioritized",), 1.0, 1.1),
        (("replay.compress=lz4",), 0.5, 0.56),
        (("env.frame_storage=none",), 8.0, 8.1),
    ],
)
def test_replay_of_images_needs_the_memory_of_their_frames(config, overrides, least, most):
    made = config(*IMAGES, "replay.capacity=100000", *overrides)
    frames = replay_bytes(made, environment_spec(made)) / (100_000 * 84 * 84)
    assert least < frames < most


def test_replay_of_trees_needs_the_memory_of_their_columns_and_frames(config):
    made = config("env=drl_cli.envs.probes:Tree-v0", "replay.capacity=100000")
    columns = 2 * (4 + 3 * 4 + 4 + 3 * 4 + 2 * 8) + 3 * 4 + 4 + 4 + 1 + 1 + 4  # two references for the camera's image
    frames = (6 * 4 + 48) * 17 / 16
    assert replay_bytes(made, environment_spec(made)) / 100_000 == pytest.approx(columns + frames)
    both = config("env=drl_cli.envs.probes:BothReach-v0", "trainer.batch_size=256", "trainer.updates_per_call=16")
    assert object_store_mb(both, environment_spec(both)) == 4 * 16 * 256 * 2 * (84 * 84 * 4 + 4) // 2**20


def test_the_sum_tree_needs_memory(config):
    plain, prioritized = (config("replay.capacity=1000", f"replay={name}") for name in ("uniform", "prioritized"))
    spec = environment_spec(plain)
    assert replay_bytes(plain, spec) == 1000 * (4 * 3 + 4 + 4 + 4 * 3 + 4 + 1 + 1 + 4)
    assert replay_bytes(prioritized, spec) == replay_bytes(plain, spec) + 1008 * 8  # whole families of 16 nodes


def test_one_warning_for_actions_without_bounds(config, user_folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(user_folder))
    preflight(config("env=user_envs:Free-v0"))
    line = "user_envs:Free-v0: 1 dimension of its action has no bounds; the policy's values go in as they are"
    assert capsys.readouterr().err == f"warning: {line}\n"


@pytest.mark.slow
def test_envpool_is_needed_and_checked_for_training_only(config, monkeypatch):
    environment_spec(config("env.backend=envpool"), trains=False)
    fake_envpool.install(monkeypatch)
    preflight(config("env=FakePlain-v0", "env.backend=envpool"))
    for overrides, part in (
        (("env=Pendulum-v1",), "EnvPool has no 'Pendulum-v1'"),
        (("env=FakePlain-v0", "+env.kwargs.spread=2"), "env.kwargs.spread"),
    ):
        code, problems = refusal(config(*overrides, "env.backend=envpool"))
        assert code == USAGE
        assert part in problems[0]


def test_one_core_is_left_to_each_trainer(config, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for overrides, num in (((), 7), (("trainer.num=2",), 6), (("trainer.num=8",), 1), (("mode=single",), 1)):
        assert fill(config("worker.num=null", *overrides)).num_workers == num
    assert fill(config("worker.num=9")).num_workers == 9


@pytest.mark.parametrize("cores", [1, 2, 4, 6, 64])
@pytest.mark.parametrize("proxies", [1, 2, 3])
def test_the_number_of_workers_is_filled_in_for_equal_shares_of_the_proxies(config, monkeypatch, cores, proxies):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    filled = fill(config("worker.num=null", f"worker.proxies={proxies}"))
    assert pace_problems(filled) == []


def test_an_algorithm_that_needs_all_rows_refuses_several_trainers(config):
    with pytest.raises(UsageError, match=r"^crossq: trainer.num=2: the batch statistics of crossq need all rows"):
        preflight(config("env=Pendulum-v1", "algo=crossq", "mode=sync", "trainer.num=2"))
    preflight(config("env=Pendulum-v1", "algo=td3", "mode=sync", "trainer.num=2"))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("env=Pendulum-v1 algo=xqc network.layer_norm=true", "network.layer_norm=true: xqc has batch norm"),
        (f"{PATCH[0]} algo=ppo algo.squash=true", "algo.squash=true needs actions with bounds"),
        (f"{PATCH[0]} algo=appo algo.target_period=4", "algo.target_period=4 needs a network without torso"),
        ("env=CartPole-v1 algo=appo algo.target_period=4 network=lstm", "algo.target_period=4 needs a network without"),
        ("env=CartPole-v1 algo=appo network=cnn", "network.torso=cnn needs an image"),
    ],
)
def test_an_option_that_does_not_fit_the_algorithm_or_its_actions_is_refused_before_the_run(config, overrides, line):
    with pytest.raises(UsageError, match=f"^{line}"):
        preflight(config(*overrides.split()))


def test_a_dry_run_shows_the_memory(config):
    made, spec = config("replay.capacity=1e6"), environment_spec(config())
    line = memory_text(made, spec)
    size = replay_bytes(made, spec) / 2**30
    assert line.startswith(f"memory: at least replay {size:.2f} GiB, workers 0.12 GiB; ")
    assert line.endswith(" GiB are free")
    assert "workers" not in memory_text(config("mode=single"), spec)
    assert "object store 0.49 GiB" in memory_text(config("ray.object_store_mb=500"), spec)

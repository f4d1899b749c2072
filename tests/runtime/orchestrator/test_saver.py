import errno
from types import SimpleNamespace

import pytest
from graphs import COUNTER, TINY, make_config
from handles import FakeHandle

from drl_cli.errors import RoleLost
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.orchestrator import saver as module
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.saver import Saver, restores_workers, worker_layout
from drl_cli.runtime.place.handles import ActorDied, LocalRef
from drl_cli.types import LoadParams


class Role(FakeHandle):
    """Answers each call with the next answer for the method, a value or an error."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def call(self, method, *args):
        self.calls.append((method, *args))
        answer = self.answers[method].pop(0)
        return LocalRef(error=answer) if isinstance(answer, Exception) else LocalRef(answer)


class Manage:
    """Records the commits; `answer` answers the last one."""

    def __init__(self):
        self.commits, self.answer = [], None

    def commit(self, draft, params, states, on_done):
        self.commits.append((draft, params, states))
        self.answer = on_done


class Made:
    """A saver and fake roles around it."""

    def __init__(self, root, *overrides, shards=({},), workers=("w0", "w1"), trainer="t"):
        config = make_config(*TINY, COUNTER, "mode=sync", "checkpoint.period=100", *overrides)
        self.members = [SimpleNamespace(index=5 + i, handle=Role(state=[w] * 9)) for i, w in enumerate(workers)]
        self.shards = [Role(**{"begin_save": [], "save_part": [], "abort_save": [0] * 9, **shard}) for shard in shards]
        self.manage, self.calls, self.root = Manage(), Calls(60.0), root
        edges = Edges(
            SimpleNamespace(members=self.members),
            SimpleNamespace(shards=self.shards),
            {"trainer": Role(state=[trainer] * 9)},
            *(None, self.manage, None, None),
        )
        self.saver = Saver(config, edges, self.calls, root)

    def begin(self, env_steps, version=3, opt_steps=1, **options):
        self.counters = {"counts": {"env_steps": env_steps}, "more": 1}
        self.saver.begin(LoadParams(version, opt_steps, env_steps), "params", self.counters, **options)
        while self.calls.pending:
            self.calls.react((), 0.0, ())

    def committed(self):
        draft, _, states = self.manage.commits[-1]
        return dict(zip(draft.roles, (ref.value for ref in states), strict=True)), draft.sums


def test_a_checkpoint_has_the_parts_of_all_roles(tmp_path):
    shards = [{"begin_save": [400], "save_part": [None, {"b": "2", "c": "3"}]}, {"begin_save": [{"a": "1"}]}]
    made = Made(tmp_path, shards=shards)
    made.begin(200)
    draft, params, _ = made.manage.commits[0]
    assert (draft.params_header, params, draft.counters) == (LoadParams(3, 1, 200), "params", made.counters)
    assert draft.roles == ("trainer", "worker 5", "worker 6")
    assert made.committed() == ({"trainer": "t", "worker 5": "w0", "worker 6": "w1"}, {"a": "1", "b": "2", "c": "3"})
    assert "step_000000200" in draft.path
    assert [shard.calls[0] for shard in made.shards] == [("begin_save", draft.path, None)] * 2
    assert [shard.calls[1:] for shard in made.shards] == [[("save_part",)] * 2, []]
    assert made.saver.busy
    made.manage.answer(str(tmp_path / "step_000000200"))
    assert (made.saver.busy, made.saver.last) == (False, tmp_path / "step_000000200")
    for shard in made.shards:
        shard.answers["begin_save"].append({"d": "4"})
    made.begin(300, workers=False)
    assert made.committed()[0] == {"trainer": "t"}
    assert made.shards[0].calls[-1] == ("begin_save", made.manage.commits[1][0].path, str(tmp_path / "step_000000200"))


def test_equal_counts_are_not_saved_twice(tmp_path):
    made = Made(tmp_path, shards=[{"begin_save": [{}, {}, {}]}])
    made.begin(0)
    made.manage.answer("folder")
    made.begin(0)
    assert (len(made.manage.commits), made.saver.busy) == (1, False)
    made.begin(40)
    assert made.saver.problem is None
    made.manage.answer(None)  # manage died, so nothing is saved
    assert isinstance(made.saver.problem, RoleLost)
    made.begin(40)
    assert len(made.manage.commits) == 3


@pytest.mark.parametrize("overrides", [("checkpoint.replay=off",), ("mode=async",)], ids=lambda overrides: overrides[0])
def test_states_that_a_run_does_not_restore_are_not_saved(tmp_path, overrides):
    made = Made(tmp_path, *overrides, shards=[{"begin_save": [{"a": "1"}]}])
    made.begin(0)
    states, sums = made.committed()
    assert set(states) == {"trainer"} | ({"worker 5", "worker 6"} if restores_workers(made.saver.config) else set())
    assert sums == ({} if overrides[0].startswith("checkpoint") else {"a": "1"})


@pytest.fixture
def made(clock, tmp_path):
    return Made(tmp_path, "checkpoint.period_s=null", shards=[{"begin_save": [{}] * 9}])


def test_a_first_checkpoint_with_updates_is_due_within_a_minute(clock, made):
    def due_after(seconds):
        clock.now += seconds
        return made.saver.is_due(20)

    def save(env_steps, opt_steps):
        made.begin(env_steps, opt_steps=opt_steps)
        made.manage.answer("folder")

    save(0, 0)
    assert (due_after(10.0), due_after(48.0)) == (False, True)
    assert not made.saver.is_due(512)  # the end of the run saves
    save(20, 0)  # still the warm-up
    assert (due_after(10.0), due_after(48.0)) == (False, True)
    save(40, 5)
    assert not due_after(1e6)


def test_the_first_checkpoint_of_a_resumed_run_is_due_within_a_minute(clock, made):
    made.saver.go_on(200)
    assert not made.saver.is_due(220)
    clock.now += 58.0
    assert made.saver.is_due(220)
    made.saver.saved = {"env_steps": 200}
    made.begin(220)
    made.manage.answer("folder")
    clock.now += 1e6
    assert not made.saver.is_due(240)


def test_a_checkpoint_is_due_after_period_s_however_few_steps_were_made(clock, tmp_path):
    made = Made(tmp_path, "checkpoint.period_s=20", shards=[{"begin_save": [{}] * 9}])
    for steps in (20, 40, 60):  # of these, only the first has no earlier checkpoint with updates
        made.begin(steps)
        made.manage.answer("folder")
        clock.now += 19.0
        assert not made.saver.is_due(steps + 1)
        clock.now += 1.0
        assert made.saver.is_due(steps + 1)


def test_a_checkpoint_that_manages_death_prevented_is_due_again_within_a_minute(clock, made):
    for steps in (20, 40):
        made.begin(steps)
        made.manage.answer("folder")
    clock.now += 1000.0
    made.begin(100)
    made.manage.answer(None)
    assert not made.saver.is_due(120)
    clock.now += 58.0
    assert made.saver.is_due(120)


def test_a_checkpoint_is_due_every_period_but_not_at_the_end(made):
    due = lambda: [steps for steps in range(0, 640, 20) if made.saver.is_due(steps)]  # noqa: E731
    assert due() == list(range(0, 512, 20))
    made.begin(0)
    assert due() == []  # a save is running
    made.manage.answer("folder")
    assert due() == list(range(100, 512, 20))
    made.begin(130)
    made.manage.answer("folder")
    assert due()[0] == 200
    made.saver.go_on(300)
    assert due()[0] == 400
    assert not made.saver.is_due(512)


def test_a_dead_worker_leaves_out_the_workers_and_a_dead_trainer_ends_the_run(tmp_path):
    made = Made(tmp_path, workers=("w0", ActorDied("signal 9"), "w2"), shards=[{"begin_save": [{"a": "1"}]}])
    made.begin(0)
    assert made.committed() == ({"trainer": "t"}, {"a": "1"})
    with pytest.raises(RoleLost, match="trainer died: signal 9"):
        Made(tmp_path, trainer=ActorDied("signal 9"), shards=[{"begin_save": [{}]}]).begin(0)


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_out_the_replay_with_one_warning(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")
    shards = [
        {"begin_save": [4, {}, 4, 4], "save_part": [{"a": "1"}, FULL, {"b": "2"}]},
        {"begin_save": [FULL, 1, 1, 1]},
    ]
    shards[1]["save_part"] = [FULL, FULL, {"c": "3"}]
    made = Made(tmp_path, shards=shards)
    make_draft, drafts = module.make_draft, []

    def make_it(folder):
        drafts.append(make_draft(folder))
        for name in ("state.replay-0.safetensors", "state.trainer.safetensors"):
            (drafts[-1] / name).touch()
        return drafts[-1]

    monkeypatch.setattr(module, "make_draft", make_it)
    for env_steps in (0, 100, 200, 300):
        made.begin(env_steps)
        made.manage.answer("folder")
    assert [draft.sums for draft, *_ in made.manage.commits] == [{}, {}, {}, {"b": "2", "c": "3"}]
    assert [draft.roles for draft, *_ in made.manage.commits] == [("trainer", "worker 5", "worker 6")] * 4
    assert [[path.name for path in sorted(draft.iterdir())] for draft in drafts] == [
        *[["state.trainer.safetensors"]] * 3,
        ["state.replay-0.safetensors", "state.trainer.safetensors"],
    ]
    assert [shard.calls.count(("abort_save",)) for shard in made.shards] == [3, 3]
    levels = [record.levelname for record in caplog.records if "the replay is left out" in record.message]
    assert levels == ["WARNING", "INFO", "INFO"]
    made.shards[0].answers["begin_save"].append(FULL)
    made.shards[1].answers["begin_save"].append({})
    made.begin(400)
    assert caplog.records[-1].levelname == "INFO"  # also after a success


def test_a_failed_checkpoint_names_the_last_good_one(made, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")

    def no_room(folder):
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(module, "make_draft", no_room)
        made.begin(0)
    assert caplog.messages == [f"a checkpoint could not be saved: {FULL}; there is none"]
    assert (made.saver.busy, made.manage.commits, made.saver.next) == (False, [], 100)
    made.begin(100)
    made.manage.answer(None)
    assert caplog.messages[1:] == ["a checkpoint could not be saved: manage failed; there is none"]
    made.begin(200)
    made.manage.answer(str(tmp_path / "step_000000200"))
    made.begin(300)
    made.manage.answer(OSError("broken disk"))
    assert caplog.messages[2:] == ["a checkpoint could not be saved: broken disk; the last good one is step_000000200"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]


@pytest.mark.parametrize(
    ("overrides", "restores"),
    [(("mode=sync",), True), (("mode=async",), False), (("mode=sync", "worker.proxies=1"), False)],
)
def test_checkpoints_have_the_workers_of_runs_that_continue_bit_for_bit(overrides, restores):
    config = make_config(*TINY, COUNTER, "worker.num=2", "worker.envs=3", *overrides)
    assert restores_workers(config) == restores
    assert worker_layout(config) == {"num": 2, "envs": 3, "row_steps": config.row_steps}

import json
from types import SimpleNamespace

import pytest
from choices import some
from graphs import COUNTER, at
from handles import FakeHandle

from drl_cli.chains.process_group import PeerLost
from drl_cli.errors import RoleLost
from drl_cli.run_folder.checkpoint import load_model, open_checkpoint, read_manifest
from drl_cli.runtime.edges.calls import LOOK_S
from drl_cli.runtime.orchestrator.orchestrator import CLOSE_S, RESCUE_S
from drl_cli.runtime.orchestrator.saver import restores_workers
from drl_cli.runtime.place.handles import ActorDied, LocalRef, ObjectLost
from drl_cli.types import LoadParams


@pytest.fixture
def still(build_graph, clock):
    """A graph at second 100 that has not begun; waits are recorded, and no answer comes."""
    graph = build_graph(COUNTER, "mode=async", "stop.wall_s=30")
    graph.manage.poll()
    graph.clock, graph.waits, graph.overdue = clock, [], []
    graph.calls.react = lambda others, timeout_s, patient, skips: graph.waits.append((others, timeout_s, patient))
    graph.pool.kill_overdue = graph.overdue.append
    graph.reports.next = 160.0
    return graph


def test_a_wait_ends_when_something_is_due(still):
    still.manage.pending, polls = {"an evaluation": None}, []
    still.pool.busy["a call"] = None
    still.manage.poll = lambda: polls.append(len(still.waits))
    still.idle()
    still.reports.next = 100.375
    still.idle()
    still.collector.window_ends = 100.25
    still.idle()
    still.clock.now, still.deadline = 100.125, 100.1875
    still.idle()
    assert [timeout_s for _, timeout_s, _ in still.waits] == [LOOK_S, 0.375, 0.25, 0.0625]
    assert polls == [1, 2, 3, 4]  # the answers that ended a wait are handled after it
    assert all([*others] == ["an evaluation"] for others, _, _ in still.waits)
    assert all(patient.maps[0] is still.pool.busy for _, _, patient in still.waits)
    assert all(patient.maps[1] is still.reanalysis.pool.busy for _, _, patient in still.waits)
    assert still.overdue == [100.0, 100.0, 100.0, 100.125]


def test_a_rescue_is_limited_in_time(still):
    still.deadline = 100.0
    still.idle()
    still.clock.now = 100.1
    with pytest.raises(RoleLost, match=f"no checkpoint within {RESCUE_S:g} s"):
        still.idle()


def test_a_dead_ray_ends_the_run(still):
    still.health = lambda: "Ray's raylet died, and all roles with it"
    with pytest.raises(RoleLost, match="Ray's raylet died"):
        still.idle()
    assert still.waits == []


@pytest.mark.parametrize("error", [PeerLost("no peer"), ObjectLost("a batch is gone")])
def test_the_lost_role_behind_an_error_is_named(still, error):
    def react(*args, **options):
        raise error

    still.calls.react = react
    still.learning.blame = lambda why: RoleLost(f"replay 0 died ({why})")
    with pytest.raises(RoleLost, match=rf"replay 0 died \({error}\)") as caught:
        still.idle()
    assert caught.value.__cause__ is error


def test_only_a_restarted_worker_gets_the_servers_parameters(still):
    given, (member, *_) = [], still.pool.members
    still.pool.dispatch = lambda member, header, params: (given.append((header, params)), LocalRef())[1]
    still.learning.pull, still.learning.params = lambda: "the server's", "the newest"
    issued = iter([still.config.random_steps - 1, *[still.config.random_steps] * 3])
    for version, lost in ((-1, False), (-1, True), (4, False), (4, True)):
        still.collector.issued = next(issued)
        still.learning.params_header, member.version = LoadParams(version, 5, 6), -1
        member.causes = ["died"] * lost
        still.collector.dispatch(member, still.learning)
    assert [params for _, params in given] == ["the newest", "the newest", "the newest", "the server's"]
    assert [header.random_actions for header, _ in given] == [True, False, False, False]
    assert [header.version for header, _ in given] == [-1, -1, 4, 4]


def test_housekeeping_sends_reports_and_stops_at_wall_s(still):
    sent, process_s = [], iter([29.0, 30.0, 31.0])
    still.progress.process_s = lambda: next(process_s)
    still.reports.send = lambda *args: sent.append(args)
    still.clock.now = 159.9
    still.idle()
    assert (sent, still.stop_reason) == ([], None)
    still.clock.now = 160.0
    still.idle()
    assert (sent, still.stop_reason) == ([(still.learning.params_header, "running")], "wall_s")


def test_pause_and_interrupt(still):
    seen = [still.paused]
    for change in (still.toggle_pause, still.toggle_pause):
        change()
        seen.append(still.paused)
    assert (seen, (still.stop_reason, still.interrupted)) == ([False, True, False], (None, False))
    still.interrupt()
    still.stop("return")
    assert (still.stop_reason, still.interrupted) == ("signal", True)  # the first reason counts


@pytest.mark.parametrize(
    ("is_due", "is_settled", "saved", "trained"),
    [(False, True, 0, [4, 2]), (True, False, 0, []), (True, True, 1, [4, 2])],
)
def test_no_train_call_is_made_before_a_checkpoint(still, is_due, is_settled, saved, trained):
    calls, updates, idles = [], iter([4, 2, 0]), []
    still.saver.is_due, still.is_settled = lambda env_steps: is_due, lambda: is_settled
    still.save = lambda: calls.append("saved")
    still.admission.updates, still.learning.train = lambda: next(updates), calls.append
    still.admission.may_collect, still.idle = lambda rows: False, lambda **options: idles.append(options)
    still.calls.pending["a call"] = None
    still.step_async()
    assert calls == ["saved"] * saved + trained
    assert idles == [{"skips_quiet": bool(trained)}]  # a checkpoint waits for the inserts, whose answers are quiet


def test_workers_that_waited_longest_collect_first(still):
    members = [SimpleNamespace(index=i, issued=issued, share=1) for i, issued in enumerate([30.0, 10.0, 20.0, 40.0])]
    asked, room = [], iter([True, True, True, False])
    still.pool.idle = lambda: members
    still.collector.arrived.append((members[2], None, 0, None))  # its block must be inserted first
    still.collector.is_due, still.admission.updates = lambda: False, lambda: 0
    still.admission.may_collect, still.idle = lambda rows: next(room), lambda **options: None
    still.saver.is_due = lambda env_steps: False
    still.collector.dispatch = lambda member, learning: asked.append(member.index)
    still.step_async()
    assert asked == [1, 0]


def test_a_resumed_run_continues_from_its_counters(build_graph):
    graph = build_graph(COUNTER, "mode=async", "checkpoint.period=100", "manage.eval_period=100")
    graph.progress.load_state(graph.progress.state() | {"env_steps": 260}, has_replay=True)
    params = graph.trainers["trainer"].role.algorithm.policy_params()
    graph.go_on(LoadParams(7, 40, 250), params)
    assert (graph.collector.issued, graph.saver.next) == (260, 300)
    assert graph.learning.params_header == LoadParams(7, 40, 250)
    assert graph.learning.server.role.params_header == LoadParams(7, 40, 250)
    evaluated = []
    graph.manage.evaluate = lambda header, params: evaluated.append(header.env_steps)
    for env_steps in (299, 300):
        graph.reports.published(LoadParams(env_steps, 50, env_steps), None)
    assert evaluated == [300]
    counts = graph.state()["counts"]
    assert (counts["version"], counts["env_steps"]) == (7, 260)
    assert set(graph.state()) == {"counts", "progress", "limiter", "shards", "incarnation", "workers"}
    json.dumps(graph.state())


@pytest.mark.parametrize("loses_trainer", [False, True])
def test_a_rescue_saves_all_but_the_workers_or_without_the_trainer_the_model(build_graph, clock, loses_trainer):
    graph = build_graph(COUNTER, "mode=sync", "worker.num=2", "checkpoint.period=10000")
    shown = []
    at(graph, 256, lambda: graph.stop("lost"))
    graph.reports.ending = shown.append
    graph.run()
    clock.now = 500.0
    if loses_trainer:
        graph.trainers["trainer"].ask = lambda *args: LocalRef(error=ActorDied("signal 9"))
    graph.rescue()
    graph.close("failed")
    assert (shown, graph.deadline) == (["what can be saved"], 500.0 + RESCUE_S)
    params, manifest = load_model(max((graph.folder / "checkpoints").glob("step_*[0-9]")))
    newest = graph.learning.server.role
    assert (manifest["version"], params.tobytes()) == (newest.params_header.version, newest.params.tobytes())
    parts = {name.removeprefix("state.").partition(".")[0] for name in manifest["sha256"]} - {"model"}
    assert parts == (set() if loses_trainer else {"orchestrator", "trainer", "replay-0"})
    assert manifest["env_steps"] == graph.learning.params_header.env_steps == 256


def test_a_rescue_waits_for_nothing_after_a_failed_update(build_graph):
    graph = build_graph(COUNTER, "mode=sync", "worker.num=2", "checkpoint.period=10000")
    checkpoints = graph.folder / "checkpoints"
    graph.reports.ending = None
    graph.learning.publish()
    graph.rescue()
    assert not list(checkpoints.iterdir())  # nothing is saved before the first step
    at(graph, 256, lambda: graph.stop("failed"))
    graph.run()
    graph.learning.training = 1  # the call that failed is never answered
    graph.rescue(whole=False)
    graph.close("failed")
    assert (checkpoints / "step_000000256").exists()
    _, manifest = load_model(checkpoints / "step_000000256")
    assert manifest["version"] == graph.learning.params_header.version


def test_a_rescue_before_the_first_version_saves_nothing(build_graph):
    graph = build_graph(COUNTER, "mode=async")
    graph.rescue()
    assert graph.deadline is None
    assert not list((graph.folder / "checkpoints").iterdir())


def test_a_run_that_ends_before_its_first_step_has_no_last_report(build_graph):
    graph, sent = build_graph(COUNTER, "mode=sync"), []
    graph.interrupt()
    graph.run()
    graph.reports.send = lambda *args, **last: sent.append(last)
    graph.finish()
    assert (graph.progress.env_steps, sent) == (0, [{"is_last": False}])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_finish_publishes_reports_saves_and_evaluates_the_last_version(build_graph, mode):
    graph, finished, sent = build_graph(COUNTER, f"mode={mode}", "total_env_steps=300"), [], []
    graph.run()
    graph.manage.finish = lambda *args, is_over: finished.append((args, is_over))
    send = graph.reports.send
    graph.reports.send = lambda *args, **last: (sent.append((*args, last)), send(*args, **last))
    shown = []
    graph.reports.ending = shown.append
    assert graph.trainer_facts is None
    graph.finish()
    assert shown == ["the last checkpoint", "", "the last evaluation", "the last records"]
    newest = graph.learning.params_header
    assert newest.opt_steps == graph.progress.opt_steps > 0
    assert sent == [(newest, {"is_last": True})]
    ((args, is_over),) = finished
    assert args == (newest, graph.learning.params, graph.config.orchestrator.stall_s)
    assert not is_over()
    graph.interrupt()
    assert is_over()
    assert graph.trainer_facts["device"] == "cpu"
    assert not graph.saver.busy
    closed = []
    graph.manage.close = lambda *args: closed.append(args)
    for member in graph.pool.members:
        member.handle.role.close = lambda index=member.index: closed.append(index)
    graph.close("done")
    assert closed == [("done", CLOSE_S, True), *range(graph.config.num_workers)]
    saved = read_manifest(graph.folder / "checkpoints" / "last")
    assert (saved["version"], saved["opt_steps"]) == (newest.version, newest.opt_steps)
    assert any("worker" in name for name in saved["sha256"]) == restores_workers(graph.config)


def test_sync_makes_every_update_due_and_saves_in_time(build_graph):
    args = ("orchestrator.min_inserts=1", "orchestrator.sample_insert_ratio=0.03125", "worker.block_rows=32")
    graph = build_graph(COUNTER, "mode=sync", *args, "checkpoint.period=96", "checkpoint.keep_last=99")
    seen, step = [], graph.step_sync

    def note():
        step()
        seen.append((graph.progress.env_steps, graph.limiter.owed()))

    graph.step_sync = note
    graph.run()
    assert {owed for steps, owed in seen if steps == graph.collector.issued} == {0}
    assert graph.progress.opt_steps == 15  # one for each block after the first
    steps = [int(path.name[5:14]) for path in sorted((graph.folder / "checkpoints").glob("step_*[0-9]"))]
    assert steps == [32, 64, 96, 192, 288, 384, 480]  # 64: before the first update


@pytest.mark.parametrize("mode", some(["single", "sync"], "single"))
def test_a_checkpoint_is_saved_before_the_first_update_because_compiling_it_may_take_minutes(build_graph, mode):
    graph, saved = build_graph(COUNTER, f"mode={mode}"), []
    train = graph.learning.train

    def first_train(updates):
        saved.append((open_checkpoint(graph.folder / "checkpoints" / "last"), graph.progress.env_steps))
        graph.learning.train = train
        train(updates)

    graph.learning.train = first_train
    graph.run()
    ((checkpoint, env_steps),) = saved
    assert checkpoint.env_steps == env_steps > 0
    assert (checkpoint.opt_steps, checkpoint.has_replay) == (0, True)


@pytest.mark.parametrize("mode", some(["single", "sync", "async"], "async"))
def test_a_run_whose_manage_died_too_often_saves_its_checkpoints_itself(build_graph, mode):
    graph = build_graph(
        COUNTER, f"mode={mode}", "checkpoint.period=100", "total_env_steps=300", "manage.eval_period=50"
    )
    at(graph, 128, lambda: lose_manage(graph))
    graph.run()
    graph.finish()
    folders = graph.folder / "checkpoints"
    last, steps = open_checkpoint(folders / "last"), [int(path.name[5:14]) for path in folders.glob("step_*[0-9]")]
    assert last.env_steps == graph.progress.env_steps >= 300
    assert any(128 < step < 300 for step in steps)
    assert read_manifest(folders / "best")["env_steps"] <= 128  # what manage had found before
    assert graph.manage.lost.startswith("manage died (signal 9); 3 restarts are used up")


def lose_manage(graph):
    graph.manage.handle = FakeHandle(call=lambda *call: LocalRef(error=ActorDied("signal 9")))
    graph.manage.spawn = lambda wait: graph.manage.handle
    graph.manage.report({}, 1)
    for _ in range(graph.config.manage.max_restarts + 1):
        graph.manage.report({}, 1)
        graph.manage.poll()


def test_the_last_checkpoint_is_repeated_if_manage_dies_while_it_saves(build_graph):
    graph = build_graph(COUNTER, "mode=sync", "total_env_steps=300")
    graph.run()
    alive, dead = graph.manage.handle, FakeHandle(call=lambda *call: LocalRef(error=ActorDied("signal 9")))
    handles = [dead, alive]
    graph.manage.handle, graph.manage.spawn = dead, lambda wait: handles.pop()
    graph.finish()
    assert open_checkpoint(graph.folder / "checkpoints" / "last").env_steps == graph.progress.env_steps
    assert (graph.manage.restarts, graph.manage.lost) == (1, None)


def test_a_run_is_over_only_after_its_last_updates(build_graph):
    graph = build_graph(COUNTER, "mode=async")
    graph.progress.env_steps, graph.learning.training = graph.config.total_env_steps, 1
    assert not graph.is_done()
    graph.learning.training = 0
    assert (graph.is_done(), graph.stop_reason) == (True, "total_env_steps")


def test_the_workers_wait_no_longer_after_the_run(build_graph):
    graph = build_graph(COUNTER, "mode=sync", "total_env_steps=64")
    graph.run()
    waited = graph.pool.wait_seconds(graph.progress.ended)
    assert graph.pool.wait_seconds(graph.progress.ended + 100.0) == waited

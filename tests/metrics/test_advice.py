import pytest

from drl_cli.metrics.advice import CHANGES, bottleneck
from drl_cli.metrics.status import Status


def make(worker=0.1, trainer=0.1, update=None, environment=None, **fields):
    """A status with these shares of waiting; the rest of the time is split in halves by default."""
    environment = (1 - worker) / 2 if environment is None else environment
    update = (1 - trainer) / 2 if update is None else update
    usual = {"cpus": 4, "cpu_percent": 50.0, "ratio_asked": 0.5, "state": "running", "workers": 3}
    usual["roles"] = {"worker": {"cores": 2.0}, "trainer": {"cores": 0.9}, "manage": {}}
    return Status(
        **{**usual, **fields},
        worker_time={"environment": environment, "policy": 1 - worker - environment, "waiting": worker},
        trainer_time={"batch": 1 - trainer - update, "update": update, "waiting": trainer},
    )


TRAINER = {"worker": 0.45, "update": 0.8}
"""Workers wait for the trainer, which updates."""


@pytest.mark.parametrize(
    ("status", "begin", "has", "has_not"),
    [
        (make(), "both sides are busy", [], [CHANGES]),
        (make(worker=0.2, trainer=0.2), "both sides are busy", [], []),
        (make(worker=0.4, trainer=0.5), "both sides wait for each other (workers 40%, trainer 50%)",
         ["worker.block_rows", CHANGES], []),
        (make(**TRAINER), "the trainer: workers wait 45%", ["compile", f"below 0.5 makes fewer updates ({CHANGES})"],
         ["worker.num"]),
        (make(**TRAINER, cpu_percent=99.0), "the trainer", ["worker.num=2 leaves it more"], []),
        (make(**TRAINER, cpu_percent=99.0, workers=1), "the trainer", [], ["worker.num"]),
        (make(**TRAINER, compiles=True), "the trainer", [], ["compile"]),
        (make(**TRAINER, ratio_asked=None), "the trainer", ["compile"], [CHANGES]),
        (make(**TRAINER, is_on_policy=True), "the trainer", [f"algo.epochs ({CHANGES})"], []),
        (make(worker=0.45, update=0.1), "the trainer", ["replay.shards"], [CHANGES]),
        (make(trainer=0.6), "the workers: the trainer waits 60%", ["worker.num above 3", f"steps ({CHANGES})"], []),
        (make(trainer=0.6, cpu_percent=97.0), "the workers", ["All 4 processors are busy"], ["worker.num"]),
        (make(trainer=0.6, cpu_percent=None), "the workers", ["All 4 processors are busy"], []),
        (make(trainer=0.6, environment=0.1), "the workers", ["worker.envs"], ["worker.num"]),
        (make(trainer=0.6, is_on_policy=True), "the workers", ["worker.num", f"episodes: {CHANGES}"], ["insert_ratio"]),
        (make(trainer=0.6, ratio_asked=None), "the workers", ["worker.num"], [CHANGES]),
        (make(trainer=0.6, roles={"worker": {"cores": 3.5}}), "the workers", ["All 4 processors"], ["worker.num"]),
        (make(**TRAINER, cpu_percent=99.0, roles={"worker": {"cores": 1.5}, "trainer": {"cores": 1.2}}),
         "other programs: all 4 processors are busy, and this run has 2.7 of them", [], ["trainer.compile"]),
        (make(worker=0.8, mode="single", update=0.7), "updates take 80% of the time", ["compile"], ["worker.num"]),
        (make(worker=0.2, mode="single"), "collecting takes 80% of the time", [f"policies are then older, {CHANGES}"],
         ["worker.num"]),
        (make(worker=0.2, mode="sync"), "collecting takes 80%", ["worker.num above 3", "mode=async"], []),
    ],
)  # fmt: skip
def test_one_line_names_the_bottleneck_and_what_to_change(status, begin, has, has_not):
    line = bottleneck(status)
    assert line.startswith(begin)
    assert ([text for text in has if text not in line], [text for text in has_not if text in line]) == ([], [])
    assert "\n" not in line


def test_there_is_no_advice_without_data():
    assert (bottleneck(Status(state="running")), bottleneck(make(awaits="warm-up", worker=0.9))) == ("", "")
    assert bottleneck(Status(state="running", worker_time={"waiting": 0.9})) == "the first update is still to come"
    slow = Status(state="running", worker_time={"waiting": 0.9}, opt_steps=3)
    assert bottleneck(slow) == "the trainer: no update has ended lately"

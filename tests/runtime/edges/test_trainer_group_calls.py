"""TrainerGroup: who is asked what, and whose error counts; the trainers answer in this process."""

import pytest

from drl_cli.errors import Diverged
from drl_cli.optim.group import PeerLost
from drl_cli.runtime.edges import trainer_group
from drl_cli.runtime.edges.calls import GRACE_S
from drl_cli.runtime.edges.trainer_group import TrainerGroup, roles
from drl_cli.runtime.place.handles import ActorDied, LocalRef


class Trainer:
    """Notes its calls, and the references that it answers with."""

    def __init__(self):
        self.calls, self.answers = [], []

    def call(self, method, *args, results=1):
        self.calls.append((method, *args))
        refs = [LocalRef() for _ in range(results)]
        self.answers.append(refs)
        return refs[0] if results == 1 else refs


def test_each_trains_on_its_part_and_the_first_speaks_for_all():
    trainers = [Trainer(), Trainer()]
    group, parts = TrainerGroup(trainers), [LocalRef() for _ in range(4)]
    reports, priorities = group.train(parts)
    assert [trainer.calls for trainer in trainers] == [[("train", *parts[:2])], [("train", *parts[2:])]]
    assert [*zip(reports, priorities, strict=True)] == [tuple(trainer.answers[0]) for trainer in trainers]
    published, described, state = group.publish(7, 70), group.describe(), group.state()
    loaded = group.load_state(state)
    assert trainers[0].calls[1:] == [("publish", 7, 70), ("describe",), ("state",), ("load_state", state)]
    assert trainers[1].calls[1:] == [("load_state", state)]
    assert published == tuple(trainers[0].answers[1])
    assert [described, state] == [answer[0] for answer in trainers[0].answers[2:4]]
    assert loaded == [trainer.answers[-1][0] for trainer in trainers]


def test_several_meet_where_the_first_listens_and_one_meets_nobody():
    trainers = [Trainer() for _ in range(3)]
    group = TrainerGroup(trainers)
    joined = group.connect()
    address = trainers[0].answers[0][0]
    assert trainers[0].calls == [("listen",), ("join", address)]
    assert [trainer.calls for trainer in trainers[1:]] == [[("join", address)]] * 2
    assert joined == [trainer.answers[-1][0] for trainer in trainers]
    alone = TrainerGroup([Trainer()])
    assert alone.connect() == []
    assert alone.trainers[0].calls == []


def test_names():
    assert roles(1) == TrainerGroup([Trainer()]).roles == ["trainer"]
    assert roles(3) == ["trainer 0", "trainer 1", "trainer 2"]


def test_the_others_have_a_grace_and_no_more(monkeypatch):
    refs, moments, asked = [LocalRef() for _ in range(3)], iter([50.0, 51.0, 99.0]), []
    monkeypatch.setattr(trainer_group, "now", lambda: next(moments))
    monkeypatch.setattr(
        trainer_group,
        "wait",
        lambda silent, timeout_s: asked.append(timeout_s) or (refs[:1] if len(silent) > 2 else []),
    )
    assert TrainerGroup([Trainer()] * 3).at_fault(refs, LOSS) is LOSS
    assert asked == [GRACE_S - 1.0, 0.0]


LOSS, DATA, OTHER = Diverged("loss is NaN"), Diverged("reward of worker 2", {}, is_data=True), Diverged("loss too")


@pytest.mark.parametrize(
    ("answers", "error", "expected", "waits"),
    [
        ([[LOSS, DATA]], LOSS, DATA, 1),
        ([[LOSS, OTHER]], LOSS, LOSS, 1),
        ([[None, LOSS], [DATA]], LOSS, DATA, 2),
        ([[ActorDied("signal 9"), PeerLost("gone"), DATA]], LOSS, DATA, 1),
        ([[LOSS, None]], LOSS, LOSS, 2),  # the second never answers
        ([[LOSS, LOSS]], DATA, DATA, 0),  # it is known
    ],
)
def test_the_error_that_names_bad_data_counts(monkeypatch, answers, error, expected, waits):
    refs = [LocalRef(error=answer) if answer else LocalRef() for answer in answers[0]]
    later = {i: answer for i, answer in enumerate(answers[0]) if answer is None}
    rounds, asked = list(answers), []

    def wait(silent, timeout_s):
        asked.append((list(silent), timeout_s))
        if not rounds:
            return []
        found = rounds.pop(0)
        if len(found) == len(refs):
            return [ref for ref, answer in zip(refs, found, strict=True) if answer is not None]
        for i, answer in zip(later, found, strict=True):
            refs[i].error = answer
        return [refs[i] for i in later]

    monkeypatch.setattr(trainer_group, "wait", wait)
    monkeypatch.setattr(trainer_group, "now", lambda: 50.0)
    assert TrainerGroup([Trainer()] * len(refs)).at_fault(refs, error) is expected
    assert len(asked) == waits
    assert all(timeout_s == GRACE_S for _, timeout_s in asked)
    if waits:
        assert asked[0][0] == refs
    if waits == 2:
        assert asked[1][0] == [refs[i] for i in later]

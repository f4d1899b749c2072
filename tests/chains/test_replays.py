import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from learning_cases import NAMES, Alternating, case_of

from drl_cli.algos.base import Counts
from drl_cli.algos.lookup import algorithms
from drl_cli.api import Context
from drl_cli.chains.replays import FIRST_CHECK, MOST_RECORDS, MOST_VARIANTS, Replays
from drl_cli.testing.contract import check_replays


def learn(replays, num, first=0, size=3):
    return [replays({"x": torch.full((size,), 1.0 + i)}, Counts(i, 0)) for i in range(first, first + num)]


def plain(num, kind=Alternating):
    learner = kind()
    return [learner.update({"x": torch.full((3,), 1.0 + i)}, Counts(i, 0)) for i in range(num)], learner


def test_both_paths_are_replayed_after_two_updates_each():
    replays = Replays((learner := Alternating()).update, learner)
    assert learn(replays, 20) == plain(20)[0]
    assert learner.calls == [4]
    assert replays.why is None
    assert torch.equal(learner.w, plain(20)[1].w)


def test_another_size_or_stride_has_its_own_list():
    class Sum(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            return {"x": columns["x"].sum() + 1}

    replays = Replays((learner := Sum()).update, learner)
    for size in (3, 5, 3, 5, 3, 5):
        assert float(replays({"x": torch.ones(size)})["x"]) == size + 1
    assert learner.calls == [4]
    for _ in range(3):
        assert float(replays({"x": torch.ones(9)[::3]})["x"]) == 4
    assert learner.calls == [6]


def test_a_list_is_lent_as_a_function_once_it_is_replayed():
    class Sum(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            return {"x": columns["x"].sum() + self.w.sum()}

    replays = Replays((learner := Sum()).update, learner)
    columns = {"x": torch.ones(3)}
    assert replays.bound(columns) is None
    for _ in range(2):
        replays(columns)
    call = replays.bound(columns)
    learner.w += 1.0  # in place
    assert float(call([torch.full((3,), 2.0)])["x"]) == 6.0 + float(learner.w.sum())
    assert learner.calls == [2]
    assert replays.bound({"x": torch.ones(4)}) is None


def test_the_update_itself_runs_again_from_time_to_time_and_a_change_ends_the_replays():
    class Gambler(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            self.w.add_(columns["x"] * (2.0 if self.calls[0] > 3 else 1.0))  # calls: in a container, unnoticed
            return {"w": self.w.sum()}

    replays = Replays((learner := Gambler()).update, learner)
    learn(replays, 2 + FIRST_CHECK + 1)
    assert learner.calls == [3]
    assert replays.why is None
    learn(replays, FIRST_CHECK, first=50)
    assert learner.calls == [3]
    learn(replays, 1)
    assert replays.why == "its updates differ from call to call"
    learn(replays, 3)
    assert learner.calls == [7]


def test_checks_become_rare():
    class Still(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            return {"x": columns["x"] * 2}

    replays = Replays((learner := Still()).update, learner)
    learn(replays, 2 + 5 * FIRST_CHECK)
    assert learner.calls == [2 + 3]  # after 10, 20 and 40 replays


@pytest.mark.parametrize("what", ["number", "tensor", "list"])
def test_an_update_that_changes_an_attribute_runs_as_it_is(what):
    class Counter(Alternating):
        def __init__(self):
            super().__init__()
            self.number, self.tensor, self.list = 0, torch.zeros(1), []

        def update(self, columns, counts):
            self.number += what == "number"
            self.tensor = self.tensor + 1 if what == "tensor" else self.tensor
            self.list += [1] if what == "list" else []
            return super().update(columns, counts)

    replays = Replays((learner := Counter()).update, learner)
    assert learn(replays, 8) == plain(8)[0]
    assert (learner.calls, replays.why) == ([8], f"an update changes the attribute '{what}'")


def test_random_numbers_of_python_are_noticed():
    class Random(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            self.w.add_(columns["x"] * random.random())
            return {"w": self.w.sum()}

    replays = Replays((learner := Random()).update, learner)
    learn(replays, MOST_RECORDS + 2)
    assert (replays.why, learner.calls) == ("its updates differ from call to call", [MOST_RECORDS + 2])


def test_a_tensor_that_is_replaced_between_updates_is_read_anew():
    replays = Replays((learner := Alternating()).update, learner)
    learn(replays, 6)
    learner.w = torch.full((3,), 100.0)
    learn(replays, 6, first=6)
    expected = plain(0)[1]
    expected.w = torch.full((3,), 100.0)
    for i in range(6, 12):
        expected.update({"x": torch.full((3,), 1.0 + i)}, Counts(i, 0))
    assert torch.equal(learner.w, expected.w)
    assert learner.calls == [4 + 5]  # the update that noticed it, and two for each path


def test_reset_forgets_the_lists():
    replays = Replays((learner := Alternating()).update, learner)
    learn(replays, 6)
    replays.reset()
    learn(replays, 6, first=6)
    assert learner.calls == [8]


def test_an_update_that_needs_a_value_runs_as_it_is_and_the_line_is_named():
    class Reader(Alternating):
        def update(self, columns, counts):
            self.calls[0] += 1
            return {"x": columns["x"] * columns["x"].sum().item()}

    replays = Replays((learner := Reader()).update, learner)
    learn(replays, 5)
    assert learner.calls == [5]
    assert replays.why.startswith(__file__)


def test_compiled_gradients_are_not_replayed():
    """A record does not see the kernels of a compiled function."""
    learner = Alternating()
    context = Context(torch.device("cpu"), replays=True, compiles=True)
    assert context.chain_of(learner.update, learner, dict) == learner.update
    assert isinstance(replace(context, compiles=False).chain_of(learner.update, learner, dict), Replays)


def test_updates_with_too_many_forms_are_not_recorded_for_ever():
    replays = Replays((learner := Alternating()).update, learner)
    for size in range(1, 40):
        replays({"x": torch.ones(3 * size)[:3] if size == 1 else torch.ones(3, size)[:, 0]}, Counts(0, 0))
    assert (len(replays._variants), learner.calls) == (MOST_VARIANTS, [39])


@pytest.mark.parametrize("name", sorted({*NAMES} - {*algorithms()}))
def test_every_preset_is_replayed(name):
    """The contract of the algorithms themselves asserts this too."""
    why = check_replays(case_of(name), updates=4)
    assert why == [] or name == "r2d2", why


def test_an_algorithm_that_draws_lots_in_python_is_told(monkeypatch):
    case = case_of("td3")
    algorithm = case.module.Algorithm
    update = algorithm.update

    def gamble(self, batch, counts):
        return update(self, batch, counts._replace(opt_steps=random.randrange(2)))

    random.seed(7)
    monkeypatch.setattr(algorithm, "update", gamble)
    with pytest.raises(AssertionError, match=r"a replayed update gives another .* random number"):
        check_replays(case)


@pytest.mark.slow
def test_recording_does_not_import_the_compiler():
    """The import of torch._dynamo takes more than a second, which every short run would wait for."""
    code = (
        "import sys, torch\n"
        "from drl_cli.chains.log import Log\n"
        "with Log() as log: torch.ones(3).add_(1)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

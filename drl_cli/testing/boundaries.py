"""Checks of the ends of rows: padding and burn-in of sequences, and the last row of an on-policy batch."""

from collections.abc import Callable
from typing import Any

from drl_cli.algos.base import Batch, Counts
from drl_cli.testing.case import Case, close, equal, like
from drl_cli.utils.lazy import Tensor, torch


def boundary_checks(case: Case) -> list[Callable[[Case], object]]:
    """Return the checks that a case with such rows has to pass."""
    checks: list[Callable[[Case], object]] = [check_padding] if case.sequences else []
    checks += [check_burn_in] if case.sequences and case.sequences.burn_in else []
    return [*checks, *([check_batch_end] if case.is_on_policy else [])]


def check_padding(case: Case) -> None:
    """Check that the values in the padding of sequences change neither parameters nor priorities of valid steps."""
    batch = case.batch()
    valid, noise = batch["valid"], case.batch(seed=1)
    once = () if case.config.has_step_states else ("state",)
    filled = {name: _mixed(batch[name], noise[name], valid) for name in batch if name not in ("valid", *once)}
    _check_same(case, batch, batch | filled, "the padding of sequences")


def check_burn_in(case: Case) -> None:
    """Check that actions, rewards and episode ends of the burn-in steps do not change what is learned."""
    assert case.sequences is not None
    batch, noise = case.batch(), case.batch(seed=1)
    learned = torch.arange(case.sequences.length).expand_as(batch["valid"]) >= case.sequences.burn_in
    names = ("action", "reward", "discount", "terminated", "truncated")
    filled = {name: _mixed(batch[name], noise[name], learned) for name in names}
    _check_same(case, batch, batch | filled, "an action or reward of the burn-in")


def check_batch_end(case: Case) -> None:
    """Check that an on-policy batch may end inside an episode: its last row ends a piece, whatever its `cut` is."""
    batch = case.batch()
    for name in ("terminated", "truncated", "cut"):
        batch[name][-1] = False
    batch["discount"][-1] = 0.99
    closed = batch | {"cut": batch["cut"].clone()}
    closed["cut"][-1] = True
    one, two = case.algorithm(), case.algorithm()
    one.learn(batch, Counts())
    two.learn(closed, Counts())
    assert close(one.state(), two.state()), (
        "cut of the batch's last row changes what is learned; a batch may end inside an episode, where cut is False: "
        "use drl.Rollouts, or treat the last row as a cut"
    )


def _mixed(kept: Any, noise: Any, keep: Tensor) -> Any:  # Any: a tensor, or a dict of tensors
    """Return sequences `[rows, length, ...]`: the steps of `kept` where `keep` is True, steps of `noise` elsewhere."""
    if isinstance(kept, dict):
        return {name: _mixed(part, noise[name], keep) for name, part in kept.items()}
    return torch.where(like(keep, kept), kept, noise.roll(-1, 0))


def _check_same(case: Case, batch: Batch, other: Batch, what: str) -> None:
    assert case.sequences is not None
    assert not equal(batch, other), f"the test's batch does not have {what}"
    one, two = case.algorithm(), case.algorithm()
    first, second = one.learn(batch, Counts()), two.learn(other, Counts())
    assert close(one.state(), two.state()), f"{what} changes what is learned"
    if first.priorities is not None and second.priorities is not None:
        valid = batch["valid"][:, case.sequences.burn_in :]
        same = close({"": first.priorities[valid]}, {"": second.priorities[valid]})
        assert same, f"{what} changes priorities of valid steps"

from types import SimpleNamespace

import torch

from drl_cli.algos.epochs import Epochs
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.testing.case import Together


def epochs_of(results, group=None):
    """Epochs whose steps have these metrics."""
    left = [[{"x": torch.tensor(x)} if x is not None else {} for x in epoch] for epoch in results]
    context = SimpleNamespace(group=group or ProcessGroup())
    return Epochs(SimpleNamespace(of=lambda rollout: left.pop(0), context=context), None)


def test_skipped_steps_count_for_nothing():
    epochs = epochs_of([[None], [1.0, None, 3.0], [5.0], [None, None]])
    epochs.run()
    assert epochs.mean("x").isnan()
    assert (epochs.update({"y": torch.ones(())}).metrics, epochs.update({}).steps) == ({}, 0)
    for mean in (2.0, 5.0, 5.0):  # of the last epoch with a step
        epochs.run()
        assert epochs.mean("x") == mean
    update = epochs.update({"y": torch.ones(())})
    assert (update.steps, update.skipped, update.metrics) == (3, 4, {"x": 3.0, "y": 1.0})


def test_the_mean_of_an_epoch_is_that_of_all_trainers():
    groups, found = Together.pair(), {}

    def run(rank):
        epochs = epochs_of([[1.0 + 2.0 * rank]], groups[rank])
        epochs.run()
        found[rank] = float(epochs.mean("x"))

    groups[0].run(run)
    assert found == {0: 2.0, 1: 2.0}

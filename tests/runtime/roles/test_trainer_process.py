"""Trainer: what it does with the process it lives in, with its device, and with the others."""

import warnings

import numpy as np
import pytest
import torch

from drl_cli.algos.base import Algorithm, Update
from drl_cli.optim.group import Context, ProcessGroup
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles import trainer as module
from drl_cli.runtime.roles.trainer import Trainer, choose_device


class Small(Algorithm):
    """Two parameters, and no more."""

    policy_parts = ("values",)

    def __init__(self, context):
        self.params = Params(context, values=2)
        self.optimizer = Optimizer(self.params, {"values": 0.5}, context)

    def update(self, batch, counts):
        return Update({})


class Noted(ProcessGroup):
    """One of several that notes whom it meets."""

    def __init__(self):
        super().__init__(1, 2)
        self.calls = []

    def listen(self, host):
        self.calls.append(("listen", host))
        return 5005

    def join(self, *args):
        self.calls.append(("join", *args))


def test_a_trainers_process_keeps_its_memory_and_warns_of_no_batch(monkeypatch):
    kept = []
    monkeypatch.setattr(module, "keep_freed_memory", lambda: kept.append(True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = Trainer(Small, Context(torch.device("cpu")))
        batch = np.zeros(3, np.float32)
        batch.flags.writeable = False  # as from shared memory
        assert trainer._to_device(batch).tolist() == [0, 0, 0]
    assert kept == [True]
    assert (trainer.opt_steps, trainer.calls, trainer.normalizer) == (0, 0, None)


def test_trainers_meet_at_the_address_of_the_first(monkeypatch):
    monkeypatch.setattr(module, "node_address", lambda: "10.0.0.3")
    group = Noted()
    trainer = Trainer(Small, Context(torch.device("cpu"), group))
    assert trainer.listen() == ("10.0.0.3", 5005)
    trainer.join(("10.0.0.9", 77))
    assert group.calls == [("listen", "10.0.0.3"), ("join", "10.0.0.9", 77, torch.device("cpu"))]


def test_what_it_learns_on_is_said():
    facts = Trainer(Small, Context(torch.device("cpu"))).describe()
    assert facts == {"device": "cpu", "threads": torch.get_num_threads(), "products": {"library": "torch"}}


@pytest.mark.parametrize("has_cuda", [False, True])
def test_devices(monkeypatch, has_cuda):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    assert choose_device("auto") == torch.device("cuda" if has_cuda else "cpu")
    assert choose_device("cpu") == torch.device("cpu")
    if has_cuda:
        assert choose_device("cuda") == torch.device("cuda")
    else:
        with pytest.raises(ValueError, match="torch finds no CUDA device"):
            choose_device("cuda")


def test_a_train_call_says_how_long_it_took(monkeypatch):
    moments = iter([100.0, 101.0, 103.5])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(moments))
    trainer = Trainer(Small, Context(torch.device("cpu")))
    report, priorities = trainer.train(BatchTrainingData(0, 1, 3, 99), {"reward": np.zeros((1, 3), np.float32)})
    assert (report.seconds, report.batch_s, report.opt_steps, report.num_updates) == (3.5, 1.0, 1, 1)
    assert priorities is None

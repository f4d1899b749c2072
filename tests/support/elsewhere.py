"""A trainer on a device without data (torch's meta device), which stands in for a GPU."""

import traceback
from contextlib import nullcontext

import numpy as np
import torch
from graphs import TINY, make_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drl_cli.envs.make import read_spec
from drl_cli.optim.params import Params
from drl_cli.runtime import factories
from drl_cli.runtime.messages import BatchTrainingData
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.runtime.trial_update import random_batch


class Watch(TorchDispatchMode):
    """Notes the lines of drl_cli that read numbers from the device, copy numbers to it, or mix devices.

    Every number that is read is 1. Single numbers on the CPU may be mixed with tensors on a device, as in torch.
    """

    def __init__(self):
        super().__init__()
        self.reads, self.copies, self.mixtures = [], [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_there, to = bool(tensors) and tensors[0].is_meta, kwargs.get("device")
        if is_there and name == "_local_scalar_dense":
            self._note(self.reads)
            return torch.ones((), dtype=tensors[0].dtype).item()
        if is_there and name == "nonzero":
            self._note(self.reads)
            return torch.zeros(1, tensors[0].ndim, dtype=torch.int64, device="meta")
        if is_there and name == "_to_copy" and to is not None and to.type == "cpu":
            self._note(self.reads)
            return torch.ones(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        if name in ("_to_copy", "copy_") and tensors[-1].device.type == "cpu" and (is_there or to is not None):
            self._note(self.copies)
        elif len({tensor.device for tensor in tensors if tensor.ndim}) > 1:
            self._note(self.mixtures)
        if isinstance(kwargs.get("generator"), torch.Generator) and to is not None and to.type == "meta":
            kwargs["generator"] = None  # there is no generator of this device
        return func(*args, **kwargs)

    @staticmethod
    def _note(lines):
        frames = [frame for frame in traceback.extract_stack() if "/drl_cli/" in frame.filename]
        lines.append(f"{frames[-1].filename.rpartition('/drl_cli/')[2]}: {frames[-1].line}")


def watched(monkeypatch, num_batches, *overrides):
    """Return what was seen in one train call with this number of batches."""
    config = make_config(*TINY, *overrides)
    spec = read_spec(config.env)
    params = factories.make_trainer(config, spec, "cpu", 0).publish(0, 0)[1]
    _, columns = random_batch(config, spec, params)

    def generator(self, name, seed, on_cpu=False):
        self.generators[name] = torch.Generator().manual_seed(seed)
        return self.generators[name]

    monkeypatch.setattr(Params, "generator", generator)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # there is none on this device
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    monkeypatch.setattr(Trainer, "_to_device", lambda self, tensor: tensor.to(self.device))
    trainer = factories.make_trainer(config, spec, "meta", 0)
    columns = {name: np.concatenate([column] * num_batches) for name, column in columns.items()}
    header = BatchTrainingData(num_batches)
    with Watch() as watch:
        trainer.train(header, columns)
    return watch

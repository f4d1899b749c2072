"""Parts of a user that raise when they are called, each an exception which no other process can unpickle."""

import torch

from drl_cli.replay.samplers import Sampler


class Lost(Exception):
    def __init__(self, what, where):
        super().__init__(f"{what} {where}")


class Torso(torch.nn.Linear):
    """Raises in the first update."""

    is_learning = True

    def __init__(self, spec, network):
        super().__init__(spec.shape[0], 4)
        self.size = 4

    def forward(self, obs):
        if torch.is_grad_enabled() == self.is_learning:
            raise Lost("no", "idea")
        return super().forward(obs.float())


class ActingTorso(Torso):
    """Raises when the worker chooses the first action."""

    is_learning = False


class Rows(Sampler):
    """Raises when replay draws the first batch."""

    def sample(self, size, num_batches, batch_size):
        raise Lost("no", "rows")

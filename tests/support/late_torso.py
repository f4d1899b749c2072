"""A user's torso that raises in the first update, an exception which no other process can unpickle."""

import torch


class Lost(Exception):
    def __init__(self, what, where):
        super().__init__(f"{what} {where}")


class Late(torch.nn.Linear):
    def __init__(self, spec, network):
        super().__init__(spec.shape[0], 4)
        self.size = 4

    def forward(self, obs):
        if torch.is_grad_enabled():
            raise Lost("no", "idea")
        return super().forward(obs.float())

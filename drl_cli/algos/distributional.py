"""Distributional: DQN whose network gives several numbers for each action, and learns a distribution from them."""

from drl_cli.algos import dqn
from drl_cli.utils.lazy import torch


class Algorithm(dqn.Algorithm):
    """The learner. Distributions are `[N, A, K]`, and of one action `[N, K]`."""

    def of_action(self, values: "torch.Tensor", action: "torch.Tensor") -> "torch.Tensor":
        values = values.view(len(action), -1, self.atoms)
        return values.gather(1, action.unsqueeze(-1).expand(-1, -1, self.atoms)).squeeze(1)

    def to_action(self, values: "torch.Tensor", action: "torch.Tensor", slope: "torch.Tensor") -> "torch.Tensor":
        d_values = torch.zeros_like(values).view(len(action), -1, self.atoms)
        d_values.scatter_(1, action.unsqueeze(-1).expand(-1, -1, self.atoms), slope.unsqueeze(1))
        return d_values.flatten(1)

    def mean_over(self, values: "torch.Tensor", probs: "torch.Tensor") -> "torch.Tensor":
        """The mixture of the actions' distributions."""
        return (probs.unsqueeze(-1) * values).sum(1)

"""Candidates and their priors, and searches over candidates in a Box."""

import numpy as np
import pytest
import torch
from torch import Tensor

from drl_cli.search import run
from drl_cli.search.model import Sampled, draw_tanh_gaussian


def test_the_prior_corrects_for_the_proposal() -> None:
    """Averaged over draws, pi / beta gives pi: the prior of many candidates has the policy's expectations."""
    random = torch.Generator().manual_seed(0)
    policy = torch.tensor([[0.5, -0.3]])  # mean and log of the deviation of one action
    noise = torch.randn(1, 20_000, 1, generator=random)
    plain, _ = draw_tanh_gaussian(policy, noise)
    wide, logits = draw_tanh_gaussian(policy, noise, width=1.5)
    prior = logits.softmax(-1)[..., None]
    for power in (1, 2):
        assert (prior * wide**power).sum().item() == pytest.approx((plain**power).mean().item(), abs=0.01)
    assert logits.exp().mean().item() == pytest.approx(1.0, abs=0.02)  # pi / beta, whose mean under beta is 1


class Target:
    """The reward of an action in a Box is high near 0.3 and -0.6; the episode goes on for one step."""

    def root(self, obs: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        return (obs, obs), torch.zeros(len(obs), 4), torch.zeros(len(obs))

    def recurrent(self, embedding: tuple[Tensor, Tensor], action: Tensor) -> tuple[object, ...]:
        num = len(action)
        assert (action.shape, len(embedding)) == ((num, 2), 2)
        reward = -(action - torch.tensor([0.3, -0.6])).square().sum(-1)
        return reward, torch.zeros(num), torch.zeros(num, 4), torch.zeros(num), embedding


@pytest.mark.parametrize("width", [1.0, 1.3])
def test_a_search_in_a_box_finds_the_best_candidate(width: float) -> None:
    noise = torch.randn(8, 101, 10, 2, generator=torch.Generator().manual_seed(1))
    model = Sampled(Target(), lambda policy, noise: draw_tanh_gaussian(policy, noise, width), noise)
    gumbel = np.zeros((8, 10))
    for found in (run.puct(model, torch.zeros(8, 3), 100), run.gumbel(model, torch.zeros(8, 3), 100, gumbel)):
        candidates = found.root[0]
        distance = (candidates - torch.tensor([0.3, -0.6])).square().sum(-1)
        chosen = distance.gather(-1, torch.from_numpy(found.action)[:, None])
        assert chosen.mean() < distance.min(-1).values.mean() + 0.15  # the mean of all candidates is 1.3
        np.testing.assert_allclose(found.q[found.visits > 0], -distance.numpy()[found.visits > 0], atol=1e-6)
        assert candidates.shape == (8, 10, 2)
        torch.testing.assert_close(candidates, (noise[:, 0] * width).tanh())

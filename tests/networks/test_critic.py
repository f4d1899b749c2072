"""drl.Critic: a drl.MLP of features and an action, in torch and in numpy."""

import numpy as np
import pytest
import torch

import drl_cli.api as drl
from drl_cli.networks.acting import ActingCritic

NETWORK = drl.NetworkConfig((8,), "relu", "uniform")


@pytest.mark.parametrize(("ensemble", "outputs", "shape"), [(None, 1, ()), (1, 1, (1,)), (3, 1, (3,)), (2, 4, (2,))])
def test_the_values_are_those_of_an_mlp_of_features_and_action(ensemble, outputs, shape):
    critic = drl.Critic(4, 2, NETWORK, ensemble=ensemble, outputs=outputs)
    x, action = torch.randn(5, 4), torch.randn(5, 2)
    values = critic(x, action)
    assert values.shape == (*shape, 5, *([outputs] if outputs > 1 else []))
    plain = drl.MLP(6, outputs, NETWORK, ensemble=ensemble or 1)
    plain.load_state_dict(critic.state_dict())
    assert torch.equal(values.flatten(), plain(torch.cat([x, action], -1)).flatten())
    assert torch.equal(critic(x, action, first=1).flatten(), values.flatten()[: 5 * outputs])


@pytest.mark.parametrize("outputs", [1, 3])
def test_one_critic_acts_in_numpy(outputs):
    critic, acting = drl.Critic(4, 2, NETWORK, outputs=outputs), ActingCritic(4, 2, NETWORK, outputs=outputs)
    assert len(acting.load(critic.flat.detach().numpy())) == 0
    x, action = torch.randn(5, 4), torch.randn(5, 2)
    np.testing.assert_allclose(acting(x.numpy(), action.numpy()), critic(x, action).detach().numpy(), atol=1e-6)
    assert acting.is_plain
    assert not ActingCritic(4, 2, NETWORK, ensemble=1).is_plain

import math

import pytest
import torch

from drl_cli.algos.off_policy.mrq import info_nce

B, L, Z = 6, 4, 5


def embeddings(seed=0):
    """Return predicted embeddings, targets and `valid`: windows have 1 to 4 steps, and one step has a single row."""
    rng = torch.Generator().manual_seed(seed)
    predicted, target = torch.randn(2, B, L, Z, generator=rng, dtype=torch.float64)
    lengths = torch.tensor([4, 3, 1, 2, 3, 2])
    return predicted.requires_grad_(), target, torch.arange(L) < lengths[:, None]


def slow(predicted, target, valid, temperature):
    """Return the losses of the valid steps, in plain Python."""

    def similarity(i, k, step):
        a, b = predicted[i, step].tolist(), target[k, step].tolist()
        norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
        return sum(x * y for x, y in zip(a, b, strict=True)) / norms / temperature

    found = {}
    for i, step in valid.nonzero().tolist():
        others = [k for k in range(B) if valid[k, step]]
        total = sum(math.exp(similarity(i, k, step)) for k in others)
        found[i, step] = -math.log(math.exp(similarity(i, i, step)) / total)
    return found


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_info_nce_equals_its_definition(temperature):
    predicted, target, valid = embeddings()
    loss = info_nce(predicted, target, valid, temperature)
    assert loss.shape == (B, L)
    expected = slow(predicted, target, valid, temperature)
    assert expected[0, 3] == 0  # only row 0 has this step, so there is nothing to tell apart
    for (i, step), value in expected.items():
        assert loss[i, step].item() == pytest.approx(value, rel=1e-9, abs=1e-9)


def test_the_gradient_of_info_nce():
    predicted, target, valid = embeddings()
    assert torch.autograd.gradcheck(lambda each: info_nce(each, target, valid, 0.3)[valid], predicted)


def test_padding_has_a_finite_gradient_and_no_effect():
    predicted, target, valid = embeddings()
    predicted, target = (each.detach().where(valid[..., None], 0.0).float() for each in (predicted, target))
    gradients = []
    for padding in (0.0, 1e6):
        given, goal = (each.where(valid[..., None], padding) for each in (predicted, target))
        given.requires_grad_()
        losses = info_nce(given, goal, valid, 0.1)
        losses.where(valid, 0.0).sum().backward()
        assert losses.isfinite().all()
        gradients.append(given.grad)
    assert torch.equal(*gradients)
    assert not gradients[0][~valid].any()
    assert (gradients[0][:, :3][valid[:, :3]] != 0).all()


def test_the_loss_of_nothing_in_common_is_the_logarithm_of_the_number_of_rows():
    """It is 0 up to rounding if each prediction points to its target, and all targets differ."""
    valid, goals = torch.ones(B, 1, dtype=torch.bool), torch.eye(B)[:, None]
    same = info_nce(torch.ones(B, 1, B), goals, valid, 0.1)
    torch.testing.assert_close(same, torch.full((B, 1), math.log(B)))
    assert info_nce(7 * goals, goals, valid, 0.05).max() < 1e-7

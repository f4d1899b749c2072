import pytest
import torch

from drl_cli.chains.record import Draw, drawn

aten = torch.ops.aten


def draws_of(*made, seed=0):
    """Return draws `(operation, size, generator)`; the generators are given as numbers."""
    generators = [torch.Generator().manual_seed(seed + i) for i in range(2)]
    return [Draw(operation, ([*size],), {"generator": generators[i]}, None) for operation, size, i in made]


NORMAL, UNIFORM = aten.randn.generator, aten.rand.generator


@pytest.mark.parametrize("made", [[(NORMAL, (5, 3), 0), (UNIFORM, (16,), 0)], [(NORMAL, (16,), 0), (NORMAL, (4,), 1)]])
def test_numbers_of_several_updates_are_those_of_one_after_another(made):
    one, other = draws_of(*made), draws_of(*made)
    expected = [[draw() for draw in one] for _ in range(3)]
    real = drawn(other, 3)
    for i, rows in enumerate(expected):
        for values, row in zip(real, rows, strict=True):
            assert torch.equal(values[i], row)


def test_numbers_in_place_and_with_other_arguments():
    generator, again = (torch.Generator().manual_seed(0) for _ in range(2))
    like = ((16,), torch.float32, torch.device("cpu"))
    draws = [Draw(aten.bernoulli_.float, (0.5,), {"generator": generator}, like)]
    (found,) = drawn(draws, 2)
    assert torch.equal(found[0], torch.empty(16).bernoulli_(0.5, generator=again))
    assert torch.equal(found[1], torch.empty(16).bernoulli_(0.5, generator=again))
    assert drawn([], 3) == []

import pytest
import torch

from drl_cli.chains.record import Draw, drawn

aten = torch.ops.aten


def draws_of(*made, seed=0):
    """Return draws `(operation, size, generator)`; the generators are given as numbers."""
    generators = [torch.Generator().manual_seed(seed + i) for i in range(2)]
    return [Draw(operation, ([*size],), {"generator": generators[i]}, None) for operation, size, i in made]


NORMAL, UNIFORM = aten.randn.generator, aten.rand.generator


@pytest.mark.parametrize(
    ("made", "calls"),
    [
        ([(NORMAL, (64, 4), 0)], 1),
        ([(NORMAL, (64, 4), 0), (NORMAL, (16,), 0)], 1),
        ([(UNIFORM, (4, 4, 2), 0), (UNIFORM, (16, 1), 0)], 1),
        ([(NORMAL, (5, 3), 0)], 3),  # 15 numbers
        ([(NORMAL, (16,), 0), (UNIFORM, (16,), 0)], 6),
        ([(NORMAL, (16,), 0), (NORMAL, (16,), 1)], 6),
    ],
)
def test_numbers_of_several_updates_are_those_of_one_after_another(made, calls):
    one, other = draws_of(*made), draws_of(*made)
    expected = [[draw() for draw in one] for _ in range(3)]
    counted = []

    def counting(draw):
        def operation(*args, **kwargs):
            counted.append(args)
            return draw.operation(*args, **kwargs)

        return operation

    real = drawn(other, 3)
    for i, rows in enumerate(expected):
        for values, row in zip(real, rows, strict=True):
            assert torch.equal(values[i], row)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.kwargs["generator"].get_state(), b.kwargs["generator"].get_state())


def test_numbers_in_place_and_with_other_arguments():
    generator, again = (torch.Generator().manual_seed(0) for _ in range(2))
    like = ((16,), torch.float32, torch.device("cpu"))
    draws = [Draw(aten.bernoulli_.float, (0.5,), {"generator": generator}, like)]
    (found,) = drawn(draws, 2)
    assert torch.equal(found[0], torch.empty(16).bernoulli_(0.5, generator=again))
    assert torch.equal(found[1], torch.empty(16).bernoulli_(0.5, generator=again))
    assert drawn([], 3) == []

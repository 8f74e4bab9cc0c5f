"""Tensors laid end to end and cut in slices: what belongs to whom."""

import random

import pytest
import torch

from minidist.parallel.sharding.flat import Flat


def shapes_of(seed: int) -> list[torch.Size]:
    source = random.Random(seed)
    shapes = [(), (0,), (1,), (7,), (3, 5), (2, 3, 4), (2, 0, 3), (11,)]
    return [torch.Size(source.choice(shapes)) for _ in range(source.randrange(7))]


EXAMPLE = [torch.Size([4]), torch.Size([3]), torch.Size([3])]  # the one of the docstring


def test_worked_example() -> None:
    letters = torch.tensor([ord(c) for c in "aaaabbbccc.."])
    owned = []
    for rank in range(4):
        flat = Flat(EXAMPLE, 4, rank)
        assert (flat.numel, flat.padded, flat.shard_numel) == (10, 12, 3)
        owned.append("".join(map(chr, flat.shard(letters).tolist())))
    assert owned == ["aaa", "abb", "bcc", "c.."]
    assert Flat(EXAMPLE, 4, 1).ranges() == [(3, 4), (0, 2), (0, 0)]
    assert Flat(EXAMPLE, 4, 0).ranges(rank=3) == [(4, 4), (3, 3), (2, 3)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_pieces_of_all_ranks_make_every_tensor_again(ranks: int) -> None:
    for seed in range(20):
        shapes = shapes_of(seed)
        flats = [Flat(shapes, ranks, rank) for rank in range(ranks)]
        first = flats[0]
        whole = torch.arange(1.0, first.padded + 1)
        first.padding(whole).zero_()
        pieces = [flat.pieces(flat.shard(whole)) for flat in flats]
        for index, view in enumerate(first.views(whole)):
            assert view.shape == shapes[index]
            again = torch.cat([own[index] for own in pieces])
            assert torch.equal(again, view.flatten())
            for flat, own in zip(flats, pieces, strict=True):
                start, end = flat.ranges()[index]
                assert torch.equal(own[index], view.flatten()[start:end])
                assert first.ranges(flat.rank)[index] == (start, end)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_slices_are_equal_and_padding_is_less_than_an_element_each(ranks: int) -> None:
    for seed in range(20):
        shapes = shapes_of(seed)
        flat = Flat(shapes, ranks, 0)
        assert flat.numel == sum(shape.numel() for shape in shapes)
        assert flat.numel <= flat.padded < flat.numel + ranks
        assert flat.padded == ranks * flat.shard_numel
        whole = torch.arange(flat.padded)
        slices = [flat.shard(whole, rank) for rank in range(ranks)]
        assert torch.equal(torch.cat(slices), whole)
        assert len(flat.padding(whole)) == flat.padded - flat.numel


def test_all_are_views() -> None:
    flat = Flat(EXAMPLE, 4, 1)
    whole = torch.zeros(flat.padded)
    flat.views(whole)[1].fill_(1)
    flat.shard(whole)[0] = 2
    flat.pieces(flat.shard(whole))[1][1] = 3
    flat.padding(whole).fill_(4)
    assert whole.tolist() == [0, 0, 0, 2, 1, 3, 1, 0, 0, 0, 4, 4]


def test_memory_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match="split"):
        Flat(EXAMPLE, 4, 0).views(torch.zeros(10))
    with pytest.raises(RuntimeError, match="split"):
        Flat(EXAMPLE, 4, 0).pieces(torch.zeros(12))

"""Tensors laid end to end and cut in slices: what belongs to whom."""

import random

import pytest
import torch

from minidist.parallel.sharding.flat import Flat

EXAMPLE = [torch.Size([4]), torch.Size([3]), torch.Size([3])]  # the one of the docstring


def test_worked_example() -> None:
    letters = torch.tensor([ord(c) for c in "aaaabbbccc.."])
    flats = [Flat(EXAMPLE, 4, rank) for rank in range(4)]
    owned = ["".join(map(chr, flat.shard(letters).tolist())) for flat in flats]
    assert owned == ["aaa", "abb", "bcc", "c.."]
    assert flats[1].ranges() == [(3, 4), (0, 2), (0, 0)]
    assert flats[3].ranges() == [(4, 4), (3, 3), (2, 3)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_slices_are_equal_and_their_pieces_make_every_tensor_again(ranks: int) -> None:
    source = random.Random(ranks)
    kinds = [(), (0,), (1,), (7,), (3, 5), (2, 3, 4), (2, 0, 3), (11,)]
    for count in range(20):
        shapes = [torch.Size(source.choice(kinds)) for _ in range(count % 7)]
        flats = [Flat(shapes, ranks, rank) for rank in range(ranks)]
        first = flats[0]
        assert first.numel == sum(shape.numel() for shape in shapes)
        assert first.numel <= first.padded == ranks * first.shard_numel < first.numel + ranks
        whole = torch.arange(first.padded)
        slices = [flat.shard(whole) for flat in flats]
        assert torch.equal(torch.cat(slices), whole)
        assert len(first.padding(whole)) == first.padded - first.numel
        pieces = [flat.pieces(own) for flat, own in zip(flats, slices, strict=True)]
        for index, view in enumerate(first.views(whole)):
            assert view.shape == shapes[index]
            assert torch.equal(torch.cat([own[index] for own in pieces]), view.flatten())


def test_all_are_views() -> None:
    flat = Flat(EXAMPLE, 4, 1)
    whole = torch.zeros(flat.padded)
    flat.views(whole)[1].fill_(1)
    flat.shard(whole)[0] = 2
    flat.pieces(flat.shard(whole))[1][1] = 3
    flat.padding(whole).fill_(4)
    assert whole.tolist() == [0, 0, 0, 2, 1, 3, 1, 0, 0, 0, 4, 4]

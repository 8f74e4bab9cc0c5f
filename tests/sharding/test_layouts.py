"""Tensors laid end to end and cut in slices, or split by rows: what belongs to whom."""

import math
import random
from itertools import product

import pytest
import torch

from minidist.parallel.sharding.layouts import Flat, RowLayout

EXAMPLE = [torch.Size([4]), torch.Size([3]), torch.Size([3])]  # the one of the docstring


def test_worked_example() -> None:
    letters = torch.tensor([ord(c) for c in "aaaabbbccc.."])
    flats = [Flat(EXAMPLE, 4, rank) for rank in range(4)]
    owned = ["".join(map(chr, flat.shard(letters).tolist())) for flat in flats]
    assert owned == ["aaa", "abb", "bcc", "c.."]
    assert flats[1].ranges() == [(3, 4), (0, 2), (0, 0)]
    assert flats[3].ranges() == [(4, 4), (3, 3), (2, 3)]


@pytest.mark.claim("D10", "E5")
def test_slices_are_equal_and_their_pieces_make_every_tensor_again() -> None:
    source = random.Random(1)
    kinds = [(), (0,), (1,), (7,), (3, 5), (2, 3, 4), (2, 0, 3), (11,)]
    for ranks, count in product([1, 2, 3, 5, 8], range(20)):
        shapes = [torch.Size(source.choice(kinds)) for _ in range(count % 7)]
        flats = [Flat(shapes, ranks, rank) for rank in range(ranks)]
        first = flats[0]
        assert first.numel == sum(shape.numel() for shape in shapes)
        assert first.numel <= first.padded == ranks * first.shard_numel < first.numel + ranks
        whole = torch.arange(first.padded)
        slices = [flat.shard(whole) for flat in flats]
        assert torch.equal(torch.cat(slices), whole)
        parts = first.parts(whole)
        assert torch.equal(torch.cat([*parts, whole[first.numel :]]), whole)
        pieces = [flat.pieces(own) for flat, own in zip(flats, slices, strict=True)]
        for index, part in enumerate(parts):
            assert len(part) == shapes[index].numel()
            assert torch.equal(torch.cat([own[index] for own in pieces]), part)


@pytest.mark.claim("E5")
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_rank_gets_its_rows_and_all_together_have_every_tensor(ranks: int) -> None:
    shapes = [torch.Size(s) for s in [(3, 2), (), (7,), (0, 4), (1, 5), (4, 2, 2)]]
    tensors = [torch.randn(shape) for shape in shapes]
    rowed = [shape or torch.Size([1]) for shape in shapes]
    padding = sum(-shape[0] % ranks * math.prod(shape[1:]) for shape in rowed)
    padded = RowLayout(shapes, ranks, 0).padded
    assert padded == sum(shape.numel() for shape in shapes) + padding
    table = torch.full((padded,), 7.0)
    RowLayout(shapes, ranks, 0).pack(tensors, table)
    for rank in range(ranks):
        layout = RowLayout(shapes, ranks, rank)
        shard = table.view(ranks, -1)[rank]
        assert len(shard) == layout.shard_numel
        for index, piece in enumerate(layout.pieces(shard)):
            assert torch.equal(piece, layout.piece(index, tensors[index])), (rank, index)
            chunks = tensors[index].chunk(ranks) if shapes[index] else ()
            mine = chunks[rank] if rank < len(chunks) else piece[:0]
            assert not chunks or torch.equal(piece, mine), "as torch's chunks"
        assert all(map(torch.equal, layout.tensors(table), tensors))
    assert table.sum() == pytest.approx(sum(t.sum() for t in tensors).item(), abs=1e-4)

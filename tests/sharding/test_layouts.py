"""Both layouts: every rank gets its pieces, and all together have everything."""

from typing import Any

import pytest
import torch

from minidist.parallel.sharding.flat import Flat
from minidist.parallel.sharding.layouts import RowLayout


@pytest.mark.parametrize("kind", [RowLayout, Flat])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_layouts_give_every_rank_its_part_and_all_together_the_whole(kind: Any, ranks: int) -> None:
    shapes = [torch.Size(s) for s in [(3, 2), (), (7,), (0, 4), (1, 5), (4, 2, 2)]]
    tensors = [torch.randn(shape) for shape in shapes]
    table = torch.full((kind(shapes, ranks, 0).padded,), 7.0)
    kind(shapes, ranks, 0).pack(tensors, table)
    for rank in range(ranks):
        layout = kind(shapes, ranks, rank)
        local = table.view(ranks, -1)[rank]
        for index, view in enumerate(layout.pieces(local)):
            assert torch.equal(view, layout.piece(index, tensors[index])), (rank, index)
        assert len(local) == layout.shard_numel == layout.padded // ranks
        assert all(map(torch.equal, layout.tensors(table), tensors))
        flat = table if layout.in_place else torch.empty(layout.flat_numel)
        layout.unpack(table, flat)
        assert all(map(torch.equal, layout.views(flat), tensors))
    assert table.sum() == pytest.approx(sum(t.sum() for t in tensors).item(), abs=1e-4)

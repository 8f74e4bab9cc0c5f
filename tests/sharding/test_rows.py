"""Tensors split by rows: every rank gets its pieces, and all together have everything."""

import pytest
import torch

from minidist.parallel.sharding.rows import RowLayout


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_rank_gets_its_rows_and_all_together_have_every_tensor(ranks: int) -> None:
    shapes = [torch.Size(s) for s in [(3, 2), (), (7,), (0, 4), (1, 5), (4, 2, 2)]]
    tensors = [torch.randn(shape) for shape in shapes]
    table = torch.full((RowLayout(shapes, ranks, 0).padded,), 7.0)
    RowLayout(shapes, ranks, 0).pack(tensors, table)
    for rank in range(ranks):
        layout = RowLayout(shapes, ranks, rank)
        shard = table.view(ranks, -1)[rank]
        assert len(shard) == layout.shard_numel
        for index, piece in enumerate(layout.pieces(shard)):
            assert torch.equal(piece, layout.piece(index, tensors[index])), (rank, index)
        assert all(map(torch.equal, layout.tensors(table), tensors))
    assert table.sum() == pytest.approx(sum(t.sum() for t in tensors).item(), abs=1e-4)

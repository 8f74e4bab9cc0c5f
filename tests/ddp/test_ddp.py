"""What modules and training loops do under DDP; `tests/proof` trains it beside one process."""

from typing import Any

import torch.distributed as dist

from minidist import DistributedDataParallel, launch
from tests.support.training import mlp, numbers

SMALL = {"bucket_cap_mb": 200e-6, "first_bucket_mb": 50e-6}  # several buckets of few parameters


def once(model: Any, rank: int, step: int) -> None:
    model(numbers(rank, step, 3, 6)).square().mean().backward()


def test_views_lie_in_the_buckets_also_in_no_sync_and_after_the_rebuild() -> None:
    def inside(ddp: DistributedDataParallel) -> bool:
        return all(
            p.grad is not None and p.grad.data_ptr() == bucket.views[p].data_ptr()
            for bucket in ddp.buckets
            for p in bucket.parameters()
        )

    def run() -> list[bool]:
        found = []
        for view in (True, False):
            ddp = DistributedDataParallel(mlp(6, 5, 4), gradient_as_bucket_view=view, **SMALL)
            for step in range(3):
                ddp.zero_grad(set_to_none=step == 1)
                with ddp.no_sync():
                    once(ddp, dist.get_rank(), step + 100)
                found.append(inside(ddp))
                once(ddp, dist.get_rank(), step)
                found.append(inside(ddp))
            assert ddp.steps == 3, "those in no_sync are not counted"
            assert sorted(ddp.arrivals) == ["0.bias", "0.weight", "2.bias", "2.weight"]
            assert {name[0] for name in ddp.arrivals[:2]} == {"2"}, "the last layer's come first"
        return found

    assert launch(run, 2) == [[True] * 6 + [False] * 6] * 2

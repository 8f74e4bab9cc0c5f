"""How parameters are put into buckets, and gradients into buffers."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from minidist import DistributedDataParallel, launch
from minidist.parallel.ddp.bucket import Bucket, build_buckets
from minidist.schedule.buckets import assign
from tests.support.training import mlp, numbers


@pytest.mark.claim("C5")
def test_a_bucket_is_closed_once_it_holds_its_cap() -> None:
    assert assign([4, 4, 4, 4], 4, 8) == [[3], [2, 1], [0]]
    assert assign([4, 4, 4, 4], 0, 0) == [[3], [2], [1], [0]]
    assert assign([4, 4, 4, 4], math.inf, math.inf) == [[3, 2, 1, 0]]
    assert assign([0, 4, 0], 4, 4) == [[2, 1], [0]]
    assert assign([4], 1, 1) == [[0]]


def test_assigned_as_torch_assigns() -> None:
    """torch's own function goes forward; DDP hands it the parameters in reverse."""
    source = torch.Generator().manual_seed(0)
    for _ in range(20):
        sizes = torch.randint(1, 40, (17,), generator=source).tolist()
        tensors = [torch.empty(size) for size in reversed(sizes)]
        theirs, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [64, 160])
        last = len(sizes) - 1
        assert assign([4 * n for n in sizes], 64, 160) == [[last - i for i in b] for b in theirs]


def named(**tensors: torch.Tensor) -> list[tuple[str, Parameter]]:
    return [(name, Parameter(tensor)) for name, tensor in tensors.items()]


def test_dtypes_have_buckets_of_their_own_in_the_order_in_which_they_become_full() -> None:
    order = named(
        a=torch.zeros(2),
        b=torch.zeros(2, dtype=torch.float64),
        c=torch.zeros(2),
        d=torch.zeros(2, dtype=torch.float64),
        e=torch.zeros(2),
    )
    buckets = build_buckets(order, 8, 16)
    assert [bucket.names for bucket in buckets] == [("e",), ("d",), ("b",), ("c", "a")]
    assert [b.index() for b in buckets] == [0, 1, 2, 3]
    assert [b.is_last() for b in buckets] == [False, False, False, True]
    assert [bucket.nbytes for bucket in buckets] == [8, 16, 16, 16]


LAYOUTS = [
    torch.randn(2, 3, 4, 5),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(3, 2).t(),
    torch.randn(()),
    torch.randn(1, 3, 1),
    torch.randn(0, 3),
    torch.randn(4, 6)[:, ::2],  # with gaps, which the view has not
]


def test_views_have_the_parameters_shape_and_strides_and_lie_apart() -> None:
    offenders = []
    for layout in LAYOUTS:
        pairs = named(before=torch.zeros(3), middle=layout, after=torch.zeros(2))
        bucket = Bucket(0, pairs, last=True)
        view = bucket.views[pairs[1][1]]
        stride = layout.stride() if layout.stride() != (6, 2) else (3, 1)
        view.fill_(1)
        apart = bucket.flat.tolist() == [0] * 3 + [1] * layout.numel() + [0] * 2
        if (view.shape, view.stride(), apart) != (layout.shape, stride, True):
            offenders.append(f"{layout.shape}, {layout.stride()}: {view.stride()}, {bucket.flat}")
    assert not offenders, "\n".join(offenders)


def test_a_hook_sees_the_bucket_as_torchs_do() -> None:
    net = nn.Linear(3, 2)
    seen = Bucket(2, list(net.named_parameters()), last=True)
    assert (seen.index(), seen.is_last()) == (2, True)
    assert seen.buffer() is seen.flat
    assert [g.shape for g in seen.gradients()] == [p.shape for p in seen.parameters()]
    seen.gradients()[1].fill_(7)
    assert seen.buffer().tolist() == [0] * 6 + [7] * 2
    seen.set_buffer(torch.ones(8))
    assert seen.buffer().tolist() == [1] * 8
    assert seen.flat.tolist() == [0] * 6 + [7] * 2


def test_views_lie_in_the_buckets_also_in_no_sync_and_after_the_rebuild() -> None:
    def inside(ddp: DistributedDataParallel) -> bool:
        return all(
            p.grad is not None and p.grad.data_ptr() == bucket.views[p].data_ptr()
            for bucket in ddp.buckets
            for p in bucket.parameters()
        )

    def once(ddp: DistributedDataParallel, step: int) -> None:
        ddp(numbers(dist.get_rank(), step, 3, 6)).square().mean().backward()

    def run() -> list[bool]:
        small = {"bucket_cap_mb": 200e-6, "first_bucket_mb": 50e-6}  # several of few parameters
        found = []
        for view in (True, False):
            ddp = DistributedDataParallel(mlp(6, 5, 4), gradient_as_bucket_view=view, **small)
            for step in range(3):
                ddp.zero_grad(set_to_none=step == 1)
                with ddp.no_sync():
                    once(ddp, step + 100)
                found.append(inside(ddp))
                once(ddp, step)
                found.append(inside(ddp))
            assert ddp.steps == 3, "those in no_sync are not counted"
            assert sorted(ddp.arrivals) == ["0.bias", "0.weight", "2.bias", "2.weight"]
            assert {name[0] for name in ddp.arrivals[:2]} == {"2"}, "the last layer's come first"
        return found

    assert launch(run, 2) == [[True] * 6 + [False] * 6] * 2

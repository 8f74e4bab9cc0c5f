"""How parameters are put into buckets, and gradients into buffers."""

import math

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from minidist.parallel.ddp.bucket import Bucket, build_buckets
from minidist.parallel.sharding.partition import assign


@pytest.mark.parametrize(
    ("nbytes", "first", "cap", "buckets"),
    [
        ([4, 4, 4, 4], 4, 8, [[3], [2, 1], [0]]),
        ([4, 4, 4, 4], 0, 0, [[3], [2], [1], [0]]),
        ([4, 4, 4, 4], math.inf, math.inf, [[3, 2, 1, 0]]),
        ([0, 4, 0], 4, 4, [[2, 1], [0]]),
        ([4], 1, 1, [[0]]),
    ],
)
def test_a_bucket_is_closed_once_it_holds_its_cap(
    nbytes: list[int], first: float, cap: float, buckets: list[list[int]]
) -> None:
    assert assign(nbytes, first, cap) == buckets


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


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: str(each.stride()))
def test_views_have_the_parameters_shape_and_strides_and_lie_apart(layout: torch.Tensor) -> None:
    pairs = named(before=torch.zeros(3), middle=layout, after=torch.zeros(2))
    bucket = Bucket(0, pairs, last=True)
    view = bucket.views[pairs[1][1]]
    assert view.shape == layout.shape
    assert view.stride() == (layout.stride() if layout.stride() != (6, 2) else (3, 1))
    view.fill_(1)
    assert bucket.flat.tolist() == [0] * 3 + [1] * layout.numel() + [0] * 2


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

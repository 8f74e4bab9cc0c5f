"""The calls that torch's documentation shows for ZeroRedundancyOptimizer, made of ours.

Closures, schedulers and added groups are in test_optimizer, beside the bare optimizer.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW

from minidist import DistributedDataParallel, ZeroOptimizer, launch
from tests.support.training import mlp, squares


def ready(zero: Any, model: Any) -> None:
    zero.zero_grad()
    squares(model, dist.get_rank(), 0).backward()


def clipped(zero: Any, model: Any) -> None:
    """On DDP's averaged gradients torch's own is right."""
    ready(zero, model)
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e-2) > 1e-2
    zero.step()


CALLS: list[Callable[[Any, Any], object]] = [
    lambda zero, model: (ready(zero, model), zero.step()),
    lambda zero, model: zero.zero_grad(set_to_none=False),
    clipped,
]


def test_the_same_calls_do_the_same() -> None:
    def run() -> float:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of torch itself

        torch.manual_seed(1)
        net = mlp(5, 7, 3)
        mine = DistributedDataParallel(net)
        theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(net))
        ours = ZeroOptimizer(mine.parameters(), AdamW, None, True, False, lr=0.1)
        torchs = ZeroRedundancyOptimizer(theirs.parameters(), optimizer_class=AdamW, lr=0.1)
        off = []
        for call in CALLS:
            for model, optimizer in ((mine, ours), (theirs, torchs)):
                call(optimizer, model)
                ready(optimizer, model)
                optimizer.step()
            pairs = zip(mine.parameters(), theirs.parameters(), strict=True)
            off += [float((one - other).detach().abs().max()) for one, other in pairs]
        return max(off)

    assert all(off < 1e-12 for off in launch(run, 2))


def test_its_state_is_saved_and_loaded_by_one_call_on_all_ranks() -> None:
    """torch: consolidate_state_dict(to), then state_dict() there; load_state_dict() everywhere."""

    def run() -> bool:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = DistributedDataParallel(mlp(4, 4))
        zero = ZeroOptimizer(model.parameters(), AdamW, lr=0.1)
        ready(zero, model)
        zero.step()
        with pytest.raises(RuntimeError, match=r"state_dict: .* call full_state_dict\(\) on all"):
            zero.state_dict()
        full = zero.full_state_dict()
        for other in (
            ZeroOptimizer(mlp(4, 4).parameters(), AdamW, gradients="local", lr=1),
            ZeroRedundancyOptimizer(mlp(4, 4).parameters(), AdamW, lr=1),
        ):
            other.load_state_dict(full)
            assert other.param_groups[0]["lr"] == 0.1
        return bool(full["state"])

    assert launch(run, 2) == [True] * 2

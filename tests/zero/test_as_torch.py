"""The calls that torch's documentation shows for ZeroRedundancyOptimizer, made of ours.

Closures, schedulers and added groups are in test_optimizer, beside the bare optimizer.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW

from minidist import DistributedDataParallel, ZeroOptimizer, launch
from tests.support.training import mlp, squares


def test_the_same_calls_do_the_same_and_one_call_saves_the_state() -> None:
    """torch: consolidate_state_dict(to), then state_dict() there; load_state_dict() everywhere."""

    def run() -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of torch itself

        torch.manual_seed(1)
        net = mlp(5, 7, 3)
        mine = DistributedDataParallel(net)
        theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(net))
        zero = ZeroOptimizer(mine.parameters(), AdamW, None, True, False, lr=0.1)
        torchs = ZeroRedundancyOptimizer(theirs.parameters(), optimizer_class=AdamW, lr=0.1)
        for step in range(4):
            for model, optimizer in ((mine, zero), (theirs, torchs)):
                optimizer.zero_grad(set_to_none=step != 2)
                squares(model, dist.get_rank(), step).backward()
                if step == 1:  # on DDP's averaged gradients torch's own is right
                    assert nn.utils.clip_grad_norm_(model.parameters(), 1e-2) > 1e-2
                optimizer.step()
            for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

        with pytest.raises(RuntimeError, match=r"state_dict: .* call full_state_dict\(\) on all"):
            zero.state_dict()
        full = zero.full_state_dict()
        assert full["state"]
        for loads in (
            ZeroOptimizer(mlp(5, 7, 3).parameters(), AdamW, gradients="local", lr=1),
            ZeroRedundancyOptimizer(mlp(5, 7, 3).parameters(), AdamW, lr=1),
        ):
            loads.load_state_dict(full)
            assert loads.param_groups[0]["lr"] == 0.1

    launch(run, 2)

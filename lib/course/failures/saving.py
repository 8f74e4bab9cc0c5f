"""Checkpoints and optimizers: who writes the file, and whose parameters are stepped."""

# mypy: disable-error-code=no-untyped-call

from __future__ import annotations

import io
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from course.failures.case import Case, Kit
from course.training import loop, models


def all_ranks_write(kit: Kit) -> str:
    """Every rank saves to one path. Rank 1 is slower; rank 0 restarts and finds half a file."""
    path, state = kit.folder / "checkpoint.pt", {"step": 5, "weights": torch.ones(500)}
    if dist.get_rank() == 0:
        torch.save(state, path)
    kit.barrier()
    if dist.get_rank() == 1:
        whole = io.BytesIO()
        torch.save(state, whole)
        path.write_bytes(whole.getvalue()[:1000])  # as far as it has come
    kit.barrier()
    return _found(path)


def all_ranks_write_repaired(kit: Kit) -> str:
    """Rank 0 writes another file and renames it; the others wait until it is there."""
    path = kit.folder / "checkpoint.pt"
    loop.save({"step": 5, "weights": torch.ones(500)}, path)
    return _found(path)


def _found(path: Path) -> str:
    try:
        return f"found step {torch.load(path)['step']}"
    except (RuntimeError, EOFError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def optimizer_too_early(kit: Kit) -> str:
    """FSDP replaces the parameters; the optimizer steps those that were there before."""
    torch.manual_seed(0)
    net = models.mlp((4, 8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return _losses(kit.fully_shard(net), optimizer)


def optimizer_too_early_repaired(kit: Kit) -> str:
    """Wrap first, then build the optimizer from what the module has now."""
    torch.manual_seed(0)
    net = kit.fully_shard(models.mlp((4, 8, 1)))
    return _losses(net, torch.optim.SGD(net.parameters(), lr=0.1))


def _losses(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    losses = []
    for _ in range(3):
        loss = net(torch.ones(5, 4)).sub(1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(f"{loss.item():.3f}")
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = sum(id(p) in held for p in net.parameters())
    return f"losses {', '.join(losses)}; the optimizer holds {own} of the model's parameters"


CASES = [
    Case(
        "A checkpoint that every rank writes",
        all_ranks_write,
        all_ranks_write_repaired,
        "when the file was written, and by whom; its size",
        "rank 0 writes aside and renames, then a barrier; or torch.distributed.checkpoint, where "
        "each rank has a file of its own",
        "load what was saved, in a test; keep the last two",
    ),
    Case(
        "An optimizer built before wrapping",
        optimizer_too_early,
        optimizer_too_early_repaired,
        "a loss that stays exactly the same",
        "fully_shard first, then the optimizer",
        "assert that the optimizer's parameters are the model's; minidist raises at zero_grad()",
    ),
]

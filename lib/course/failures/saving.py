"""Checkpoints and optimizers: who writes the file, and whose parameters are stepped."""

# mypy: disable-error-code=no-untyped-call

import io
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from course.failures.case import Case, Kit
from course.training import models


def case_11(kit: Kit) -> str:
    """Every rank saves to one path. Rank 1 is slower; rank 0 restarts and finds half a file."""
    path, state = kit.folder / "checkpoint.pt", {"step": 5, "weights": torch.ones(500)}
    _save_on_each_rank(kit, state, path)
    return _found(path)


def case_11_repaired(kit: Kit) -> str:
    """Rank 0 writes another file and renames it; the others wait until it is there."""
    path, state = kit.folder / "checkpoint.pt", {"step": 5, "weights": torch.ones(500)}
    if dist.get_rank() == 0:
        torch.save(state, aside := path.with_name("checkpoint.new"))
        aside.replace(path)
    kit.barrier()
    return _found(path)


def _save_on_each_rank(kit: Kit, state: object, path: Path) -> None:
    """`torch.save(state, path)` on both ranks, at a moment when rank 1 is half done."""
    if dist.get_rank() == 0:
        torch.save(state, path)
    kit.barrier()
    if dist.get_rank() == 1:
        torch.save(state, full := io.BytesIO())
        path.write_bytes(full.getvalue()[:1000])
    kit.barrier()


def _found(path: Path) -> str:
    try:
        return f"found step {torch.load(path)['step']}"
    except (RuntimeError, EOFError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def case_16(kit: Kit) -> str:
    """FSDP replaces the parameters; the optimizer steps those that were there before."""
    torch.manual_seed(0)
    net = models.mlp((4, 8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kit.fully_shard(net)
    return _losses(net, optimizer)


def case_16_repaired(kit: Kit) -> str:
    """Wrap first, then build the optimizer from what the module has now."""
    torch.manual_seed(0)
    net = models.mlp((4, 8, 1))
    kit.fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return _losses(net, optimizer)


def _losses(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    losses = []
    for _ in range(3):
        loss = net(torch.ones(5, 4)).sub(1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(f"{loss.item():.3f}")
    return f"losses {', '.join(losses)}"


CASES = [
    Case("A checkpoint that every rank writes", case_11, case_11_repaired),
    Case("An optimizer built before wrapping", case_16, case_16_repaired),
]

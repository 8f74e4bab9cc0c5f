"""What the tests of fully_shard train, and the one process that they are compared with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course.training.models import GPT
from minidist import Counted, full_state_dict, fully_shard
from minidist.parallel.fsdp.fully_shard import units

Tensors = dict[str, torch.Tensor]
LAYOUTS = ("dim0", "flat")


def gpt() -> GPT:
    """Tied weights in the root, three blocks; its sizes divide by nothing."""
    torch.manual_seed(0)
    return GPT(vocab=17, width=12, layers=3, heads=2, context=7).double()


def tokens(step: int, rows: int) -> torch.Tensor:
    return torch.randint(17, (rows, 7), generator=torch.Generator().manual_seed(step))


def score(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1).double(), ids[:, 1:].flatten())


def shard_blocks(net: nn.Module, **options: Any) -> Any:
    """Each block a unit, and the rest with the whole."""
    for block in net.blocks:  # type: ignore[union-attr]
        fully_shard(block, **options)
    return fully_shard(net, **options)


def mine(whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch."""
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


def wholes(model: nn.Module) -> Tensors:
    """Every full parameter; all ranks must ask."""
    state = full_state_dict(model)
    return {name: state[name] for name, _ in model.named_parameters()}


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Every whole gradient, None where no rank has one; all ranks must ask."""
    found: dict[str, torch.Tensor | None] = {}
    names = {id(p): name for name, p in model.named_parameters()}
    for unit in units(model):
        for block in unit.groups:
            has = torch.tensor([float(shard.grad is not None) for shard in block.shards])
            dist.all_reduce(has, group=unit.comm.group)
            local = torch.zeros_like(block.local)
            for view, shard in zip(block.layout.pieces(local), block.shards, strict=True):
                if shard.grad is not None:
                    view.copy_(shard.grad)
            gathered = local.new_empty(block.layout.padded)
            unit.comm.all_gather(gathered, local)
            for index, whole in enumerate(block.layout.tensors(gathered)):
                found[names[id(block.shards[index])]] = whole if has[index] else None
    return found


def far(got: dict[str, Any], want: dict[str, Any], tolerance: float = 1e-10) -> str:
    """In what two sets of tensors differ; "" if in nothing."""
    if set(got) != set(want):
        return f"names: {sorted(set(got) ^ set(want))}"
    for name, right in want.items():
        if (got[name] is None) != (right is None):
            return f"{name}: {got[name]} instead of {right}"
        if right is not None and not torch.allclose(got[name], right, tolerance, tolerance):
            return f"{name}: off by {(got[name] - right).abs().max():.2g}"
    return ""


def grads_of(net: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def bytes_of_flags(comm: Counted, parameters: int) -> int:
    """What this rank sends to tell which parameters it has used."""
    before = comm.bytes_sent
    comm.all_reduce(torch.zeros(parameters, dtype=torch.uint8))
    return comm.bytes_sent - before


@contextmanager
def told(*kinds: type[BaseException]) -> Iterator[list[str]]:
    """The message of an error that must come."""
    said: list[str] = []
    try:
        yield said
    except kinds as error:
        said.append(f"{type(error).__name__}: {error}")
    else:
        said.append("nothing was raised")

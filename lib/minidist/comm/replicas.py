"""Comparison of the ranks' models: in shape before training, in every bit while it goes on.

Each rank has an entry for each parameter and buffer, with a digest of its bytes if they matter. All
entries are exchanged once, and every rank looks for the first that differs.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from minidist.comm.agreement import gather_objects
from minidist.comm.comm import Comm
from minidist.comm.ours import Ours
from minidist.errors import MismatchError, ReplicaError, name_ranks


class Entry(NamedTuple):
    """A parameter or buffer, or whatever else must be alike on all ranks."""

    name: str
    title: str  # for messages
    like: str  # what must be alike, in words; and the digest of its bytes, where they matter


def check_same_model(module: nn.Module, comm: Comm) -> None:
    """Raise MismatchError on every rank unless all models are alike but for their numbers."""
    check_same(_entries(module), comm, "models")


def check_same(entries: Sequence[Entry], comm: Comm, what: str) -> None:
    """Raise MismatchError on every rank, naming the first entry that differs, if one does."""
    sides = [
        f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {entry.title}{entry.like}"
        for entry, ranks in _first_difference(entries, comm)
    ]
    if sides:
        raise MismatchError(f"the ranks' {what} differ: {'; '.join(reversed(sides))}")


def check_replicas(module: nn.Module, step: int | None = None, *, buffers: bool = True) -> int:
    """Make sure that the parameters and buffers of all ranks are equal in every bit.

    Every rank of the DDP must call it, or all ranks for a bare module. It reads each parameter
    once, and exchanges one small message.

    Args:
        module: bare, or wrapped in DDP; messages have the bare module's names.
        step: of training, for the message; if None, minidist's DDP knows its own.
        buffers: compare buffers too. After a forward in training, BatchNorm's statistics are each
            rank's own until the next forward broadcasts them.

    Returns:
        a checksum of 64 bits, the same for the same model.

    Raises:
        ReplicaError: on every rank, naming the first parameter or buffer that differs, the ranks
            and the step; or that the ranks are not at the same step.
    """
    step = getattr(module, "steps", None) if step is None else step
    comm = Ours(getattr(module, "process_group", None))  # a DDP's ranks, or all
    net: Any = module.module if hasattr(module, "process_group") else module
    given = isinstance(net, nn.Module)  # if not, the other ranks learn of it
    entries = _entries(net, content=True, buffers=buffers) if given else []
    sides = _first_difference([Entry("", "the number of the step", str(step)), *entries], comm)
    if not given:
        kind = type(module).__name__
        raise TypeError(f"rank {dist.get_rank()}: module: expected a torch.nn.Module, got a {kind}")
    if not sides:
        return int(hashlib.blake2b(repr(entries).encode(), digest_size=8).hexdigest(), 16)
    (_, right), *others = sides
    wrong = sorted(chain.from_iterable(ranks for _, ranks in others))
    first = next(entry for entry, _ in sides if entry != _NOTHING)
    text = f"{first.title} on {name_ranks(wrong)} is not as on {name_ranks(right)}"
    known = step is not None and first.name
    raise ReplicaError(f"at step {step}, {text}" if known else text, first.name, wrong, step)


def metadata(tensor: torch.Tensor) -> str:
    """Describe what must be alike of a tensor but its numbers, for `Entry.like`."""
    grad = ", requires grad" if tensor.requires_grad else ""
    return f", {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device.type}{grad}"


@torch.no_grad()
def digest(tensors: Iterable[torch.Tensor]) -> str:
    """The digest of all bits of some tensors, in logical order; not of their shapes.

    So 0.0 is not -0.0, and one NaN is not another. On a GPU they are copied to the host.
    """
    hasher = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().cpu()
        hasher.update(plain.as_strided(plain.shape, (1,)).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def _entries(module: nn.Module, *, content: bool = False, buffers: bool = True) -> list[Entry]:
    """Parameters, then buffers, each under every name that it has; with a digest if wanted."""
    named: list[tuple[str, torch.Tensor]] = [*module.named_parameters(remove_duplicate=False)]
    if buffers:
        named += module.named_buffers(remove_duplicate=False)
    first: dict[torch.Tensor, str] = {}
    entries = []
    for name, tensor in named:
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        tied = f", tied to '{first[tensor]}'" if tensor in first else ""
        bits = digest([tensor]) if content and not tied else ""
        first.setdefault(tensor, name)
        entries.append(Entry(name, f"{kind} '{name}'", metadata(tensor) + tied + bits))
    return entries


_NOTHING = Entry("", "nothing more", "")  # stands for those that a rank has fewer
Side = tuple[Entry, list[int]]  # an entry, and the global ranks that have it


def _first_difference(entries: Sequence[Entry], comm: Comm) -> list[Side]:
    """The sides at the first place where ranks differ: what most have, or else the first, leads."""
    everywhere: list[list[Entry]] = gather_objects(comm, entries)
    for place in zip_longest(*everywhere, fillvalue=_NOTHING):
        if len(set(place)) > 1:
            ranks_of: dict[Entry, list[int]] = {entry: [] for entry in place}
            for rank, entry in zip(dist.get_process_group_ranks(comm.group), place, strict=True):
                ranks_of[entry].append(rank)
            return sorted(ranks_of.items(), key=lambda side: -len(side[1]))
    return []

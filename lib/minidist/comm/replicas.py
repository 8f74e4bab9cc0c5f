"""Whether the ranks' models are alike: in shape before training, in every bit while it goes on.

Each rank has an entry for each parameter and buffer, with a digest of its bytes if they matter. All
entries are exchanged once, and every rank looks for the first that differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from minidist.comm.comm import Comm, Ours, gather_objects
from minidist.errors import MismatchError, ReplicaError, name_ranks


class Entry(NamedTuple):
    """A parameter or buffer, or whatever else must be alike on all ranks."""

    name: str
    title: str  # for messages, which add `like`
    like: str
    content: str = ""  # the digest of its bytes, if wanted


_NOTHING = Entry("", "nothing more", "")  # of a rank that has fewer


def same_model(module: nn.Module, comm: Comm) -> None:
    """Raise MismatchError on every rank unless all models are alike but for their numbers.

    Alike are names, shapes, dtypes, device types and requires_grad, and which tensors are tied.
    """
    same(_entries(module), comm, "models")


def same(entries: Sequence[Entry], comm: Comm, what: str) -> None:
    """Raise MismatchError on every rank, naming the first entry that differs, if one does.

    It is always checked, whatever `MINIDIST_CHECK` says; `what` names the entries in the plural.
    """
    found = _first_difference(entries, comm)
    if found:
        sides = "; ".join(
            f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {entry.title}{entry.like}"
            for entry, ranks in reversed(_sides(found))
        )
        raise MismatchError(f"the ranks' {what} differ: {sides}")


def check_replicas(
    module: nn.Module,
    step: int | None = None,
    *,
    buffers: bool = True,
) -> int:
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
    comm = Ours(getattr(module, "process_group", None))  # of a DDP, or all ranks
    inner = getattr(module, "module", None) if hasattr(module, "no_sync") else None
    net = inner if isinstance(inner, nn.Module) else module
    entries = _entries(net, content=True, buffers=buffers)
    found = _first_difference([Entry("", "the number of the step", str(step)), *entries], comm)
    if not found:
        return int(hashlib.blake2b(repr(entries).encode(), digest_size=8).hexdigest(), 16)
    right = _sides(found)[0][1]
    wrong = sorted(set(found).difference(right))
    first = next(entry for entry in found.values() if entry != _NOTHING)
    said = f"{first.title} on {name_ranks(wrong)} is not as on {name_ranks(right)}"
    known = step is not None and first.name
    raise ReplicaError(f"at step {step}, {said}" if known else said, first.name, wrong, step)


# ---- what a rank has ----


def looks(tensor: torch.Tensor) -> str:
    """What must be alike of a tensor but its numbers, for `Entry.like`."""
    grad = ", requires grad" if tensor.requires_grad else ""
    return f", {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device.type}{grad}"


@torch.no_grad()
def digest(tensors: Iterable[torch.Tensor]) -> str:
    """The digest of all bits of some tensors, in logical order; not of their shapes.

    So 0.0 is not -0.0, and one NaN is not another. On a GPU they are copied to the host.
    """
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().cpu()
        found.update(plain.as_strided(plain.shape, (1,)).view(torch.uint8).numpy().data)
    return found.hexdigest()


@torch.no_grad()
def _entries(module: nn.Module, *, content: bool = False, buffers: bool = True) -> list[Entry]:
    """Parameters, then buffers, each under every name that it has; with a digest if wanted."""
    named: list[tuple[str, torch.Tensor]] = [*module.named_parameters(remove_duplicate=False)]
    if buffers:
        named += module.named_buffers(remove_duplicate=False)
    first: dict[torch.Tensor, str] = {}
    found = []
    for name, tensor in named:
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        like = looks(tensor)
        like += f", tied to '{first[tensor]}'" if tensor in first else ""
        bits = digest([tensor]) if content and tensor not in first else ""
        first.setdefault(tensor, name)
        found.append(Entry(name, f"{kind} '{name}'", like, bits))
    return found


# ---- who has what ----


def _first_difference(entries: Sequence[Entry], comm: Comm) -> dict[int, Entry]:
    """Global rank → its entry at the first place where not all have the same; empty if all do."""
    ranks = dist.get_process_group_ranks(comm.group)
    everywhere = [[Entry(*each) for each in theirs] for theirs in gather_objects(comm, entries)]
    for place in zip_longest(*everywhere, fillvalue=_NOTHING):
        if len(set(place)) > 1:
            return dict(zip(ranks, place, strict=True))
    return {}


def _sides(found: dict[int, Entry]) -> list[tuple[Entry, list[int]]]:
    """Who has what: what most have first; among equals, what the first rank has."""
    ranks_of: dict[Entry, list[int]] = {}
    for rank, entry in found.items():
        ranks_of.setdefault(entry, []).append(rank)
    return sorted(ranks_of.items(), key=lambda side: -len(side[1]))

"""Whether the ranks' models are alike: in shape before training, in every bit while it goes on.

Each rank describes its model line by line, a line for each parameter and buffer. A hash of all is
exchanged. Only where that differs do the ranks look for the first line that does, by halving: ten
more small exchanges for a thousand parameters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from minidist.collectives.checks.agreement import Call, exchange
from minidist.collectives.checks.tensors import wire_device
from minidist.collectives.runtime.work import in_order
from minidist.comm.checksum import checksums
from minidist.comm.comm import Comm, Ours
from minidist.errors import MismatchError, ReplicaError


class Entry(NamedTuple):
    """A parameter or buffer, or whatever else the ranks' must be alike."""

    name: str
    title: str
    like: str  # in what the ranks must agree before training
    bits: int = 0  # the hash of its content, if wanted


_NOTHING = Entry("", "nothing more", "")  # of a rank that has fewer


def same_model(module: nn.Module, comm: Comm) -> None:
    """Make sure that the models of all ranks are alike but for their numbers.

    Every rank must come here. It is always checked, whatever `MINIDIST_CHECK` says.

    Args:
        module: compared by the names of its parameters and buffers, in their order; by their
            shapes, dtypes, device types and requires_grad; and by which of them are tied.
        comm: between the ranks.

    Raises:
        MismatchError: on every rank, naming the first parameter or buffer that differs.
    """
    same(_entries(module), comm, "models")


def same(entries: Sequence[Entry], comm: Comm, what: str) -> None:
    """Make sure that all ranks have the same entries; it is always checked.

    Args:
        entries: compared by their titles and by what they are like.
        comm: between the ranks, which all must come here.
        what: the entries are together, in the plural.

    Raises:
        MismatchError: on every rank, naming the first entry that differs.
    """
    place = _first_difference([entry.title + entry.like for entry in entries], comm)
    if place is not None:
        mine = entries[place] if place < len(entries) else _NOTHING
        raise MismatchError(f"the ranks' {what} differ: {_models(_ask(mine, comm))}")


def check_replicas(
    module: nn.Module,
    step: int | None = None,
    *,
    group: ProcessGroup | None = None,
    comm: Comm | None = None,
    buffers: bool = True,
) -> int:
    """Make sure that the parameters and buffers of all ranks are equal in every bit.

    Every rank must come here. It reads each parameter once, and exchanges one small message.

    Args:
        module: bare, or wrapped in DDP; messages have the bare module's names.
        step: of training, for the message; if None, minidist's DDP tells its own.
        group: whose ranks; if None, those between which `module` is wrapped, or else all.
        comm: the same as a `Comm`.
        buffers: compare buffers too. After a forward in training, BatchNorm's statistics are each
            rank's own until the next forward broadcasts them.

    Returns:
        a checksum of 64 bits, the same for the same model (see `minidist.comm.checksum`).

    Raises:
        ReplicaError: on every rank, naming the first parameter or buffer that differs, the ranks
            and the step; or that the ranks are not at the same step.
    """
    step = getattr(module, "steps", None) if step is None else step
    at = Entry("", "at no known step" if step is None else f"at step {step}", "")
    comm = comm or _comm(module, group)
    entries = [at, *_entries(_bare(module), content=True, buffers=buffers)]
    lines = [json.dumps(entry) for entry in entries]
    place = _first_difference(lines, comm)
    if place is None:
        return int(_hash(lines[1:]), 16)
    found = _ask(entries[place] if place < len(entries) else _NOTHING, comm)
    if place == 0:
        sides = "; ".join(f"{_ranks(ranks)}: {each.title}" for each, ranks in _sides(found))
        raise ReplicaError(f"the ranks are not at the same step: {sides}", step=step)
    raise _differing(found, step, at.title)


def _differing(found: dict[int, Entry], step: int | None, at: str) -> ReplicaError:
    """What to say of an entry of which the ranks have different ones."""
    sides = _sides(found)
    most, right = sides[0]
    wrong = sorted(set(found).difference(right))
    if len({each._replace(bits=0) for each in found.values()}) > 1:
        said = f"the replicas differ {at}: {_models(found)}"
    else:
        said = f"{at}, {most.title} on {_ranks(wrong)} is not as on {_ranks(right)}"
    return ReplicaError(said, most.name, wrong, step)


# ---- what a rank has ----


@torch.no_grad()
def _entries(module: nn.Module, *, content: bool = False, buffers: bool = True) -> list[Entry]:
    """Parameters, then buffers, each under every name that it has; with a hash of the content."""
    named: list[tuple[str, str, torch.Tensor]] = []
    named += (("parameter", *each) for each in module.named_parameters(remove_duplicate=False))
    if buffers:
        named += (("buffer", *each) for each in module.named_buffers(remove_duplicate=False))
    first: dict[torch.Tensor, str] = {}
    found = []
    for kind, name, tensor in named:
        like = f", {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device.type}"
        like += ", requires grad" if tensor.requires_grad else ""
        like += f", tied to '{first[tensor]}'" if tensor in first else ""
        first.setdefault(tensor, name)
        found.append(Entry(name, f"{kind} '{name}'", like))
    if not content:
        return found
    own = dict(zip(first.values(), checksums(first), strict=True))
    return [entry._replace(bits=own.get(entry.name, 0)) for entry in found]


# ---- what the ranks tell each other ----


def _first_difference(lines: Sequence[str], comm: Comm) -> int | None:
    """The first place where not all ranks have the same line, or where some have no more."""

    def told(length: int) -> set[str]:
        note = {"lines": f"{len(lines[:length])} {_hash(lines[:length])} of {len(lines)}"}
        return {each["lines"] for each in _exchange(note, comm)}

    everywhere = told(len(lines))
    if len(everywhere) == 1:
        return None
    alike, differs = 0, max(int(each.split()[-1]) for each in everywhere)
    while differs - alike > 1:
        middle = (alike + differs) // 2
        firsts = {each.split(" of ")[0] for each in told(middle)}
        alike, differs = (middle, differs) if len(firsts) == 1 else (alike, middle)
    return alike


def _ask(mine: Entry, comm: Comm) -> dict[int, Entry]:
    """Global rank → its entry."""
    note = {"name": mine.name, "title": mine.title, "like": mine.like, "bits": str(mine.bits)}
    ranks = dist.get_process_group_ranks(comm.group)
    entries = [
        Entry(each["name"], each["title"], each["like"], int(each["bits"]))
        for each in _exchange(note, comm)
    ]
    return dict(zip(ranks, entries, strict=True))


def _exchange(note: Call, comm: Comm) -> list[Call]:
    found: list[Call] = []
    device = wire_device(comm.group)

    def body() -> None:
        found.extend(exchange(note, comm.rank, comm.ranks, comm.group, device))

    group = comm.group or dist.group.WORLD
    assert group is not None
    in_order(group, body, device, async_op=False)
    return found


def _sides(found: dict[int, Entry]) -> list[tuple[Entry, list[int]]]:
    """Who has what: what most have first; among equals, what the first rank has."""
    ranks_of: dict[Entry, list[int]] = {}
    for rank, entry in found.items():
        ranks_of.setdefault(entry, []).append(rank)
    return sorted(ranks_of.items(), key=lambda side: -len(side[1]))


def _models(found: dict[int, Entry]) -> str:
    sides = _sides({rank: entry._replace(bits=0) for rank, entry in found.items()})
    return "; ".join(
        f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {entry.title}{entry.like}"
        for entry, ranks in reversed(sides)
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _hash(lines: Sequence[str]) -> str:
    return hashlib.blake2b(json.dumps(lines).encode(), digest_size=8).hexdigest()


def _bare(module: nn.Module) -> nn.Module:
    """The module itself if DDP's wrapper, minidist's or torch's, is round it."""
    inner = getattr(module, "module", None)
    return inner if isinstance(inner, nn.Module) and hasattr(module, "no_sync") else module


def _comm(module: nn.Module, group: ProcessGroup | None) -> Comm:
    if group is None and hasattr(own := getattr(module, "comm", None), "ranks"):
        return cast("Comm", own)
    return Ours(group or getattr(module, "process_group", None))

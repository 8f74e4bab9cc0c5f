"""Find out before a collective starts whether all ranks are making the same call.

Without it a disagreement shows as a hang, a broken connection or, worst, a wrong result. The check
costs time, so it can be switched off.

[Note: digests first] Nearly always all ranks agree. Ranks of one host find that out in memory that
they share: each leaves a digest of its call there, meets the others at a barrier, and compares.
Only if digests differ, or if the ranks share no memory, does every rank send its call to all.
A collective that goes through shared memory has a barrier at its start anyway, and its digest is
compared there: then the check costs next to nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from minidist.collectives.runtime.group import global_rank, wire_device
from minidist.collectives.runtime.notes import Note, encode, exchange_notes, gather_rows
from minidist.collectives.shared_memory.segments import DIGEST, SharedSegments, shared_segments
from minidist.errors import MismatchError

Facts = dict[str, str]  # what was called, and each argument on which the ranks must agree


class Blocks(NamedTuple):
    """The elements of the block that this rank has for each rank, and wants from each."""

    given: str  # what the blocks are in, for messages
    wanted: str
    gives: Sequence[int]
    wants: Sequence[int]


def wanted(check: bool | None) -> bool:
    """True if a call is to be checked: if None, the environment says; `launch` switches it on."""
    return os.environ.get("MINIDIST_CHECK", "0") == "1" if check is None else check


def digest(facts: Facts, problem: Exception | None) -> bytes:
    """A few bytes that stand for all that `agree` would compare."""
    return hashlib.blake2b(encode(_note(facts, problem)), digest_size=DIGEST).digest()


def shared_or_none(group: dist.ProcessGroup | None) -> SharedSegments | None:
    """The memory that the group's ranks share; None if they share none, or send from GPUs alone."""
    if wire_device(group).type != "cpu":
        return None
    try:
        return shared_segments(group)
    except ValueError:  # another host, or a system without futexes
        return None


def agree(facts: Facts, problem: Exception | None, group: dist.ProcessGroup | None) -> None:
    """Compare this call with those of the other ranks of the group.

    Args:
        facts: argument name → description. "the call" names the collective.
        problem: what is wrong with this rank's own input, if anything.
        group: every rank of it must come here.

    Raises:
        MismatchError: on every rank, naming the ranks, the argument and both values; or naming the
            rank that has a problem, on the others.
    """
    notes = exchange_notes(_note(facts, problem), group)
    if problem:
        return  # the caller raises it
    for other, theirs in enumerate(notes):
        if "problem" in theirs:
            where = f"on rank {global_rank(other, group)}"
            raise MismatchError(f"{facts['the call']}: {where}: {theirs['problem']}")
    for name in notes[0] | notes[dist.get_rank(group)]:
        values = {global_rank(r, group): each.get(name, "nothing") for r, each in enumerate(notes)}
        if len(set(values.values())) > 1:
            raise MismatchError(
                f"{facts['the call']}: the ranks disagree on {name}: {_sides(values)}"
            )


def match(name: str, blocks: Blocks, group: dist.ProcessGroup | None) -> None:
    """Raise MismatchError on every rank unless each rank wants what the others give it."""
    ranks = dist.get_world_size(group)
    table = torch.zeros(ranks, 2, ranks, dtype=torch.int64)
    table[dist.get_rank(group)] = torch.tensor([blocks.gives, blocks.wants])
    table = gather_rows(table, group)
    gives, wants = table[:, 0], table[:, 1].t()  # both by sender and receiver
    wrong = (gives != wants).nonzero().tolist()
    if wrong:
        src, dst = wrong[0]
        raise MismatchError(
            f"{name}: rank {global_rank(src, group)}'s {blocks.given} has {gives[src, dst]} "
            f"elements for rank {global_rank(dst, group)}, whose {blocks.wanted} has room for "
            f"{wants[src, dst]}"
        )


def _note(facts: Facts, problem: Exception | None) -> Note:
    return facts | ({"problem": str(problem)} if problem else {})


def _sides(values: dict[int, str]) -> str:
    """Who passed what, the most common value last: "rank 2 passed X; ranks 0, 1, 3 passed Y"."""
    groups = sorted(Counter(values.values()).items(), key=lambda item: item[1])
    sides = []
    for value, _ in groups:
        ranks = [str(rank) for rank, each in values.items() if each == value]
        sides.append(f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} passed {value}")
    return "; ".join(sides)

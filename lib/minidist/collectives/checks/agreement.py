"""Find out before a collective starts whether all ranks are making the same call.

Without it a disagreement shows as a hang, a broken connection or, worst, a wrong result. The check
costs time, so it can be switched off.

[Note: digests first] Nearly always all ranks agree. Ranks of one host find that out in memory that
they share: each leaves a digest of its call there, meets the others at a barrier, and compares.
Only if digests differ, or if the ranks share no memory, does every rank send its call to all.
A collective that goes through shared memory has a barrier at its start anyway, and its digest is
compared there: then the check costs next to nothing.
"""

import hashlib
import os
from functools import lru_cache, partial

import torch.distributed as dist

from minidist.collectives.runtime.notes import Note, encode, exchange_notes
from minidist.collectives.shared_memory.segments import DIGEST, shared_or_none
from minidist.errors import MismatchError, name_ranks


def wanted(check: bool | None) -> bool:
    """True if a call is to be checked: if None, the environment says; `launch` switches it on."""
    return os.environ.get("MINIDIST_CHECK", "0") == "1" if check is None else check


def agree(
    facts: Note,
    problem: Exception | None,
    group: dist.ProcessGroup | None,
    *,
    has_barrier: bool,
) -> None:
    """Raise MismatchError on every rank unless all have called this with the same facts.

    `facts` are by argument; "the call" names the collective. A `problem` with this rank's own input
    is raised by the other ranks, and left to the caller here. If the collective `has_barrier` in
    shared memory at its start, the digests wait for that.
    """
    note = facts | ({"problem": str(problem)} if problem else {})
    segments = shared_or_none(group)
    if segments is None:
        _compare(note, group)
        return
    segments.compare(_digest(tuple(note.items())), partial(_compare, note, group))
    if problem is not None or not has_barrier:
        segments.barrier()


@lru_cache(maxsize=1024)  # a training step makes the same calls again and again
def _digest(note: tuple[tuple[str, str], ...]) -> bytes:
    return hashlib.blake2b(encode(dict(note)), digest_size=DIGEST).digest()


def _compare(note: Note, group: dist.ProcessGroup | None) -> None:
    """Send the call to all, and raise for what differs; see `agree`."""
    notes = exchange_notes(note, group)
    if "problem" in note:
        return
    ranks = dist.get_process_group_ranks(group)
    for other, theirs in zip(ranks, notes, strict=True):
        if "problem" in theirs:
            raise MismatchError(f"{note['the call']}: on rank {other}: {theirs['problem']}")
    for name in notes[0] | notes[dist.get_rank(group)]:
        sides: dict[str, list[int]] = {}  # value → the ranks that passed it
        for other, theirs in zip(ranks, notes, strict=True):
            sides.setdefault(theirs.get(name, "nothing"), []).append(other)
        if len(sides) > 1:
            claims = "; ".join(
                f"{name_ranks(who)} passed {value}"
                for value, who in sorted(sides.items(), key=lambda side: len(side[1]))
            )
            raise MismatchError(f"{note['the call']}: the ranks disagree on {name}: {claims}")

"""Find out before a collective starts whether all ranks are making the same call.

Without it a disagreement shows as a hang, a broken connection or, worst, a wrong result. The check
is one small all-gather, run by our own schedule; it costs time, so it can be switched off.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from minidist.collectives.runtime.executor import execute, global_rank
from minidist.errors import MismatchError
from minidist.schedule.algorithms import ring_all_gather
from minidist.schedule.program import program_of

ROOM = 4096  # bytes for one rank's description of its call: ten arguments of the longest
LONGEST = 180  # characters of it for one argument

Call = dict[str, str]  # what was called, and each argument on which the ranks must agree


class Blocks(NamedTuple):
    """Of how many elements the blocks are that this rank has for each rank, and wants from each."""

    given: str  # what the blocks are in, for messages
    wanted: str
    gives: Sequence[int]
    wants: Sequence[int]


def wanted(check: bool | None) -> bool:
    """Whether to check: as told, else as the environment says; `launch` switches it on."""
    return os.environ.get("MINIDIST_CHECK", "0") == "1" if check is None else check


def agree(
    call: Call,
    problem: Exception | None,
    group: dist.ProcessGroup | None,
    device: torch.device,
    blocks: Blocks | None = None,
) -> None:
    """Compare this call with those of the other ranks of the group.

    Args:
        call: argument name → description. "the call" names the collective.
        problem: what is wrong with this rank's own input, if anything.
        group: every rank of it must come here.
        device: where the group's messages live.
        blocks: what goes from rank to rank, if that may differ: what one gives the other must want.

    Raises:
        MismatchError: on every rank, naming the ranks, the argument and both values; or naming the
            rank that has a problem, on the others.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    note = call | ({"problem": str(problem)} if problem else {})
    calls = exchange(note, rank, ranks, group, device)
    if problem:
        return  # the caller raises it
    for other, theirs in enumerate(calls):
        if "problem" in theirs:
            where = f"on rank {global_rank(other, group)}"
            raise MismatchError(f"{call['the call']}: {where}: {theirs['problem']}")
    for name in calls[0] | calls[rank]:
        values = {global_rank(r, group): each.get(name, "nothing") for r, each in enumerate(calls)}
        if len(set(values.values())) > 1:
            raise MismatchError(
                f"{call['the call']}: the ranks disagree on {name}: {_sides(values)}"
            )
    if blocks:
        _match(call["the call"], blocks, group, device)


def _match(
    name: str, blocks: Blocks, group: dist.ProcessGroup | None, device: torch.device
) -> None:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    table = torch.zeros(ranks, 2, ranks, dtype=torch.int64)
    table[rank] = torch.tensor([blocks.gives, blocks.wants])
    table = _gather(table, rank, ranks, group, device)
    gives, wants = table[:, 0], table[:, 1].t()  # both by sender and receiver
    wrong = (gives != wants).nonzero().tolist()
    if wrong:
        src, dst = wrong[0]
        raise MismatchError(
            f"{name}: rank {global_rank(src, group)}'s {blocks.given} has {gives[src, dst]} "
            f"elements for rank {global_rank(dst, group)}, whose {blocks.wanted} has room for "
            f"{wants[src, dst]}"
        )


def exchange(
    note: Call, rank: int, ranks: int, group: dist.ProcessGroup | None, device: torch.device
) -> list[Call]:
    """Every rank's note, at most `ROOM` bytes of it as JSON."""
    text = json.dumps({key: _short(value) for key, value in note.items()}).encode()
    board = torch.zeros(ranks, ROOM, dtype=torch.uint8)
    board[rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    rows = _gather(board, rank, ranks, group, device).numpy()
    return [json.loads(row.tobytes().rstrip(b"\0")) for row in rows]


def _gather(
    board: torch.Tensor,
    rank: int,
    ranks: int,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> torch.Tensor:
    """The board with every rank's row, each from its own rank."""
    wire = board.to(device).view(-1)
    execute(program_of(ring_all_gather, ranks, rank), wire, torch.Tensor.add_, group)
    return wire.view(board.shape).cpu()


def _short(value: str) -> str:
    """The value in at most `LONGEST` plain characters; long ones that differ stay different."""
    if len(value) > LONGEST:
        value = f"{value[: LONGEST - 12]}... {zlib.crc32(value.encode()):08x}"
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in value)


def _sides(values: dict[int, str]) -> str:
    """Who passed what, the most common value last: "rank 2 passed X; ranks 0, 1, 3 passed Y"."""
    groups = sorted(Counter(values.values()).items(), key=lambda item: item[1])
    sides = []
    for value, _ in groups:
        ranks = [str(rank) for rank, each in values.items() if each == value]
        sides.append(f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} passed {value}")
    return "; ".join(sides)

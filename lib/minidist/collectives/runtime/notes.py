"""Short notes between the ranks of a group, over messages that never mix with the caller's."""

import json
import zlib

import torch
from torch.distributed import ProcessGroup, get_rank, get_world_size

from minidist.collectives.runtime.executor import execute
from minidist.collectives.runtime.group import wire_device
from minidist.schedule.algorithms import ring_all_gather
from minidist.schedule.program import program_of

ROOM = 4096  # bytes for one rank's note: ten values of the longest
LONGEST = 180  # characters of one value

Note = dict[str, str]


def encode(note: Note) -> bytes:
    """The note as it travels: JSON. Long values are cut; those that differ stay different."""
    plain = {}
    for key, value in note.items():
        if len(value) > LONGEST:
            value = f"{value[: LONGEST - 12]}... {zlib.crc32(value.encode()):08x}"
        plain[key] = "".join(c if c.isascii() and c.isprintable() else "?" for c in value)
    return json.dumps(plain).encode()


def exchange_notes(note: Note, group: ProcessGroup | None) -> list[Note]:
    padded = bytearray(encode(note).ljust(ROOM))  # JSON may end in spaces
    board = torch.zeros(get_world_size(group), ROOM, dtype=torch.uint8, device="cpu")
    board[get_rank(group)] = torch.frombuffer(padded, dtype=torch.uint8)
    return [json.loads(row.tobytes()) for row in gather_rows(board, group).numpy()]


def gather_rows(board: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
    """A table with a row for each rank, every row as its own rank has it."""
    rank, ranks = get_rank(group), get_world_size(group)
    flat = board.to(wire_device(group)).view(-1)
    execute(program_of(ring_all_gather, ranks, rank), flat, torch.Tensor.add_, group)
    return flat.view(board.shape).cpu()

"""A checkpoint on a disk: a file of numbers from each rank, and an index of the pieces.

Every tensor is there flattened, under the bare model's name, as ranges of its elements: pieces. So
what one strategy wrote on four ranks another one reads on three; each rank reads what it needs.

[Note: no pickles] torch.distributed.checkpoint keeps its index as a pickle, `.metadata`, and loads
it without restriction (seen in torch 2.11 and 2.13; pytorch issue 189308): whoever can write there
can run code here. So ours is JSON, and a piece is its elements and nothing else.

[Note: checksums] Disks and memory flip bits. A piece has a checksum of its bytes and of what they
are (which tensor, from where on), so pieces that changed places are noticed; the index has its own.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

INDEX = "index.json"
DTYPES = ("torch.float32", "torch.int32")  # that a piece may have


class DamagedError(Exception):
    """A checkpoint is not what was written."""


class Piece(NamedTuple):
    """This rank's elements of a flattened tensor, from `start` on."""

    tensor: Tensor
    start: int


class Stored(NamedTuple):
    """The place of a piece: `numel` elements of the tensor `key`, from `start` on."""

    key: str
    start: int
    numel: int
    dtype: str
    file: str
    offset: int
    checksum: int


Index = tuple[dict[str, Any], list[Stored]]  # what tells one run from another; the pieces


def write_pieces(file: Path, pieces: Iterable[tuple[str, Piece]]) -> list[Stored]:
    """Write them, and read them again; ValueError if one is not finite: nobody can go on there."""
    written = []
    with file.open("wb") as stream:
        for key, (tensor, start) in pieces:
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"'{key}' has elements that are infinite or NaN")
            data, dtype = memoryview(tensor.numpy()).cast("B"), str(tensor.dtype)  # type: ignore
            what = key, start, len(tensor), dtype, file.name, stream.tell()
            written.append(Stored(*what, checksum(key, start, dtype, data)))
            stream.write(data)
    sync(file)
    for each in written:
        read_piece(file.parent, each)
    return written


def read_piece(folder: Path, stored: Stored) -> Tensor:
    """The elements of a piece; DamagedError if they are not those that were written."""
    dtype = getattr(torch, stored.dtype.removeprefix("torch."))
    try:
        with (folder / Path(stored.file).name).open("rb") as file:  # nothing outside the folder
            fits = stored.numel * dtype.itemsize <= os.fstat(file.fileno()).st_size
            tensor = torch.empty(stored.numel if fits else 0, dtype=dtype)
            data = memoryview(tensor.numpy()).cast("B")  # type: ignore[arg-type]
            file.seek(stored.offset)
            complete = fits and file.readinto(data) == len(data)
    except OSError as error:
        raise DamagedError(f"{stored.file} cannot be read ({error.strerror})") from error
    if not complete:
        raise DamagedError(f"{stored.file} ends within '{stored.key}'")
    if checksum(stored.key, stored.start, stored.dtype, data) != stored.checksum:
        raise DamagedError(f"'{stored.key}' in {stored.file} has another checksum than was written")
    return tensor


def checksum(key: str, start: int, dtype: str, data: memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(f"{key} {start} {dtype}".encode()))


def load_pieces(folder: Path, stored: Iterable[Stored], pieces: Mapping[str, Piece]) -> None:
    """Fill this rank's pieces from those, whoever wrote them, of which they consist."""
    missing = {key: len(piece.tensor) for key, piece in pieces.items()}
    for each in stored:
        if each.key not in pieces:
            continue
        tensor, begin = pieces[each.key]
        first = max(begin, each.start)
        last = min(begin + len(tensor), each.start + each.numel)
        if first < last:
            there = read_piece(folder, each)
            if there.dtype != tensor.dtype:
                raise DamagedError(f"'{each.key}' is {there.dtype} there, {tensor.dtype} here")
            tensor[first - begin : last - begin] = there[first - each.start : last - each.start]
            missing[each.key] -= last - first
    for key, number in missing.items():
        if number:
            raise DamagedError(f"{INDEX} does not have each element of '{key}' once")


def write_index(folder: Path, index: Index) -> None:
    checksum = zlib.crc32(json.dumps(index).encode())
    (folder / INDEX).write_text(json.dumps({"checksum": checksum, "index": index}))
    sync(folder / INDEX)
    read_index(folder)


def read_index(folder: Path) -> Index:
    """The index of a checkpoint; DamagedError if it is not what was written."""
    try:
        content = json.loads((folder / INDEX).read_text())
        if content["checksum"] != zlib.crc32(json.dumps(content["index"]).encode()):
            raise ValueError("it has another checksum")
        facts, pieces = content["index"]
        return dict(facts), [as_stored(*each) for each in pieces]
    except OSError as error:
        raise DamagedError(f"{INDEX} cannot be read ({error.strerror})") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedError(f"{INDEX} is not as it was written ({error})") from error


def as_stored(key: str, start: int, numel: int, dtype: str, file: str, *place: int) -> Stored:
    """A piece of an index that anyone may have written; ValueError if it is none."""
    stored = Stored(key, start, numel, dtype, file, *place)
    numbers, words = (start, numel, *place), (key, dtype, file)
    if not all(isinstance(each, str) for each in words) or "\0" in file:
        raise ValueError(f"a piece has no key, dtype or file: {words}")
    if not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
        raise ValueError(f"a piece's place is {numbers}")
    if dtype not in DTYPES:
        raise ValueError(f"a piece's dtype is {dtype}")
    return stored


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk: the next to read reads it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if path.is_file() and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)

"""A rank's output: a pipe, of which the launcher keeps the first lines and the last."""

import multiprocessing
import os
import sys
from contextlib import suppress
from io import FileIO, TextIOWrapper
from multiprocessing.connection import Connection

KEPT = 1 << 18  # bytes of the first lines that are kept, and as many of the last


class Output:
    def __init__(self) -> None:
        self.reader, self.writer = multiprocessing.Pipe(duplex=False)
        os.set_blocking(self.reader.fileno(), False)
        self._first, self._last, self._dropped = bytearray(), bytearray(), 0
        self._shown = 0  # bytes of the first lines
        self.open = True

    def read(self) -> bool:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self.reader.fileno(), 1 << 16)
            self.open = bool(data)
        room = KEPT - len(self._first)
        self._first += data[:room]
        self._last += data[room:]
        if len(self._last) > 2 * KEPT:
            self._dropped += len(self._last) - KEPT
            del self._last[:-KEPT]
        return bool(data)

    def lines(self) -> list[str]:
        if self.reader.closed:
            gap = f"\n... {self._dropped:,} bytes left out ...\n".encode() if self._dropped else b""
            new = self._first[self._shown :] + gap + self._last
        else:
            new = self._first[self._shown : self._first.rfind(b"\n") + 1]
        self._shown += len(new)
        return new.decode("utf-8", "replace").splitlines()

    def close(self) -> None:
        while self.read():
            pass
        self.reader.close()
        self.writer.close()


def redirect(writer: Connection) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(writer.fileno(), descriptor)
    writer.close()
    sys.stdout = sys.stderr = TextIOWrapper(
        FileIO(1, "w", closefd=False), encoding="utf-8", errors="replace", write_through=True
    )

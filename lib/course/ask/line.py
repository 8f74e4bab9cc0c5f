"""A line to the grader's process: what ranks may ask there, and cannot look up.

What decides a verdict, such as the fault that is planted, stays in that process, out of reach of a
learner's code. Messages are tensors, numbers, strings and lists of them; nothing else is loaded.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import torch

HEAD = 8  # bytes that say how long a message is

Answer = Callable[..., Any]


class Line:
    """A rank's end of the line.

    Args:
        path: as `answering` yields it.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rwb")

    def ask(self, name: str, *args: Any) -> Any:
        """The grader's answer; RuntimeError if it refuses."""
        _send(self._file, [name, *args])
        answer, error = _received(self._file)
        if error:
            raise RuntimeError(error)
        return answer


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Inside `with`, answer(name, *args) is asked by each `Line` to the path that this yields.

    Each line has a thread of its own. A RuntimeError is raised in the rank that has asked.
    """
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "line"))
        with _Server(path, _Asked) as server:
            server.answer = answer
            Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            try:
                yield path
            finally:
                server.shutdown()


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    answer: Answer


class _Asked(StreamRequestHandler):
    def handle(self) -> None:
        """Answer a rank until it hangs up."""
        assert isinstance(self.server, _Server)
        while question := _received(self.rfile):
            try:
                answer, error = self.server.answer(*question), ""
            except RuntimeError as wrong:
                answer, error = None, str(wrong)
            _send(self.wfile, [answer, error])


def _send(file: Any, message: Any) -> None:
    packed = io.BytesIO()
    torch.save(message, packed)
    file.write(len(packed.getbuffer()).to_bytes(HEAD, "big") + packed.getvalue())
    file.flush()


def _received(file: Any) -> Any:
    """The next message; None if the other end has hung up."""
    if len(head := file.read(HEAD)) < HEAD:
        return None
    return torch.load(io.BytesIO(file.read(int.from_bytes(head, "big"))), weights_only=True)

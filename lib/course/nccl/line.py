"""A rank's line to the switchboard, which stands in rank 0's process."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from course.ask.switchboard import Call, Deadlock, Switchboard

OURS = "nccl's rules"  # name of our threads
TICK = 0.05  # seconds between two looks at whether all threads wait
TICKS = 20  # looks with one outcome before it counts: a thread may have been woken and not run yet
WAITING = ("threading.py", "queue.py", "concurrent/futures/thread.py", "socket.py", "selectors.py")


def serve(ranks: int) -> tuple[str, Callable[[], None]]:
    """Open a switchboard; return the address that the ranks call, and what waits for their end."""
    listener = Listener(family="AF_UNIX")
    lines: dict[int, Connection[Any, Any]] = {}
    lock = threading.RLock()
    board = Switchboard(ranks, lambda rank, *answer: lines[rank].send(answer))

    def hear(rank: int) -> None:
        try:
            while True:
                method, *arguments = lines[rank].recv()
                with lock:
                    getattr(board, method)(rank, *arguments)
                if method == "end":
                    return
        except (EOFError, OSError):  # killed
            with lock:
                board.end(rank)

    def close() -> None:
        accepting.join()  # which starts the others
        for thread in hearing:
            thread.join()

    def accept() -> None:
        for _ in range(ranks):
            line = listener.accept()
            lines[line.recv()] = line
        for thread in hearing:
            thread.start()

    hearing = [
        threading.Thread(target=hear, args=(rank,), name=OURS, daemon=True) for rank in range(ranks)
    ]
    accepting = threading.Thread(target=accept, name=OURS, daemon=True)
    accepting.start()
    return str(listener.address), close


class Ticket:
    """A call on its way; `wait` returns when it has been answered."""

    def __init__(self, line: Line, number: int, name: str, then: Callable[[Any], None]) -> None:
        self._line, self._number, self._then, self.name = line, number, then, name
        self.ordered = False  # true if later kernels run after it
        self._answered = threading.Event()
        self._error = ""

    def answer(self, error: str, value: Any) -> None:
        """Write the result where it belongs."""
        try:
            self._error = error or self._then(value) or ""
        except Exception as raised:  # tensors that do not fit
            self._error = str(raised)
        self._answered.set()

    def answered(self) -> bool:
        """True once the call has ended."""
        return self._answered.is_set()

    def wait(self) -> None:
        """Block the host until then; raises Deadlock if that will never be."""
        alike = 0
        while not self._answered.wait(TICK):
            heard = self._line.heard
            alike = alike + 1 if all_wait() else 0
            if alike >= TICKS and heard == self._line.heard:
                self._line.send("stuck", self._number, heard)
        if self._error:
            raise Deadlock(self._error)


def all_wait() -> bool:
    """True if no other thread of this process runs Python code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here = threading.get_ident()
    return all(
        thread == here or names.get(thread) == OURS or frame.f_code.co_filename.endswith(WAITING)
        for thread, frame in sys._current_frames().items()
    )


class Line:
    """This rank's line."""

    def __init__(self, address: str, rank: int) -> None:
        self.rank, self.heard = rank, 0
        self._connection, self._lock = Client(address), threading.Lock()
        self._connection.send(rank)
        self._numbers = itertools.count()
        self.tickets: dict[int, Ticket] = {}  # not answered yet
        threading.Thread(target=self._hear, name=OURS, daemon=True).start()

    def send(self, *message: Any) -> None:
        """Say something to the switchboard."""
        with self._lock:
            self._connection.send(message)

    def post(self, then: Callable[[Any], None], channel: Any, name: str, **call: Any) -> Ticket:
        """Post a call; `then` gets its value, in a thread of ours."""
        number = next(self._numbers)
        ticket = self.tickets[number] = Ticket(self, number, name, then)
        self.send("post", Call(number, channel, name, **call))
        return ticket

    def _hear(self) -> None:
        try:
            while True:
                number, error, value = self._connection.recv()
                self.heard += 1
                self.tickets.pop(number).answer(error, value)
        except (EOFError, OSError):
            for ticket in list(self.tickets.values()):
                ticket.answer("rank 0 has ended", None)

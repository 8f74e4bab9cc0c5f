"""A quorum: training rounds that go on with the workers that are there.

Workers train by `from_scratch.local_sgd.DiLoCo`, and send their changes to one process, the
`Quorum`, which adds up those that have come. So one process decides who was in a round, and nobody
can see it differently. That a worker has died it learns from the connection, which the kernel
closes; one that hangs it leaves behind after `patience` seconds. It knows nothing of the model: a
newcomer is given the state of a living member. So when no member lives, the state is lost, and
workers need a checkpoint. Workers and quorum are processes of one host, which a Unix socket joins.

A worker whose message makes no sense is dropped, and its change with it: one that is no tensor of
finite floats, or of another shape or dtype than the others'. Whatever else is finite counts.

Over slow links this is how federated averaging works (McMahan et al., 2017). torchft sends the
changes by an all-reduce instead, in a new process group for each quorum; then members have to agree
after it whether it has worked for all of them.
"""

import asyncio
import io
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from from_scratch.local_sgd import DiLoCo

LENGTH = 8  # bytes before each message that say how long it is
Message = dict[str, Any]


class Round(NamedTuple):
    """Whose changes are in a round, when it ended, by `time.monotonic()`, and if it is the last."""

    members: list[int]
    end: float
    last: bool


class BadMessage(Exception):
    """A reason to drop the worker that has sent a message."""


class Quorum:
    """Sums the changes of a round over those who send theirs. Runs in a thread, inside `with`.

    Args:
        path: of the socket at which workers find it.
        begin: the number of workers to wait for before the first round.
        patience: seconds that a round goes on after the first change has come; a member that is
            later is left behind, and may come back as a newcomer.
        after_round: called after each round, in the quorum's thread.
    """

    def __init__(
        self,
        path: Path,
        begin: int,
        patience: float = 30,
        after_round: Callable[[Round], object] = lambda _: None,
    ) -> None:
        self._begin, self._patience, self._after_round = begin, patience, after_round
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._done, self._last = 0, False  # rounds; whether the next one is the last
        self._members: dict[int, asyncio.StreamWriter] = {}
        self._newcomers: dict[int, asyncio.StreamWriter] = {}
        self._changes: dict[int, Tensor] = {}  # those that have arrived
        self._layout = ""  # of each change, once a round has ended
        self._donor: asyncio.StreamWriter | None = None  # of the member that is asked for its state
        self._deadline: asyncio.TimerHandle | None = None

    def finish(self) -> None:
        """Let the next round be the last."""
        self._last = True

    # ---- what happens ----

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listen to one worker for as long as it lives."""
        worker = -1
        try:
            number = (await _receive(reader)).get("join")
            if not isinstance(number, int):
                raise BadMessage(f"join: expected a worker's number, got {number!r}")
            worker = number
            if stale := self._members.pop(worker, None):
                _drop(stale, f"another process has joined as worker {worker}")
            self._newcomers[worker] = writer
            self._found()
            while True:
                message = await _receive(reader)
                if "state" in message:
                    self._admit(message, writer)
                elif self._members.get(worker) is writer:
                    self._changes[worker] = self._checked(message.get("change"))
                    self._end_round()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it is dead, or was left behind
        except BadMessage as bad:
            _drop(writer, str(bad))
        except asyncio.CancelledError:
            pass  # the quorum ends
        finally:
            writer.transport.abort()
            for group in (self._members, self._newcomers):
                if group.get(worker) is writer:
                    del group[worker]
            self._found()
            self._end_round()  # perhaps it was the one that the others were waiting for

    def _found(self) -> None:
        """If there is no member, the first newcomer becomes one, unless a state would be lost."""
        if self._members:
            return
        self._forget_changes()
        if self._done:
            for writer in self._newcomers.values():
                _drop(writer, "no member lives, and the model's state is lost with the last one")
        elif len(self._newcomers) >= self._begin:
            self._begin = 1
            first = min(self._newcomers)
            self._donor = self._members[first] = self._newcomers.pop(first)
            self._donor.write(_framed({"first": True}))

    def _admit(self, state: Message, sender: asyncio.StreamWriter) -> None:
        """Pass on a member's state to all newcomers, who are members from this round on."""
        if sender is not self._donor:
            raise BadMessage("state: expected none from a member that was not asked, got one")
        self._donor = None
        framed = _framed(state)
        for writer in self._newcomers.values():
            writer.write(framed)
        self._members |= self._newcomers
        self._newcomers.clear()

    def _end_round(self) -> None:
        """Send the sum to all members, if none of them is missing."""
        if not self._changes:
            return
        if not self._deadline:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._patience, self._leave_behind)
        if not self._members.keys() <= self._changes.keys():
            return
        if not self._layout:
            self._choose_layout()
        who = sorted(self._changes)
        total, last = reduce(torch.add, [self._changes[worker] for worker in who]), self._last
        self._donor = None
        if self._members and self._newcomers and not last:
            self._donor = self._members[min(self._members)]
        for writer in self._members.values():
            asked = writer is self._donor
            writer.write(_framed({"sum": total, "ranks": len(who), "ask": asked, "last": last}))
        self._forget_changes()
        self._done += 1
        self._after_round(Round(who, time.monotonic(), last))

    def _forget_changes(self) -> None:
        self._changes.clear()
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _checked(self, change: object) -> Tensor:
        """A change that can be added to those of others."""
        if not isinstance(change, Tensor) or change.layout is not torch.strided:
            raise BadMessage(f"change: expected a dense tensor, got {type(change).__name__}")
        if not change.is_floating_point() or not change.isfinite().all():
            kind = "not all finite" if change.is_floating_point() else str(change.dtype)
            raise BadMessage(f"change: expected finite floats, got {kind}")
        if self._layout and _layout(change) != self._layout:
            raise BadMessage(f"change: expected {self._layout}, got {_layout(change)}")
        return change.detach()

    def _choose_layout(self) -> None:
        """In the first round most changes say how all have to be; the others are dropped."""
        layouts = {worker: _layout(change) for worker, change in self._changes.items()}
        self._layout = Counter(layouts.values()).most_common(1)[0][0]
        for worker, layout in layouts.items():
            if layout != self._layout:
                del self._changes[worker]
                if writer := self._members.pop(worker, None):
                    _drop(writer, f"change: expected {self._layout}, got {layout}")

    def _leave_behind(self) -> None:
        for worker in self._members.keys() - self._changes.keys():
            late = f"its change has not come within {self._patience} s of the round's first"
            _drop(self._members[worker], late)

    # ---- its thread ----

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._listen(ready)])
        self._thread.start()
        ready.wait()
        return self

    async def _listen(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_unix_server(self._serve, sock=self._socket)
        ready.set()
        await self._stop.wait()
        server.close()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class Member:
    """A worker's place in the quorum, and the `Comm` of its DiLoCo.

    After each all-reduce `ranks` says how many changes are in the sum, and `last` whether training
    is over. ConnectionError: the quorum has left this worker behind, or is gone itself.
    """

    def __init__(self, path: Path, worker: int) -> None:
        self.rank, self.ranks, self.last, self._asked = worker, 0, False, False
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._stream = self._socket.makefile("rb")
        self._send({"join": worker})

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> None:
        """Do nothing: `join` is what makes replicas alike."""

    def join(self, optimizer: DiLoCo) -> None:
        """Wait until a member gives its state, unless this is the first one."""
        message = self._receive()
        if "state" in message:
            optimizer.load_state_dict(message["state"])
        self._asked = "first" in message
        self.share(optimizer)

    def all_reduce(self, tensor: Tensor, async_op: bool = False) -> None:
        """Sum a tensor over those who are in this round."""
        self._send({"change": tensor})
        message = self._receive()
        tensor.copy_(message["sum"])
        self.ranks, self._asked, self.last = message["ranks"], message["ask"], message["last"]

    def share(self, optimizer: DiLoCo) -> None:
        """Give this member's state to the newcomers, if the quorum has asked for it."""
        if self._asked:
            self._send({"state": optimizer.state_dict()})
            self._asked = False

    def _send(self, message: Message) -> None:
        with suppress(ConnectionError):  # the next answer says why
            self._socket.sendall(_framed(message))

    def _receive(self) -> Message:
        why = ""
        with suppress(ConnectionError):
            length = int.from_bytes(self._stream.read(LENGTH))
            body = self._stream.read(length)
            if length and len(body) == length:
                message = _opened(body)
                if "closed" not in message:
                    return message
                why = f": {message['closed']}"
        raise ConnectionError(f"worker {self.rank}: the quorum has closed the connection{why}")


def _framed(message: Message) -> bytes:
    buffer = io.BytesIO()
    torch.save(message, buffer)
    body = buffer.getvalue()
    return len(body).to_bytes(LENGTH) + body


def _opened(body: bytes) -> Message:
    try:
        message = torch.load(io.BytesIO(body), weights_only=True)  # runs no code
    except Exception as error:  # torch has no one kind for it
        raise BadMessage("expected a message of this protocol, got other bytes") from error
    if not isinstance(message, dict):
        raise BadMessage(f"expected a dict, got {type(message).__name__}")
    return message


def _layout(change: Tensor) -> str:
    return f"{change.dtype} of shape {tuple(change.shape)}"


def _drop(writer: asyncio.StreamWriter, why: str) -> None:
    """Close a worker's connection, and tell it why."""
    writer.write(_framed({"closed": why}))
    writer.transport.abort()


async def _receive(reader: asyncio.StreamReader) -> Message:
    length = await reader.readexactly(LENGTH)
    return _opened(await reader.readexactly(int.from_bytes(length)))

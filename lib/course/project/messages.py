"""The messages of a rank: noted, sent over an emulated link, and asked whether they would hang."""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from course.ask import journal
from course.ask.switchboard import Call, Part, Switchboard
from course.ask.verdict import Wrong
from minidist.schedule.cost import Link


class Message(NamedTuple):
    """One that a rank sends or receives."""

    sends: bool
    peer: int
    nbytes: int
    where: str = ""  # the learner's line

    def __str__(self) -> str:
        way = f"isend to rank {self.peer}" if self.sends else f"irecv from rank {self.peer}"
        return f"{way} ({self.where})" if self.where else way


Batches = list[list[Message]]  # one inner list per batch_isend_irecv, or single message


def check_order(name: str, orders: Sequence[Batches]) -> None:
    """Raise Wrong if NCCL could hang: there a call ends only with the one that it belongs to.

    Args:
        name: of the collective, or of the milestone and its case.
        orders: what each rank calls, in its order.
    """
    answered, errors = [0] * len(orders), list[str]()

    def reply(rank: int, _: int, error: str, __: object) -> None:
        answered[rank] += 1
        errors.append(error)

    board = Switchboard(len(orders), reply)
    for rank, batches in enumerate(orders):
        for number, batch in enumerate(batches):
            said = " and ".join(map(str, batch))
            parts = [Part(message.peer, sends=message.sends) for message in batch]
            board.post(rank, Call(number, name, f"in {said}", parts=parts))
    for rank, batches in enumerate(orders):
        if answered[rank] < len(batches):
            board.stuck(rank, answered[rank], heard=answered[rank])
        else:
            board.end(rank)
    if why := next(filter(None, errors), ""):
        raise Wrong(
            f"{name}: this is right over Gloo and would hang on GPUs. Under NCCL, calls run in the "
            f"order in which they are posted, and a send ends only with its receive. So {why}. "
            "Post both in one batch, `dist.batch_isend_irecv`, or in one order on all ranks."
        )


def sends(batches: Batches) -> list[int]:
    """The bytes of each message that this rank sends."""
    return [message.nbytes for batch in batches for message in batch if message.sends]


class OnLink(NamedTuple):
    """A message on an emulated link, with what callers use of a `Work`."""

    future: Future[Any]

    def wait(self) -> bool:
        """Wait until it has been received, and raise what went wrong."""
        return bool(self.future.result().wait())

    def is_completed(self) -> bool:
        """True once it has been received."""
        return self.future.done() and bool(self.future.result().is_completed())


@contextmanager
def recorded(link: Link | None = None) -> Iterator[Batches]:
    """Within it note the messages of this rank, which go over an emulated link if there is one.

    On the link a rank's messages follow one another, and each arrives after α + βn.
    """
    batches: Batches = []
    free = 0.0
    last: FrameType | None = None  # call of batch_isend_irecv
    send, receive = dist.ProcessGroup.send, dist.ProcessGroup.recv

    def note(is_send: bool, tensors: list[Tensor], peer: int) -> int:
        nonlocal last
        frame: FrameType | None = sys._getframe()
        while frame and frame.f_code.co_name != "batch_isend_irecv":
            frame = frame.f_back
        if not frame or frame is not last:
            batches.append([])
        last = frame
        nbytes = sum(tensor.nbytes for tensor in tensors)
        where = journal.write("isend" if is_send else "irecv", peer, nbytes)
        batches[-1].append(Message(is_send, peer, nbytes, where))
        return nbytes

    def noted_receive(group: Any, tensors: list[Tensor], peer: int, *args: Any) -> Any:
        note(False, tensors, peer)
        return receive(group, tensors, peer, *args)

    def noted_send(group: Any, tensors: list[Tensor], peer: int, *args: Any) -> Any:
        nonlocal free
        nbytes = note(True, tensors, peer)
        if link is None:
            return send(group, tensors, peer, *args)
        free = max(free, time.monotonic()) + link.alpha + link.beta * nbytes
        return OnLink(wire.submit(send_at, free, group, tensors, peer, *args))

    def send_at(moment: float, *args: Any) -> Any:
        time.sleep(max(0.0, moment - time.monotonic()))
        return send(*args)

    with (
        ThreadPoolExecutor(1) as wire,
        patch.multiple(dist.ProcessGroup, send=noted_send, recv=noted_receive),
    ):
        yield batches

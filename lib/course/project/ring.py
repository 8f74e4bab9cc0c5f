"""The first milestone: a ring all-reduce on nothing but send and receive."""

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from course.project.models import draw
from course.sandbox.forbidden import without_minidist, without_torch
from course.sandbox.switchboard import Call, Part, Switchboard
from course.verdict import Wrong, many
from minidist.schedule.cost import Link

INSTEAD = "`isend` and `irecv`, in one batch,"
SIZE = 1003  # elements of a chunk where traffic is counted
TOLERANCE = 1e-12  # in float64, where only the order of sums can make a difference


class Message(NamedTuple):
    """One that a rank sends or receives."""

    sends: bool
    peer: int
    nbytes: int


Batches = list[list[Message]]  # those of a list were posted together


def check_ring(module: ModuleType, seed: int) -> dict[str, Batches]:
    """On a rank: compare the module's collectives with sums of what every rank draws.

    One tensor has a size that is drawn with the seed.

    Returns the messages of each collective in the order of this rank's calls, for `check_order`.

    Raises:
        Wrong: a result is not what it must be, or this rank sends more than it needs to.
    """
    with without_torch(INSTEAD), without_minidist(INSTEAD):
        _check_results(module, seed)
        return _check_traffic(module)


def _check_results(module: ModuleType, seed: int) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    drawn = random.Random(seed).randrange(18, 200)
    for numel in (0, 1, ranks - 1, ranks, ranks + 1, 17, drawn):
        every = [draw(r, numel) for r in range(ranks)]
        tensor = every[rank].clone()
        module.all_reduce(tensor)
        by = f" (drawn with seed {seed})" if numel == drawn else ""
        _compare(f"all_reduce of {numel} elements{by}", tensor, torch.stack(every).sum(0))
    tables = torch.stack([draw(r, ranks, 3) for r in range(ranks)])
    mine, right = tables[rank], tables.sum(0)[rank]
    before, part, whole = mine.clone(), mine.new_empty(3), mine.new_empty(ranks, 3)
    module.reduce_scatter(part, mine)
    _compare("reduce_scatter", part, right)
    _compare("reduce_scatter's input afterwards", mine, before)
    own = torch.full((3,), float(rank)).double()
    module.all_gather(whole, own)
    _compare("all_gather", whole, torch.arange(ranks).double()[:, None].expand(-1, 3))


def _check_traffic(module: ModuleType) -> dict[str, Batches]:
    ranks = dist.get_world_size()
    full, part = torch.ones(ranks * SIZE).double(), torch.ones(SIZE).double()
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "all_reduce": (2, lambda: module.all_reduce(full)),
        "reduce_scatter": (1, lambda: module.reduce_scatter(part, full)),
        "all_gather": (1, lambda: module.all_gather(full, part)),
    }
    orders = {}
    for name, (phases, call) in calls.items():
        steps = phases * (ranks - 1)
        with recorded() as orders[name]:
            call()
        sent = sends(orders[name])
        if len(sent) != steps:
            raise Wrong(
                f"{name} gives the right result with {many(len(sent), 'message')} from this rank; "
                f"on {ranks} ranks a ring takes {steps}."
            )
        if sum(sent) != steps * part.nbytes:
            raise Wrong(
                f"{name} gives the right result, and this rank sends {sum(sent):,} bytes; a ring "
                f"takes {steps * part.nbytes:,}: {steps} messages of a chunk each."
            )
    return orders


def check_order(name: str, orders: Sequence[Batches]) -> None:
    """Raise Wrong if NCCL could hang: there a call ends only with the one that it belongs to.

    Args:
        name: of the collective.
        orders: what each rank calls, in its order.
    """
    answered, errors = [0] * len(orders), list[str]()

    def reply(rank: int, _: int, error: str, __: object) -> None:
        answered[rank] += 1
        errors.append(error)

    board = Switchboard(len(orders), reply)
    for rank, batches in enumerate(orders):
        for number, batch in enumerate(batches):
            said = ", ".join(f"{'to' if m.sends else 'from'} {m.peer}" for m in batch)
            parts = [Part(message.peer, sends=message.sends) for message in batch]
            board.post(rank, Call(number, name, said, parts=parts))
    for rank, batches in enumerate(orders):
        if answered[rank] < len(batches):
            board.stuck(rank, answered[rank], heard=answered[rank])
        else:
            board.end(rank)
    if why := next(filter(None, errors), ""):
        raise Wrong(
            f"{name} is right over Gloo and would hang on GPUs. Under NCCL, calls run in the order "
            f"in which they are posted, and a send ends only with its receive. So {why}. Post both "
            "in one batch, `dist.batch_isend_irecv`, or in one order on all ranks."
        )


def _compare(what: str, found: Tensor, right: Tensor) -> None:
    if not torch.allclose(found, right, TOLERANCE, TOLERANCE):
        off = (found - right).abs().max().item()
        gives = f"gives {_shown(found)}, expected {_shown(right)}"
        raise Wrong(f"{what} {gives}: it is off by up to {off:.2g}.")


def _shown(tensor: Tensor) -> str:
    """The first elements of a tensor, to four digits."""
    first = [f"{value:.4g}" for value in tensor.flatten()[:6].tolist()]
    return f"[{', '.join(first + ['...'] * (tensor.numel() > 6))}]"


# ---- what it costs ----


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
        """Whether it has been received."""
        return self.future.done() and bool(self.future.result().is_completed())


@contextmanager
def recorded(link: Link | None = None) -> Iterator[Batches]:
    """Within it note the messages of this rank, which go over an emulated link if there is one.

    On the link a rank's messages follow one another, and each arrives after α + βn.
    """
    batches: Batches = []
    frames: list[FrameType | None] = []  # of batch_isend_irecv, one for each batch
    free = 0.0
    send, receive = dist.ProcessGroup.send, dist.ProcessGroup.recv

    def note(is_send: bool, tensors: list[Tensor], peer: int) -> int:
        frame: FrameType | None = sys._getframe()
        while frame and frame.f_code.co_name != "batch_isend_irecv":
            frame = frame.f_back
        if not frame or not frames or frame is not frames[-1]:
            batches.append([])
            frames.append(frame)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        batches[-1].append(Message(is_send, peer, nbytes))
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

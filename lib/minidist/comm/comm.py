"""The seam between wrappers and collectives: the few calls that DDP, ZeRO and FSDP make.

A wrapper is handed a `Comm` and calls nothing else. So the same wrapper runs over minidist's
schedules (`Ours`), over the backend's own collectives (`Native`), or over either with something
done `Around` each call, such as counting it (`Counted`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.call import Call, collective, record
from minidist.collectives.checks.agreement import wanted
from minidist.collectives.runtime.executor import Sent
from minidist.collectives.runtime.group import check_group, members, wire_device
from minidist.collectives.runtime.reduction import Op
from minidist.collectives.runtime.work import in_order
from minidist.collectives.tensor import (
    all_gather_into_tensor,
    all_reduce,
    broadcast,
    reduce_scatter_tensor,
)
from minidist.collectives.tuner import CHOSEN
from minidist.profiler.timeline import Timed
from minidist.schedule.algorithms import ALL_REDUCE


class Handle(Timed, Protocol):
    """A collective on its way; it may know when it ran, once it is done."""

    def wait(self) -> object:
        """Return when the result is in place, in the order of the device's current stream."""


Pending = Handle | None  # of an asynchronous call; None when the result is in place
Start = Callable[[bool], Pending]  # a call that still wants its `async_op`


class Comm(Protocol):
    """The collectives that a wrapper calls, between the ranks of a group.

    Every call is made by all of them, in the same order, with tensors alike in size and dtype.
    With `async_op` it returns a `Handle` at once; until its `wait()` the tensors are the
    collective's. Without, it returns None when the result is in place.
    """

    group: ProcessGroup | None  # None: the default group
    rank: int  # in the group
    ranks: int

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        """Give every rank what is in `tensor` on the group's rank `group_src`, in place."""

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        """Reduce `tensor` over the ranks, in place."""

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        """Reduce `input`, N equal parts, over the ranks; rank r keeps the r-th in `output`."""

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        """Collect every rank's `input` in `output`, N times as large, in the order of ranks."""


def check_comm(argument: str, comm: object) -> None:
    """Raise TypeError for what is no `Comm`."""
    if not all(hasattr(comm, name) for name in ("all_gather", "reduce_scatter", "group")):
        kind = type(comm).__name__
        raise TypeError(f"{argument}: expected a Comm, such as Ours(), got {kind}")


def gather_objects(comm: Comm, mine: object) -> list[Any]:
    """One object of every rank, of any size, in the order of ranks; not counted as traffic."""
    found: list[Any] = [None] * comm.ranks
    group = members(comm.group)
    gather = partial(dist.all_gather_object, found, mine, group)
    in_order(group, gather, wire_device(group), async_op=False)
    return found


def broadcast_coalesced(tensors: Iterable[Tensor], comm: Comm, group_src: int = 0) -> None:
    """Write the tensors of the group's rank `group_src` into those of every other rank.

    They are alike on all ranks, but for strides, and travel in one message for each dtype and
    device. Autograd does not see that they are written: a second forward may broadcast a buffer
    that the backward of the first still holds, as BatchNorm's do, which does not read it there.
    """
    kinds: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
        comm.broadcast(flat, group_src)
        if comm.rank != group_src:
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.data.copy_(part.view(tensor.shape))


# ---- before they do something together, ranks agree that they all are about to ----

# A wrapper's work spans many collectives. If one rank wraps another model, or is a step ahead, the
# collectives may still match one by one and give nonsense. So at its landmarks (construction, a
# forward, a backward, a step) a wrapper compares facts between the ranks, where checks are on.


def checks_are_on() -> bool:
    """True if ranks compare their calls by default; `launch` switches that on."""
    return wanted(None)


def agree_on(
    comm: Comm,
    what: str,
    facts: Mapping[str, object] | None = None,
    problem: Exception | None = None,
    *,
    check: bool | None = None,
    async_op: bool = False,
) -> Handle | None:
    """Raise on every rank unless all ranks make this call with the same facts.

    Args:
        facts: name → value; compared as text.
        problem: what is wrong on this rank, found before the call; the other ranks learn of it.
        check: compare the facts even if checks are off; None for what `launch` has set.
        async_op: return a handle at once; its `wait()` raises what this call would raise.

    Raises:
        MismatchError: the ranks differ, or another rank has a problem. Only where checks are on.
        TypeError, ValueError, RuntimeError: this rank's own problem, with its number in front.
    """
    if problem is None and not wanted(check):
        return None

    def steps(call: Call) -> Iterator[None]:
        for name, value in (facts or {}).items():
            call.agree_on(name, value)
        if problem is not None:
            raise problem
        yield

    return collective(what, comm.group, async_op, check, steps)


@contextmanager
def agreed(comm: Comm, what: str, facts: Mapping[str, object] | None = None) -> Iterator[None]:
    """Run the block, then `agree_on`: if it raises on one rank, all raise."""
    problem: Exception | None = None
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        problem = error
    agree_on(comm, what, facts, problem)


# ---- who makes the calls ----


class Ours:
    """minidist's own collectives.

    Args:
        group: the default group if None.
        algorithm: of `all_reduce`. Its two halves are also chosen by "auto" and also go through
            "shared_memory"; with any other they go by the ring. Broadcasts go by the tree.
        check: whether the ranks agree before each call, as in `minidist.all_reduce`.

    Raises TypeError or ValueError if this rank is not in the group, or for an unknown algorithm.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        algorithm: str = "auto",
        check: bool | None = None,
    ) -> None:
        check_group(group)
        self.group, self._algorithm, self._check = group, algorithm, check
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        known = [*ALL_REDUCE, *CHOSEN]
        if algorithm not in known:
            where = f"rank {dist.get_rank()}: algorithm"
            raise ValueError(f"{where} must be one of {', '.join(known)}, got {algorithm!r}")
        self._half = algorithm if algorithm in ("auto", "shared_memory") else "ring"

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        """As `minidist.broadcast`."""
        return broadcast(tensor, None, self.group, async_op, group_src, check=self._check)

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        """As `minidist.all_reduce`."""
        return all_reduce(
            tensor, op, self.group, async_op, algorithm=self._algorithm, check=self._check
        )

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        """As `minidist.reduce_scatter_tensor`."""
        return reduce_scatter_tensor(
            output, input, op, self.group, async_op, algorithm=self._half, check=self._check
        )

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        """As `minidist.all_gather_into_tensor`."""
        return all_gather_into_tensor(
            output, input, self.group, async_op, algorithm=self._half, check=self._check
        )


class NativeWork:
    """The backend's handle."""

    span = None  # the backend does not tell when it started and ended

    def __init__(self, work: dist.Work) -> None:
        self._work: dist.Work | None = work

    def wait(self) -> bool:
        """Return True when the result is in place."""
        if self._work:  # once: Gloo's reduce-scatter puts its sum in place at each wait
            self._work.wait()
            self._work = None
        return True


class Native:
    """The backend's own collectives, as torch.distributed calls them; Gloo's know no AVG.

    Tensors must be contiguous: on others Gloo is silently wrong.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        check_group(group)
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        """As `torch.distributed.broadcast`."""
        _check_contiguous(tensor=tensor)
        return _handle(dist.broadcast(tensor, None, self.group, async_op, group_src))

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        """As `torch.distributed.all_reduce`."""
        _check_contiguous(tensor=tensor)
        return _handle(dist.all_reduce(tensor, op, self.group, async_op))

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        """As `torch.distributed.reduce_scatter_tensor`."""
        _check_contiguous(output=output, input=input)  # flat, for Gloo wants shapes that fit
        return _handle(_reduce_scatter(output.view(-1), input.view(-1), op, self.group, async_op))

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        """As `torch.distributed.all_gather_into_tensor`."""
        _check_contiguous(output=output, input=input)
        return _handle(_all_gather(output.view(-1), input.view(-1), self.group, async_op))


# torch 2.13 has new names, and warns of the old ones
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _check_contiguous(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            where = f"rank {dist.get_rank()}: {name}"
            raise ValueError(f"{where}: expected a contiguous tensor; pass .contiguous()")


def _handle(work: dist.Work | None) -> NativeWork | None:
    return NativeWork(work) if work else None  # None: it is done


class Around:
    """A `Comm` that hands each call to another one; a subclass says what happens around it."""

    def __init__(self, comm: Comm) -> None:
        self.group, self.rank, self.ranks = comm.group, comm.rank, comm.ranks
        self._comm = comm

    def around(self, name: str, full: Tensor, call: Start, async_op: bool) -> Pending:
        """Make the call. `full`: an all-gather's output, or else what is reduced or sent."""
        raise NotImplementedError

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        """Make the call, with something around it."""
        call = partial(self._comm.broadcast, tensor, group_src)
        return self.around("broadcast", tensor, call, async_op)

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        """Make the call, with something around it."""
        call = partial(self._comm.all_reduce, tensor, op)
        return self.around("all_reduce", tensor, call, async_op)

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        """Make the call, with something around it."""
        call = partial(self._comm.reduce_scatter, output, input, op)
        return self.around("reduce_scatter", input, call, async_op)

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        """Make the call, with something around it."""
        call = partial(self._comm.all_gather, output, input)
        return self.around("all_gather", output, call, async_op)


class CountedCall(NamedTuple):
    """One call: of what, and the bytes of an all-gather's output, or of what is reduced or sent."""

    name: str
    nbytes: int


class Counted(Around):
    """A `Comm` that counts what goes through another one; `calls` are those so far."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self.calls: list[CountedCall] = []
        self._logs: list[list[Sent]] = []  # of each call: an asynchronous one goes on writing

    @property
    def bytes_sent(self) -> int:
        """The bytes that this rank has sent by minidist's schedules; a backend's are not known."""
        return sum(message.nbytes for log in self._logs for message in log)

    @property
    def messages_sent(self) -> int:
        """The number of those messages."""
        return sum(map(len, self._logs))

    def clear(self) -> None:
        """Count anew; the messages of calls that are still on their way are not counted."""
        self.calls.clear()
        self._logs.clear()

    def around(self, name: str, full: Tensor, call: Start, async_op: bool) -> Pending:
        """Note the call, and the messages that it sends."""
        self.calls.append(CountedCall(name, full.nbytes))
        with record() as log:
            self._logs.append(log)
            return call(async_op)

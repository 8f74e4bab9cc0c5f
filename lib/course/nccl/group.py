"""A process group by NCCL's rules, whose messages go through the switchboard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist
from torch._C import DisableTorchFunction
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d
from torch.utils._pytree import tree_leaves

from course.ask.switchboard import Part
from course.nccl import gpu
from course.nccl.line import Line, Ticket

Tensors = Sequence[torch.Tensor]
Wire = tuple[bytes, torch.dtype]
Combine = Callable[[Any], torch.Tensor]
REFUSED = "No backend type associated with device type cpu"  # torch's own words

REDUCTIONS: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}


def pack(tensor: torch.Tensor) -> Wire:
    """The tensor as bytes; on the GPU it is read when what writes it has run."""
    gpu.need(tensor)
    flat = tensor.detach().reshape(-1).contiguous().clone()
    with DisableTorchFunction():
        return flat.view(torch.uint8).numpy().tobytes(), flat.dtype


def unpack(wire: Wire) -> torch.Tensor:
    """The tensor again, flat."""
    data, dtype = wire
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def fill(outputs: Tensors, values: Tensors) -> None:
    """Write flat values into tensors that have as many elements; autograd does not see it."""
    if len(outputs) != len(values):
        values = torch.cat(list(values)).split_with_sizes([each.numel() for each in outputs])
    for output, value in zip(outputs, values, strict=True):
        output.data.copy_(value.view(output.shape))  # unseen by autograd, as a GPU writes


def reduction(op: Any) -> tuple[Combine, Any]:
    """A function that reduces all ranks' tensors, and its name."""
    kind = getattr(op, "op", op)
    if kind not in REDUCTIONS:
        raise NotImplementedError(f"the emulated NCCL does not know {kind}")

    def reduced(tensors: Tensors) -> torch.Tensor:
        total = reduce(REDUCTIONS[kind], tensors)
        return total / len(tensors) if kind == ReduceOp.AVG else total

    return reduced, kind


class Work(dist.Work):
    """A call on its way; on a GPU `wait()` only orders what follows."""

    def __init__(self, ticket: Ticket, outputs: Tensors, blocks: bool = False) -> None:
        super().__init__()
        self._ticket, self._outputs, self._blocks = ticket, list(outputs), blocks

    def wait(self, timeout: Any = None) -> bool:
        """Let later kernels run after the call; a barrier alone blocks the host."""
        if self._blocks:
            self._ticket.wait()
        self._ticket.ordered = True
        return True

    def is_completed(self) -> bool:
        """True once it has run."""
        return self._ticket.answered()

    def get_future(self) -> Any:
        """Done at once, as NCCL's are when the call is queued."""
        self.wait()
        future = torch.futures.Future[list[torch.Tensor]]()
        future.set_result(self._outputs)
        return future

    getFuture = get_future


def by_place(method: Callable[..., Any]) -> Callable[..., Any]:
    """Run the method for tensors on the GPU; Gloo's for others, or raise as NCCL does."""

    @wraps(method)
    def call(self: Group, *args: Any) -> Any:
        tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
        gpus = {gpu.gpu_of(tensor) for tensor in tensors}
        if gpus == {None} and self.gloo:
            return getattr(self.gloo, method.__name__)(*args)
        if None in gpus:
            if sys._getframe(1).f_code.co_filename == c10d.__file__:
                raise RuntimeError(REFUSED)
            for tensor in tensors:  # C++ has made it, who takes the GPU's tensors for the CPU's
                gpu.put(tensor, torch.cuda.current_device())
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise ValueError("Tensors must be contiguous")
        return method(self, *args)

    return call


class Group(dist.ProcessGroup):
    """The ranks of a group.

    Args:
        rank: in the group.
        ranks: of its members in the default group.
        name: of the group.
        line: to the switchboard.
        gloo: moves its tensors on the CPU; None if it moves none.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        name: str,
        line: Line,
        gloo: dist.ProcessGroup | None,
    ) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg]
        self.ranks, self.line, self._name, self.gloo = list(ranks), line, name, gloo
        self._met: set[int] = set()  # peers with which there is a communicator

    def getBackendName(self) -> str:
        """As torch asks for it."""
        return "nccl"

    @property
    def group_name(self) -> Any:
        """As torch asks for it."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in ("cuda", "cpu")[: 2 if self.gloo else 1]]

    def _get_backend(self, device: torch.device) -> Any:
        return self.gloo._get_backend(device) if self.gloo and device.type == "cpu" else self

    def _post(
        self, then: Callable[[Any], None], channel: Any, name: str, outputs: Tensors, **call: Any
    ) -> Work:
        ticket = self.line.post(then, channel, name, **call)
        gpu.will_write(ticket, outputs)
        return Work(ticket, outputs)

    # ---- messages ----

    @by_place
    def send(self, tensors: Tensors, dst: int, tag: int) -> Work:
        """One that is in no batch: it ends when the receive has taken it."""
        part = Part(self.ranks[dst], pack(tensors[0]))
        return self._one(f"in isend to rank {self.ranks[dst]}", dst, part, [])

    @by_place
    def recv(self, tensors: Tensors, src: int, tag: int) -> Work:
        """The other end of a send."""
        part = Part(self.ranks[src], sends=False)
        return self._one(f"in irecv from rank {self.ranks[src]}", src, part, tensors)

    def _one(self, name: str, peer: int, part: Part, outputs: Tensors) -> Work:
        pair = sorted((self.ranks[self.rank()], self.ranks[peer]))
        if peer not in self._met:
            first = f"{name}, their first call, which both must make"
            self.line.post(no_result, ("first", self._name, *pair), first, ranks=pair).wait()
            self._met.add(peer)
        return self._messages((self._name, *pair), name, [part], outputs)

    def _messages(self, channel: Any, name: str, parts: list[Part], outputs: Tensors) -> Work:
        def then(values: list[Wire]) -> None:
            fill(outputs, [unpack(value) for value in values])

        return self._post(then, channel, name, outputs, parts=parts)

    def batch(self, ops: Sequence[dist.P2POp]) -> list[Any]:
        """Messages that travel together, on the group's stream."""
        if all(gpu.gpu_of(op.tensor) is None for op in ops):
            return [op.op(op.tensor, group=op.group, tag=op.tag, **_peer(op)) for op in ops]
        return [self._batch([op.tensor for op in ops], ops)]

    @by_place
    def _batch(self, tensors: Tensors, ops: Sequence[dist.P2POp]) -> Work:
        parts = [
            Part(self.ranks[op.group_peer], pack(op.tensor), True)
            if op.op is dist.isend
            else Part(self.ranks[op.group_peer], sends=False)
            for op in ops
        ]
        outputs = [op.tensor for op in ops if op.op is not dist.isend]
        name = f"in batch_isend_irecv with ranks {sorted({part.peer for part in parts})}"
        return self._messages((self._name,), name, parts, outputs)

    # ---- collectives: each combines what all ranks bring for one of its inputs ----

    def _collective(
        self, name: str, inputs: Tensors, outputs: Tensors, combine: Combine, like: Any = ""
    ) -> Work:
        """All ranks' inputs must be of the same sizes, and `like` the same."""
        return self._call(
            name, inputs, outputs, lambda all_: [*map(combine, zip(*all_, strict=True))], like
        )

    def _exchange(
        self, name: str, inputs: Tensors, outputs: Tensors, combine: Combine, like: Any = ""
    ) -> Work:
        """The r-th inputs are for rank r."""
        me = self.rank()
        return self._call(
            name, inputs, outputs, lambda all_: [combine([own[me] for own in all_])], like
        )

    def _call(
        self,
        name: str,
        inputs: Tensors,
        outputs: Tensors,
        result: Callable[[list[Tensors]], Tensors],
        like: Any,
    ) -> Work:
        sizes = ", ".join(f"{each.numel()} × {str(each.dtype)[6:]}" for each in inputs)
        said = f"{name}({sizes}{like and f', {like}'})"

        def then(payloads: list[list[Wire]]) -> None:
            if outputs:
                fill(outputs, result([[*map(unpack, each)] for each in payloads]))

        return self._post(
            then,
            (self._name,),
            said,
            outputs,
            ranks=self.ranks,
            sign=f"{name} {like}" if name in ("scatter", "all_to_all_single") else said,
            payload=[*map(pack, inputs)],
        )

    @by_place
    def allreduce(self, tensors: Tensors, opts: Any) -> Work:
        return self._collective("all_reduce", tensors, tensors, *reduction(opts.reduceOp))

    @by_place
    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        combine, kind = reduction(opts.reduceOp)
        like, root = f"to {opts.rootRank}, {kind}", opts.rootRank == self.rank()
        return self._collective("reduce", tensors, tensors if root else [], combine, like)

    @by_place
    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        root = opts.rootRank
        return self._collective("broadcast", tensors, tensors, itemgetter(root), f"from {root}")

    @by_place
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self._collective("all_gather", inputs, outputs[0], torch.cat)

    @by_place
    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        return self._collective("all_gather", inputs, outputs, torch.cat)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input], opts)

    @by_place
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        into = outputs[0] if outputs else []
        return self._collective("gather", inputs, into, torch.cat, f"to {opts.rootRank}")

    @by_place
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        root, me, given = opts.rootRank, self.rank(), inputs[0] if inputs else []
        return self._call("scatter", given, outputs, lambda all_: [all_[root][me]], f"from {root}")

    @by_place
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        return self._exchange("reduce_scatter", inputs[0], outputs, *reduction(opts.reduceOp))

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self.reduce_scatter([output], [input.view(-1).chunk(self.size())], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        for output, input in zip(outputs, inputs, strict=True):
            work = self.reduce_scatter_single(output, input, opts)
            work.wait()
        return work

    @by_place
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._exchange("all_to_all", inputs, outputs, torch.cat)

    @by_place
    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Work:
        splits = input_splits or [len(input) // self.size()] * self.size()
        pieces = input.split_with_sizes(splits)
        return self._exchange("all_to_all_single", pieces, [output], torch.cat)

    def barrier(self, opts: Any = None) -> Work:
        """Its `wait()` blocks the host."""
        everyone = {"ranks": self.ranks, "sign": "barrier"}
        ticket = self.line.post(no_result, (self._name,), "barrier()", **everyone)
        return Work(ticket, [], blocks=True)

    allreduce_coalesced = allreduce
    # names of torch before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single


def _peer(op: dist.P2POp) -> dict[str, int]:
    return {"group_dst" if op.op is dist.isend else "group_src": op.group_peer}


def no_result(_: Any) -> None:
    """There is no result."""

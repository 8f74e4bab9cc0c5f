"""The frame of all collectives: check the arguments, agree on them between ranks, run in turn.

A collective is a generator with one `yield`. Before it, the collective checks this rank's arguments
and raises for what is wrong; behind it, all ranks have made the same call, and it sends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from weakref import ref

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from minidist.collectives.checks import agreement
from minidist.collectives.checks import tensors as checks
from minidist.collectives.runtime.executor import Sent, execute
from minidist.collectives.runtime.group import check_group, members, wire_device
from minidist.collectives.runtime.notes import gather_rows
from minidist.collectives.runtime.reduction import Reduce
from minidist.collectives.runtime.work import Work, in_order
from minidist.collectives.tuner import Choice
from minidist.diagnose import recorder
from minidist.errors import MismatchError, check_flags
from minidist.schedule.program import program_of
from minidist.schedule.schedule import Algorithm

Steps = Callable[["Call"], Iterator[None]]
_log: list[Sent] | None = None


@contextmanager
def record() -> Iterator[list[Sent]]:
    """Collectives called within it note each message that this rank sends; the check's are not."""
    global _log
    before, _log = _log, []
    try:
        yield _log
    finally:
        _log = before


class Call:
    def __init__(
        self, name: str, group: ProcessGroup | None, check: bool | None, steps: Steps
    ) -> None:
        check_group(group, f"{name}: ")
        self.steps = steps  # holds the caller's tensors, until `wait()`
        self.name, self.group, self.log = name, group, _log
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.checked = self.ranks > 1 and agreement.wanted(check)
        self.facts = {"the call": name}  # the values on which all ranks must agree
        self.choice: Choice | None = None  # where there are several algorithms
        self.device = wire_device(group)
        self.tensors: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []  # the tensors that are written

    def agree_on(self, argument: str, value: object) -> None:
        self.facts[argument] = str(value)

    def root(
        self,
        argument: str,
        rank: int | None,
        group_rank: int | None,
        default: int | None = None,
    ) -> int:
        if rank is not None and group_rank is not None:
            raise ValueError(f"{argument} and group_{argument}: pass one of them, not both")
        ranks = known = dist.get_process_group_ranks(self.group)
        if group_rank is not None:
            argument, rank, known = f"group_{argument}", group_rank, list(range(self.ranks))
        root = default if rank is None else rank
        if root not in known or isinstance(root, bool):
            raise ValueError(f"{argument} must be one of the group's ranks {known}, got {root!r}")
        index = known.index(root)
        self.agree_on("the root", f"rank {ranks[index]}")
        return index

    def takes(
        self, argument: str, tensor: torch.Tensor, *, written: bool, any_shape: bool = False
    ) -> None:
        """A tensor that is alike on all ranks; with `any_shape`, but for its shape."""
        checks.check_tensor(argument, tensor, self.group, written=written)
        self.device = tensor.device
        self.tensors.append(tensor)
        self.outputs += [tensor] if written else []
        if not any_shape:
            self.agree_on(f"{argument}'s shape", tuple(tensor.shape))
        self.agree_on(f"{argument}'s dtype", tensor.dtype)
        self.agree_on(f"{argument}'s device", tensor.device.type)

    def takes_list(
        self,
        argument: str,
        tensors: Sequence[torch.Tensor] | None,
        like: Mapping[str, torch.Tensor] | None = None,
        *,
        written: bool,
    ) -> list[torch.Tensor]:
        """A tensor for each rank, like the one in `like` and apart from it; or of any size."""
        expected = f"expected a list of {self.ranks} tensors, one for each rank"
        if not isinstance(tensors, list | tuple):
            raise TypeError(f"{argument}: {expected}, got a {type(tensors).__name__}")
        if len(tensors) != self.ranks:
            raise ValueError(f"{argument}: {expected}, got {len(tensors)}")
        named = checks.by_name(argument, tensors)
        [(name, other)] = like.items() if like else [(f"{argument}[0]", tensors[0])]
        for each, tensor in named.items():
            checks.check_tensor(each, tensor, self.group, written=written)
            checks.check_like(each, tensor, name, other, times=1 if like else 0)
        if like and written:  # but a rank's own part may be in its place already
            checks.check_apart(named, {} if checks.same_place(other, tensors[self.rank]) else like)
        elif like:
            others = {n: each for n, each in named.items() if not checks.same_place(other, each)}
            checks.check_apart(like, others)
        self.outputs += tensors if written else ()
        return list(tensors)

    def match(self, given: str, gives: Sequence[int], wanted: str, wants: Sequence[int]) -> None:
        rows = {self.rank: [gives, wants]}  # unchecked, the others' numbers are not known
        if self.checked:
            table = torch.zeros(self.ranks, 2, self.ranks, dtype=torch.int64, device="cpu")
            table[self.rank] = torch.tensor([gives, wants], device="cpu")
            rows = dict(enumerate(gather_rows(table, self.group).tolist()))
        for (src, (sent, _)), (dst, (_, room)) in product(rows.items(), repeat=2):
            if sent[dst] != room[src]:
                ranks = dist.get_process_group_ranks(self.group)
                raise MismatchError(
                    f"{self.name}: rank {ranks[src]}'s {given} has {sent[dst]} elements for "
                    f"rank {ranks[dst]}, whose {wanted} has room for {room[src]}"
                )

    def execute(
        self,
        algorithm: Algorithm,
        tensor: torch.Tensor | Mapping[int, torch.Tensor],
        reduce: Reduce = torch.Tensor.copy_,  # never called where the schedule reduces nothing
        **options: int,
    ) -> None:
        prog = program_of(algorithm, self.ranks, self.rank, **options)
        execute(prog, tensor, reduce, self.group, self.log)


def collective(
    name: str, group: ProcessGroup | None, async_op: bool, check: bool | None, steps: Steps
) -> Work | None:
    """Run a collective, written as above, on all ranks or on none."""
    problem: Exception | None = None
    try:
        check_flags({"async_op": async_op, "check": check})
    except TypeError as error:  # raised below, on all ranks
        problem, async_op, check = error, False, None
    call = Call(name, group, check, steps)
    phases = steps(call)
    try:
        if problem is None:
            next(phases)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = error
    entry = recorder.entered(name, members(group), call.tensors, call.facts)

    def body() -> None:
        where = f"rank {dist.get_rank()}: {name}"
        # In inference mode there are no gradients, and tensors made in it may be written.
        with entry, torch.inference_mode():
            if call.checked:
                waits = call.choice is not None and call.choice.begins_with_barrier()
                agreement.agree(call.facts, problem, group, has_barrier=waits)
            if problem is not None:
                raise type(problem)(f"{where}: {problem}") from problem
            try:
                next(phases, None)
            except ValueError as error:  # found by all ranks together: they share no memory
                raise ValueError(f"{where}: {error}") from error

    work = in_order(members(group), body, call.device, async_op)
    if work:
        work.outputs = [ref(tensor) for tensor in call.outputs]
    return work

"""The course of every collective, and how the messages of calls are recorded.

Check the arguments; unless switched off, make sure that all ranks agree on them; run; each call in
its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import SupportsIndex

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from minidist.collectives.checks import agreement
from minidist.collectives.checks.tensors import by_name, check_like, check_tensor
from minidist.collectives.runtime.executor import Sent, execute
from minidist.collectives.runtime.group import check_group, global_rank, members, wire_device
from minidist.collectives.runtime.reduction import Reduce
from minidist.collectives.runtime.work import Work, in_order
from minidist.schedule.program import Program, program_of
from minidist.schedule.schedule import Algorithm

Run = Callable[[], None]
OVERWRITE: Reduce = torch.Tensor.copy_  # for schedules that reduce nothing: it is never called

_log: list[Sent] | None = None


@contextmanager
def record() -> Iterator[list[Sent]]:
    """Collectives called within it note every message that this rank sends in the list.

    The messages of the check between ranks are not among them.
    """
    global _log
    before, _log = _log, []
    try:
        yield _log
    finally:
        _log = before


class Call:
    """One rank's call of a collective, while it is prepared and run.

    Attributes:
        checked: whether the ranks compare this call.
        facts: argument → description, on which all ranks must agree. Only if `checked`.
        blocks: what must match between two ranks. Only if `checked`.
        outputs: the tensors that are written.
        meets_first: whether running it begins with a barrier in shared memory, where digests can
            be compared. Called when all earlier calls of the group are done.
    """

    def __init__(self, name: str, group: ProcessGroup | None, check: bool | None) -> None:
        try:
            check_group(group)
        except (TypeError, ValueError) as error:
            raise type(error)(f"rank {dist.get_rank()}: {name}: {error}") from None
        self.name, self.group, self.log = name, group, _log
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.checked = self.ranks > 1 and agreement.wanted(check)
        self.facts: agreement.Facts = {"the call": name}
        self.blocks: agreement.Blocks | None = None
        self.outputs: list[torch.Tensor] = []
        self.meets_first: Callable[[], bool] = lambda: False
        self.wire = self.device = wire_device(group)

    def agree_on(self, argument: str, value: object) -> None:
        """All ranks must pass the same."""
        if self.checked:
            self.facts[argument] = str(value)

    def one_of(self, known: Iterable[str], algorithm: str) -> None:
        """All ranks must pass the same, and one that we have."""
        self.agree_on("algorithm", algorithm)
        names = list(known)
        if algorithm not in names:
            raise ValueError(f"algorithm must be one of {', '.join(names)}, got {algorithm!r}")

    def match(self, given: str, gives: Sequence[int], wanted: str, wants: Sequence[int]) -> None:
        """What this rank gives to each, and wants from each, in elements: pairs must agree."""
        kept, got = gives[self.rank], wants[self.rank]
        if kept != got:
            raise ValueError(
                f"{given} has {kept} elements for this rank itself, but {wanted} has room for {got}"
            )
        if self.checked:
            self.blocks = agreement.Blocks(given, wanted, gives, wants)

    def root(self, argument: str, rank: int | None, group_rank: int | None) -> int:
        """The group's number of the rank that all name, by its global or its group's number."""
        if rank is not None and group_rank is not None:
            raise ValueError(f"{argument} and group_{argument}: pass one of them, not both")
        known = dist.get_process_group_ranks(members(self.group))
        if group_rank is not None:
            argument, rank, known = f"group_{argument}", group_rank, list(range(self.ranks))
        root = 0 if rank is None else rank
        if isinstance(root, bool) or not isinstance(root, SupportsIndex):
            raise TypeError(f"{argument}: expected the number of a rank, got {root!r}")
        if root not in known:
            raise ValueError(f"{argument} must be one of the group's ranks {known}, got {root}")
        found = known.index(root)
        self.agree_on("the root", f"rank {global_rank(found, self.group)}")
        return found

    def takes(
        self, argument: str, tensor: torch.Tensor, *, written: bool, any_shape: bool = False
    ) -> None:
        """A tensor that is alike on all ranks; with `any_shape`, but for its shape."""
        named(argument, check_tensor, tensor, self.group, written=written)
        self.device = tensor.device
        if written:
            self.outputs.append(tensor)
        if self.checked:
            shape = {} if any_shape else {f"{argument}'s shape": str(tuple(tensor.shape))}
            self.facts |= shape | {
                f"{argument}'s dtype": str(tensor.dtype),
                f"{argument}'s device": tensor.device.type,
            }

    def takes_list(
        self,
        argument: str,
        tensors: Sequence[torch.Tensor] | None,
        like: Mapping[str, torch.Tensor] | None = None,
        *,
        written: bool,
        any_size: bool = False,
    ) -> list[torch.Tensor]:
        """A tensor for each rank, like another one (or the first) in dtype, device and size."""
        expected = f"expected a list of {self.ranks} tensors, one for each rank"
        if not isinstance(tensors, list | tuple):
            raise TypeError(f"{argument}: {expected}, got a {type(tensors).__name__}")
        if len(tensors) != self.ranks:
            raise ValueError(f"{argument}: {expected}, got {len(tensors)}")
        like = like or {f"{argument}[0]": tensors[0]}
        for name, tensor in by_name(argument, tensors).items():
            named(name, check_tensor, tensor, self.group, written=written)
            named(name, check_like, tensor, like, any_size=any_size)
        self.outputs += tensors if written else ()
        return list(tensors)

    def program(self, algorithm: Algorithm, **options: int) -> Program:
        """What this rank has to do."""
        return program_of(algorithm, self.ranks, self.rank, **options)

    def execute(
        self,
        prog: Program,
        tensor: torch.Tensor | Mapping[int, torch.Tensor],
        reduce: Reduce = OVERWRITE,
    ) -> None:
        """Run the program between the group's ranks on flat memory, in place."""
        execute(prog, tensor, reduce, self.group, self.log)

    def compare(self, problem: Exception | None) -> None:
        """Raise MismatchError unless all ranks make this call and none has a problem."""
        agree = partial(agreement.agree, self.facts, problem, self.group)
        segments = agreement.shared_or_none(self.group)
        if segments is None:
            agree()
        else:
            segments.compare(agreement.digest(self.facts, problem), agree)
            if problem is not None or not self.meets_first():
                segments.barrier()
        if self.blocks and problem is None:
            agreement.match(self.name, self.blocks, self.group)


def collective(
    name: str,
    group: ProcessGroup | None,
    async_op: bool,
    check: bool | None,
    prepare: Callable[[Call], Run],
) -> Work | None:
    """Prepare a collective, agree on it, run it.

    Args:
        name: what the user called.
        prepare: looks at this rank's arguments, raises if they are wrong, and returns what is to
            be run when all ranks agree.
    """
    call = Call(name, group, check)
    problem: Exception | None = None
    run: Run | None = None
    try:
        run = prepare(call)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = error

    def body() -> None:
        # In inference mode there are no gradients, and tensors made in it may be written.
        with torch.inference_mode():
            if call.checked:
                call.compare(problem)
            if problem is not None:
                where = f"rank {dist.get_rank()}: {name}"
                raise type(problem)(f"{where}: {problem}") from problem
            assert run is not None
            run()

    return in_order(members(group), body, call.device, async_op, call.outputs)


def named(argument: str, check: Callable[..., None], *args: object, **options: object) -> None:
    """Put the argument's name before what is wrong with it."""
    try:
        check(*args, **options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None

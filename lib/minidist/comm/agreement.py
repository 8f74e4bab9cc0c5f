"""Before ranks do something together, they agree that they all are about to.

A wrapper's work spans many collectives. If one rank wraps another model, or is a step ahead, the
collectives may still match one by one and give nonsense. So at its landmarks (construction, a
forward, a backward, a step) a wrapper compares facts between the ranks, where checks are on.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.distributed as dist

from minidist.collectives.call import Call, collective
from minidist.collectives.checks.agreement import wanted
from minidist.collectives.runtime.group import members, wire_device
from minidist.collectives.runtime.work import in_order
from minidist.comm.comm import Comm, Handle


def gather_objects(comm: Comm, mine: object) -> list[Any]:
    """Return an object of every rank, in the order of ranks; not counted as traffic."""
    objects: list[Any] = [None] * comm.ranks
    group = members(comm.group)
    gather = partial(dist.all_gather_object, objects, mine, group)
    in_order(group, gather, wire_device(group), async_op=False)
    return objects


def checks_are_on() -> bool:
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

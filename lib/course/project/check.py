"""A milestone on a rank: what comes out in its scenarios, and what the rank sends for it."""

from contextlib import ExitStack
from random import Random
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course.ask.verdict import Wrong, many
from course.project.messages import Batches, recorded, sends
from course.project.milestones import Milestone
from course.project.models import WHY
from course.project.scenarios import Tally
from course.project.submission import LESSON, found
from minidist.comm.ours import Ours

TOLERANCE = 1e-9  # in float64, where only the order of sums can make a difference
ENOUGH = 0.8  # share of `from_scratch`'s bytes: numbers of tokens may be shorter than its int64


class Sent(NamedTuple):
    """The traffic of a rank in a scenario."""

    messages: int
    nbytes: int
    batches: Batches  # messages that it posts itself


def check_cases(written: Any, milestone: Milestone, seed: int) -> dict[str, Sent]:
    """On a rank: compare results with one process, and what this rank sends with `from_scratch`.

    Raises:
        Wrong: a result is not that of one process, or this rank sends too much or by other means.
    """
    every = dict[str, Sent]()
    for case in milestone.others:
        run(written, milestone, case, seed)
    for case in milestone.cases:
        lesson = found(LESSON, milestone.file, *milestone.names)
        least, own = (run(each, milestone, case, seed) for each in (lesson, written))
        where = f"{case}, {many(dist.get_world_size(), 'rank')}: the results are right, and"
        if own.messages > least.messages or own.nbytes > least.nbytes:
            raise Wrong(
                f"{where} this rank sends {many(own.messages, 'message')} and {own.nbytes:,} "
                f"bytes; {least.messages} and {least.nbytes:,} are enough."
            )
        if own.nbytes < ENOUGH * least.nbytes:
            raise Wrong(
                f"{where} {own.nbytes:,} of the {least.nbytes:,} bytes that it takes went through "
                f"{milestone.means.instead}. Send nothing by other means, and do not keep what can "
                "be sent again."
            )
        every[case] = own
    return every


def run(written: Any, milestone: Milestone, case: str, seed: int) -> Sent:
    """Run one case; compare what comes out."""
    comm, means, size = Tally(Ours(algorithm="ring")), milestone.means, Random(seed).randint
    where = f"{case.format(seed=seed)}, {many(comm.ranks, 'rank')}"
    with ExitStack() as stack:
        for without in means.without:
            stack.enter_context(without(means.instead))
        batches = stack.enter_context(recorded())
        arguments = {**milestone.cases, **milestone.others}[case]
        for what, mine, right in milestone.scenario(written, comm, size, *arguments):
            if not isinstance(mine, Tensor):
                raise Wrong(f"{where}: {what} is {mine!r:.60}, expected a tensor.")
            compare(f"{where}: {what}", mine.detach(), right.detach(), WHY.get(case, ""))
    if "isend" in means.instead:
        return Sent(len(sends(batches)), sum(sends(batches)), batches)
    return Sent(comm.messages_sent, comm.bytes_sent, [])


def compare(what: str, found: Tensor, right: Tensor, why: str = "") -> None:
    """Raise Wrong unless the tensors are alike."""
    if found.shape != right.shape:
        raise Wrong(f"{what} has shape {list(found.shape)}, expected {list(right.shape)}.")
    if not torch.allclose(found, right, TOLERANCE, TOLERANCE):
        off = (found - right).abs().max().item()
        raise Wrong(
            f"{what} is off by {off:.2g} from that of one process with the whole batch: it is "
            f"{_shown(found)}, expected {_shown(right)}.{why}"
        )


def _shown(tensor: Tensor) -> str:
    """The first elements of a tensor, to four digits."""
    first = [f"{value:.4g}" for value in tensor.flatten()[:6].tolist()]
    return f"[{', '.join(first + ['...'] * (tensor.numel() > 6))}]"

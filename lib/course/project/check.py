"""A milestone on a rank: what comes out in its scenarios, and what the rank sends for it."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

import minidist
from course.ask import journal, wire
from course.ask.averages import times
from course.ask.verdict import LESSON, Wrong, many, without_lesson
from course.project.messages import Batches, recorded, sends
from course.project.milestones import Milestone
from course.project.models import WHY, Drawn
from course.project.scenarios import Tally
from course.project.submission import found
from minidist.comm.ours import Ours
from minidist.launch.process import PRELOAD

PRELOAD.append(__name__)  # ranks are forked from a process that has it

TOLERANCE = 1e-9  # in float64, where only the order of sums can make a difference
ENOUGH = 0.8  # share of `from_scratch`'s bytes: numbers of tokens may be shorter than its int64
SHOWN = 6  # elements


class Sent(NamedTuple):
    """The traffic of a rank in a scenario."""

    messages: int
    nbytes: int
    wire: int  # bytes that its process has put on the network, by whatever call
    batches: Batches  # messages that it posts itself
    drawn: str  # sizes
    calls: str = ""  # a sentence on the learner's lines that send
    beside: str = ""  # and on those that send by other means


def check_cases(written: Any, milestone: Milestone, seed: int) -> dict[str, Sent]:
    """On a rank: compare results with one process, and what this rank sends with `from_scratch`.

    Raises:
        Wrong: a result is not that of one process, or this rank sends too much or by other means.
    """
    lesson = found(LESSON, milestone.file, *milestone.names)
    every = dict[str, Sent]()
    minidist.barrier()  # connects, which is no case's traffic
    for case in milestone.cases:
        least = run(lesson, milestone, case, seed)
        with without_lesson():
            every[case] = run(written, milestone, case, seed)
        check_sent(milestone, every[case], least, journal.place(case))
    for case in milestone.others:
        with without_lesson():
            run(written, milestone, case, seed)
    return every


def check_sent(milestone: Milestone, own: Sent, least: Sent, where: str) -> None:
    """Raise Wrong if a rank sends more than `from_scratch`, less, or by other means."""
    sent = f"this rank sends {many(own.messages, 'message')} with {own.nbytes:,} bytes in all"
    expected = f"{many(least.messages, 'message')} with {least.nbytes:,}"
    more = max(0, own.messages - least.messages)
    wrong = ""
    if own.messages > milestone.apart * least.messages or own.nbytes > least.nbytes:
        wrong = f"{sent}, where {expected} would do.{own.calls}"
    elif own.nbytes < ENOUGH * least.nbytes:
        wrong = (
            f"{own.nbytes:,} of the {least.nbytes:,} bytes that it takes went through "
            f"{milestone.means.instead}. Send nothing by other means, and do not keep what can "
            f"be sent again.{own.beside or own.calls}"
        )
    elif milestone.fewest and own.messages < least.messages:
        wrong = f"{sent}, expected {expected}: {milestone.fewest}{own.calls}"
    elif beside := wire.too_much(own.wire, least.wire, milestone.means.instead, more):
        wrong = beside + own.beside
    if wrong:
        raise Wrong(f"{where}the results are right, and {wrong} ({own.drawn})")


def run(written: Any, milestone: Milestone, case: str, seed: int) -> Sent:
    """Run one case; compare what comes out."""
    comm, means, drawn = Tally(Ours(algorithm="ring")), milestone.means, Drawn(seed)
    with ExitStack() as stack:
        stack.enter_context(journal.in_case(case, drawn))
        for without in means.without:
            stack.enter_context(without(means.instead))
        batches = stack.enter_context(recorded())
        arguments = {**milestone.cases, **milestone.others}[case]
        before = wire.sent()
        for each in milestone.scenario(written, comm, drawn, *arguments):
            compare(each.what, each.mine, each.right, each.slips, WHY.get(case, ""))
        on_wire = wire.sent() - before
    calls = journal.calls()
    if "isend" in means.instead:
        return Sent(len(sends(batches)), sum(sends(batches)), on_wire, batches, str(drawn), calls)
    beside = journal.calls(beside=True)
    return Sent(comm.messages_sent, comm.bytes_sent, on_wire, [], str(drawn), calls, beside)


def compare(
    what: str, found: Any, right: Any, slips: Mapping[str, Tensor] | None = None, why: str = ""
) -> None:
    """Raise Wrong unless the tensors are alike, or the words equal."""
    if isinstance(right, str):
        if found != right:
            raise Wrong(f"{what} is {found or 'nothing'}, expected {right}.")
        return
    if not isinstance(found, Tensor):
        raise Wrong(f"{what} is {found!r:.60}, expected a tensor.")
    found, right = found.detach(), right.detach()
    if found.shape != right.shape:
        raise Wrong(f"{what} has shape {list(found.shape)}, expected {list(right.shape)}.")
    if alike(found, right):
        return
    known = (told for told, slip in (slips or {}).items() if alike(found, slip.detach()))
    off = (found - right).abs().max().item()
    size = "is not finite" if off != off else f"is off by {off:.2g}"
    raise Wrong(
        f"{what} {size}: {_both(found, right)}, as in one process with the whole batch."
        f"{''.join(' ' + told for told in [next(known, _multiple(found, right))] if told)}{why}"
    )


def alike(found: Tensor, right: Tensor) -> bool:
    """True if tensors are equal but for the order of sums."""
    return found.shape == right.shape and torch.allclose(found, right, TOLERANCE, TOLERANCE)


def _multiple(found: Tensor, right: Tensor) -> str:
    """A sentence if all of a tensor has one wrong factor, which for a number is a whole one."""
    factor = times(found, right) if found.isfinite().all() else 0
    whole = min(abs(f - round(f)) for f in (factor, 1 / factor)) < 1e-6 if factor else False
    if not factor or not alike(found, factor * right) or (found.numel() < 3 and not whole):
        return ""
    return f"It is {factor:.4g} times that."


def _both(found: Tensor, right: Tensor) -> str:
    """A few elements of both, from the first one on that is wrong."""
    found, right = found.flatten(), right.flatten()
    wrong = ~torch.isclose(found, right, TOLERANCE, TOLERANCE)
    start = int(wrong.nonzero()[0])
    parts = [each[start : start + SHOWN].tolist() for each in (found, right)]
    digits = 4 if f"{parts[0][0]:.4g}" != f"{parts[1][0]:.4g}" else 12
    texts = []
    for each in parts:
        shown = [f"{value:.{digits}g}" for value in each]
        every = ", ".join(shown + ["..."] * (len(found) > start + SHOWN))
        texts.append(f"[{every}]" if len(found) > 1 else every)
    since = f"from element {start} on " if start else ""
    return f"{since}it is {texts[0]}, expected {texts[1]}"

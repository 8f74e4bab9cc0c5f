"""Graders of the exercises that ask for a formula or a few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course.graders.verdict import Wrong, ask, ask_number, grader
from minidist.schedule.algorithms import ring_all_reduce, tree_all_reduce
from minidist.schedule.cost import Link, seconds, switch
from minidist.schedule.simulate import traffic


@grader
def bytes_sent(function: Callable[[int, int], float]) -> str:
    """Grade function(ranks, nbytes): the bytes that each rank sends in a ring all-reduce."""
    for ranks in (8, 4, 2, 3, 1):
        elements = 3000 * ranks
        size = 4 * elements
        right = int(traffic(ring_all_reduce(ranks), elements).sent_bytes[0])
        answer = ask_number(function, ranks, size)
        if abs(answer - right) > 0.5:
            raise Wrong(
                f"For {ranks} ranks and {size} bytes you say {answer:g}; the simulator counts "
                f"{right}.{_why_bytes(answer, ranks, size)}"
            )
    return (
        "the simulator counts the same for 1, 2, 3, 4 and 8 ranks. With more and more ranks it "
        "comes close to twice the tensor and never reaches it."
    )


def _why_bytes(answer: float, ranks: int, size: int) -> str:
    hints = {
        (ranks - 1) * size // ranks: "That is one phase; the all-gather sends as much again.",
        2 * (ranks - 1) * size: "Each message is one chunk, a 1/N of the tensor, not all of it.",
        2 * size: "That is the limit for many ranks; a chunk is not sent to its own rank.",
        (ranks - 1) * size: "That is what the root of the naive way sends.",
        2 * (ranks - 1): "That is the number of messages; each has size / N bytes.",
    }
    return " " + hints[int(answer)] if int(answer) in hints else ""


@grader
def slices(function: Callable[[int, int], Sequence[tuple[int, int]]]) -> str:
    """Grade function(numel, ranks): the (start, stop) of each rank's slice of a tensor."""
    for ranks in (4, 1, 3, 8):
        for numel in (16 * ranks, 10, 1, 0, ranks - 1, ranks + 1, 97):
            _check_slices(_pairs(ask(function, numel, ranks)), numel, ranks)
    return (
        "every element is in one slice and no two slices differ by more than one element, also "
        "when there are fewer elements than ranks. Nothing had to be padded."
    )


def _pairs(answer: object) -> list[tuple[int, int]]:
    try:
        return [(int(start), int(stop)) for start, stop in answer]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise Wrong(f"you return {answer!r}; expected a list of pairs (start, stop).") from error


def _check_slices(cut: list[tuple[int, int]], numel: int, ranks: int) -> None:
    case = f"{numel} elements on {ranks} ranks"
    if len(cut) != ranks:
        raise Wrong(f"{case}: you return {len(cut)} slices, expected one for each rank.")
    edge = 0
    for rank, (start, stop) in enumerate(cut):
        if start != edge:
            what = "are in no slice" if start > edge else "are in two"
            raise Wrong(f"{case}: slice {rank} starts at {start}, so some elements {what}.")
        if stop < start:
            raise Wrong(f"{case}: slice {rank} is ({start}, {stop}): it ends before it starts.")
        edge = stop
    if edge < numel:
        raise Wrong(f"{case}: the last {numel - edge} elements are in no slice; they are lost.")
    if edge > numel:
        raise Wrong(
            f"{case}: the last slice ends at {edge}, past the tensor; that would be padding."
        )
    sizes = [stop - start for start, stop in cut]
    if max(sizes) - min(sizes) > 1:
        raise Wrong(
            f"{case}: sizes {sizes}. The longest sets the pace of every step: spread the rest, so "
            "that sizes differ by one at most."
        )


@grader
def crossover(function: Callable[[int, float, float], float]) -> str:
    """Grade function(ranks, alpha, beta): the bytes at which ring and tree take the same time."""
    for ranks in (8, 4, 16, 100):
        for link in (Link(1e-5, 1e-9), Link(3e-6, 1e-11)):
            _check_crossover(function, ranks, link)
    return (
        "at your size the cost model gives ring and tree the same time, for 4 to 100 ranks. Below "
        "it the tree wins, above it the ring."
    )


def _check_crossover(
    function: Callable[[int, float, float], float], ranks: int, link: Link
) -> None:
    size = ask_number(function, ranks, link.alpha, link.beta)
    if size <= 0:
        raise Wrong(f"For {ranks} ranks you say {size:g}; expected a number of bytes above zero.")
    net = switch(link)
    ring, tree = (seconds(a(ranks), size, net) for a in (ring_all_reduce, tree_all_reduce))
    if abs(ring - tree) > 1e-6 * ring:
        slower, text = ("ring", "larger") if ring > tree else ("tree", "smaller")
        raise Wrong(
            f"For {ranks} ranks, alpha {link.alpha:g} s and beta {link.beta:g} s/byte you say "
            f"{size:.0f} bytes. There the ring takes {ring * 1e6:.1f} us and the tree "
            f"{tree * 1e6:.1f} us: the {slower} is slower, so they cross at a {text} size. The "
            "tree has 2 ceil(log2 N) steps of the whole tensor, the ring 2(N - 1) of an N-th of it."
        )

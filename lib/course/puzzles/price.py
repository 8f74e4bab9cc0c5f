"""The price of a schedule's steps, as `minidist.schedule.cost` has it for arrays."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from course.puzzles.programs import Send


def moved(steps: list[list[Send]], ranks: int, chunks: int, local: int = 0) -> dict[str, float]:
    """Steps; and in tensors what the busiest rank sends, all ranks send, and what leaves nodes."""
    sent, between = [0] * ranks, 0
    for step in steps:
        for send in step:
            sent[send.src] += send.width
            if local and send.src // local != send.dst // local:
                between += send.width
    busiest = max(sent) / chunks
    total = sum(sent) / chunks
    return {"steps": len(steps), "sent": busiest, "total": total, "between": between / chunks}


def seconds(
    steps: list[list[Send]],
    ranks: int,
    chunk: float,
    links: list[tuple[float, float]],
    local: int = 0,
) -> float:
    """The time of the steps with chunks of so many bytes, if every rank has its own links.

    The busiest link sets the pace of a step. A link is (seconds per message, seconds per byte).
    With `local` ranks per node the first of `links` is inside nodes and the second between them:
    a slower message delays its receiver, and later those that hear from it.
    """
    total, late = 0.0, [0.0] * ranks
    for step in steps:
        loads: dict[tuple[int, str, int], int] = {}
        alphas = []
        for send in step:
            which = int(bool(local) and send.src // local != send.dst // local)
            alphas.append(links[which][0])
            for end, rank in (("out", send.src), ("in", send.dst)):
                place = which, end, rank
                loads[place] = loads.get(place, 0) + send.width
        least, before = min(alphas), late[:]
        total += least + max(links[place[0]][1] * load for place, load in loads.items()) * chunk
        for send, alpha in zip(step, alphas):  # noqa: B905 (Brython has no `strict`)
            late[send.dst] = max(late[send.dst], before[send.src] + alpha - least)
    return total + max(late)

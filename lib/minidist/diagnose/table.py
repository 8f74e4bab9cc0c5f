"""The report: the sentence, after a second look; the last calls; where the ranks stand."""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

from minidist.diagnose.dumps import read_dumps
from minidist.diagnose.records import Rank, read
from minidist.diagnose.verdict import Verdict, judge, rows_of, sides
from minidist.errors import name_ranks
from minidist.launch.report import where

LONGEST, COLUMNS = 8, 8  # calls in the table; ranks that have a column each
KINDS, LINES = 12, 20  # the most lines of the table for many ranks, and of all stacks
Place = str | os.PathLike[str]


def report(folder: Place | Sequence[Place], patience: float | None = None) -> str:
    """The sentence, the last calls with a column for each rank, and where the ranks stand.

    A rank that has not come may be on its way. So before one is blamed the ranks are watched for
    `patience` seconds; None: twice the longest time but one between two calls, from 1 to 20 s.

    Args:
        folder: the one of `record`; or with dumps of PyTorch's flight recorder; or such dumps.
    """
    places = [folder] if isinstance(folder, str | os.PathLike) else folder
    ranks = look(places)
    first = {each.rank: each.calls for each in ranks}
    verdict = judge(ranks, time.time())
    apart = [sorted(b.time - a.time for a, b in pairwise(each.calls)) for each in ranks]
    usual = max((times[-2] for times in apart if len(times) > 1), default=0.0)
    wait = min(max(1.0, 2 * usual), 20.0) if patience is None else patience
    deadline = time.monotonic() + wait * (ranks[0].state != "dumped")  # which does not change
    while verdict.still and time.monotonic() < deadline:
        time.sleep(0.2)
        ranks = look(places)
        calls = {each.rank: each.calls for each in ranks}
        if moved := [rank for rank in verdict.still if calls.get(rank) != first.get(rank)]:
            verdict = Verdict(f"not yet: {name_ranks(moved)} went on while diagnose watched")
        else:
            verdict = judge(ranks, time.time())
    return "\n".join(_page(ranks, verdict))


def look(places: Sequence[Place]) -> list[Rank]:
    """What ranks have recorded in a folder; if that is nothing, what PyTorch has dumped there."""
    ours = len(places) == 1 and any(Path(places[0]).glob("*.calls"))
    return read(places[0]) if ours else read_dumps(places)


def _page(ranks: Sequence[Rank], verdict: Verdict) -> Iterator[str]:
    """The verdict and what it stands on, on one screen."""
    many = len(ranks) > COLUMNS
    yield from (verdict.sentence, "")
    yield from _aligned(_kinds(ranks, verdict) if many else _calls(ranks))
    yield ""
    members = {id(call.members): call.members for each in ranks for call in each.calls}
    if absent := set[int]().union(*members.values()) - {each.rank for each in ranks}:
        yield f"{name_ranks(sorted(absent))} left no record"
    stacks = {each.rank: each.stack for each in ranks if each.stack}
    for each in [] if many else ranks:
        if not each.stack or each.state in ("crashed", "ended"):
            yield f"rank {each.rank} {_end(each, verdict)}"
    if not stacks:
        return
    if ranks[0].state == "dumped":
        yield "where they made their last calls:"
    stood = where(stacks)
    if len(stacks) == 1:
        stood.insert(0, f"{name_ranks([*stacks])}:")
    yield from stood[:LINES]
    if len(stood) > LINES:
        yield f"and {len(stood) - LINES} lines about other places"


def _end(rank: Rank, verdict: Verdict) -> str:
    """What has become of a rank; one that was killed where it waited is not to blame for that."""
    for_its_end = rank.rank in verdict.blamed and not verdict.row  # not for another call
    if rank.state == "gone" and rank.waiting and not for_its_end:
        return f"waited in {rank.waiting.numbered} until it was killed, perhaps by the launcher"
    return rank.now


def _calls(ranks: Sequence[Rank]) -> list[list[str]]:
    """A line for each of the last calls, a column for each rank."""
    rows = [*rows_of(ranks).values()][-LONGEST:]
    usual = [[*sides(row, "full")][-1] for row in rows]
    columns = [["", *usual]]
    for each in ranks:
        calls = zip((row.get(each.rank) for row in rows), usual, strict=True)
        cells = [c.state + f" {c.full}" * (c.full != most) if c else "-" for c, most in calls]
        columns.append([f"rank {each.rank}", *cells])
    return [[*line] for line in zip(*columns, strict=True)]


def _kinds(ranks: Sequence[Rank], verdict: Verdict) -> list[list[str]]:
    """A line for the ranks in each state: their last call, that which differs, and their place."""
    several = len({call.group for each in ranks for call in each.calls}) > 1
    kinds: dict[tuple[str, ...], list[Rank]] = {}
    for each in ranks:
        last = [each.waiting] if each.waiting else each.calls[-1:]
        odd = [verdict.row[each.rank]] if each.rank in verdict.row else []
        words = dict.fromkeys(
            f"{call.state} {call.full}" + f" of {len(call.members)} ranks" * several
            for call in odd + last
        )
        stands = f"{each.fate} {each.place}".strip()
        kinds.setdefault((", ".join(words) or "no call", stands), []).append(each)
    lines = sorted(kinds.items(), key=lambda kind: (bool(kind[1][0].waits), len(kind[1])))
    lines.sort(key=lambda kind: kind[1][0].rank not in verdict.blamed)
    table = [[name_ranks([each.rank for each in who]), *words] for words, who in lines]
    others = [each for _, who in lines[KINDS:] for each in who]
    table[KINDS:] = [[f"{len(others):,} ranks in {len(lines) - KINDS} other states"]] * bool(others)
    return table


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, in columns."""
    widths = [max(map(len, column)) for column in zip_longest(*table, fillvalue="")]
    for line in table:
        cells = zip(line, widths, strict=False)
        yield "  ".join(f"{cell:<{width}}" for cell, width in cells).rstrip()

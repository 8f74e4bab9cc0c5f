"""A ring all-reduce in which one rank is late or dies: who waits for whom, and the diagnosis."""

from collections.abc import Sequence
from itertools import product
from math import inf
from operator import itemgetter
from typing import NamedTuple

from course.interactive.page import Slider, choice, control
from course.interactive.timeline import Bar, Lane, milliseconds, still
from minidist.diagnose.records import Rank, RecordedCall
from minidist.diagnose.verdict import sentence
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.lanes import Work, spans
from minidist.schedule.schedule import Schedule

RANKS, COMPUTE, MESSAGE, SLOWER = 6, 40, 10, 4  # the times are in milliseconds
MOST = SLOWER * COMPUTE + 2 * (RANKS - 1) * MESSAGE  # end of the longest run
ROOM = 100  # milliseconds that have room for words on a phone
DIES = 2  # the step of the ring before which a rank does, counted from 0
FINE, SLOW, DEAD = STATES = "fine", f"{SLOWER} times as slow", "dead"
NAMES = [f"rank {rank}" for rank in range(RANKS)]
CHOSEN = 2, DEAD
LEGEND = {
    "compute": "computes",
    "communication": "sends and receives",
    "bubble": "waits",
    "dead": "dead",
}
COMPUTES, SENDS, WAITS, GONE = range(len(LEGEND))


class Part(NamedTuple):
    """A span of a rank's time; `about`: its first step of the ring, or the rank it awaits."""

    kind: int
    start: float
    end: float
    about: int = 0


def straggler_slider() -> Slider:
    """Six ranks that compute and then all-reduce around a ring; one can be slowed or killed."""
    chosen = run(*CHOSEN)
    runs = {FINE: run(0, FINE)} | {
        f"{NAMES[late]} {what}": run(late, what)
        for late, what in product(range(RANKS), (SLOW, DEAD))
    }
    diagnoses = list[str]()
    records = {name: _record(ranks, diagnoses) for name, ranks in runs.items()}
    controls = [
        choice("rank", "Which rank", NAMES, NAMES[CHOSEN[0]]),
        choice("what", "How it is", STATES, CHOSEN[1]),
        control("time", "Time", [*range(0, MOST + 1, MESSAGE)], MOST, "{} ms".format),
    ]
    marks = milliseconds(MOST, 50)
    data = {"records": records, "most": MOST, "ticks": marks, "names": NAMES, "legend": LEGEND}
    data |= {"diagnoses": diagnoses, "message": MESSAGE, "room": ROOM, "steps": 2 * (RANKS - 1)}
    lanes = [Lane(name, _note(own), bars(own)) for name, own in zip(NAMES, chosen, strict=True)]
    says = f"In the end minidist.diagnose says: “{diagnosis(chosen, MOST)}”."
    title = "A step of training: compute, then an all-reduce around the ring"
    return Slider("straggler", title, controls, data, still(lanes, MOST, marks, LEGEND, says))


def run(late: int, what: str) -> list[list[Part]]:
    """The parts of each rank in whole milliseconds, when one of them is late or dead."""
    starts = [COMPUTE * (SLOWER if what == SLOW and rank == late else 1) for rank in range(RANKS)]
    dies = (late, DIES) if what == DEAD else None
    found: list[list[Part]] = [[] for _ in starts]
    for rank, parts in enumerate(simulate(ring_all_reduce(RANKS), starts, MESSAGE, dies)):
        for kind, start, end, about in parts:
            until = int(min(end, MOST))
            if found[rank] and kind == found[rank][-1].kind == SENDS:  # steps between two waits
                found[rank][-1] = found[rank][-1]._replace(end=until)
            else:
                found[rank].append(Part(kind, int(start), until, about))
    return found


def simulate(
    schedule: Schedule, starts: Sequence[float], seconds: float, dies: tuple[int, int] | None = None
) -> list[list[Part]]:
    """The parts of each rank, in order; one that never ends lasts for ever.

    A message begins when both its ends have come to its step, as large messages do; a rank goes on
    to the next step when all its own messages of this one are over.

    Args:
        starts: when each rank calls the collective.
        seconds: what a message takes.
        dies: a rank, and the step before which it does.
    """
    works = [Work(f"rank {rank}", "compute", start, []) for rank, start in enumerate(starts)]
    last = [*range(schedule.ranks)]  # the places of what each rank does before the step
    turns = list[tuple[int, int, list[int], list[int]]]()
    for number, step in enumerate(schedule):
        if dies and dies[1] == number:
            last[dies[0]] = len(works)
            works.append(Work(f"rank {dies[0]}", "dead", inf, []))
        came = [*last]
        for rank in range(schedule.ranks):
            sent = [(True, send.dst) for send in step if send.src == rank]
            received = [(False, send.src) for send in step if send.dst == rank]
            if peers := [peer for _, peer in sorted(sent + received)]:
                turns.append((number, rank, peers, came))
                last[rank] = len(works)
                after = [came[peer] for peer in peers]
                works.append(Work(f"rank {rank}", "messages", seconds, after))
    ends, done = [span.end for span in spans(works)], [[Part(COMPUTES, 0, at)] for at in starts]
    for number, rank, peers, came in turns:
        at = ends[came[rank]]
        begins = [(max(at, ends[came[peer]]), peer) for peer in peers]
        for begin, peer in sorted(begins, key=itemgetter(0)):
            if begin > at:
                done[rank].append(Part(WAITS, at, begin, peer))
            if (end := begin + seconds) > at and begin < inf:
                done[rank].append(Part(SENDS, max(begin, at), end, number))
            at = max(at, end)
    if dies:
        done[dies[0]].append(Part(GONE, done[dies[0]][-1].end, inf))
    return done


def bars(parts: Sequence[Part]) -> list[Bar]:
    """A rank's lane; a wait that has room for words says for whom."""
    kinds, found = [*LEGEND], list[Bar]()
    for kind, start, end, about in parts:
        long = kind == WAITS and end - start >= ROOM
        found.append(Bar(start, end, kinds[kind], f"waits for rank {about}" if long else ""))
    return found


def _note(parts: Sequence[Part]) -> str:
    """A note of a rank's waiting time, or of when it stops for good."""
    last = parts[-1]
    if last.kind in (GONE, WAITS):
        return f"{'dies' if last.kind == GONE else 'stops'} at {last.start} ms"
    waits = sum(part.end - part.start for part in parts if part.kind == WAITS)
    return f"waits {waits} ms" if waits else ""


def diagnosis(ranks: Sequence[Sequence[Part]], time: int) -> str:
    """The sentence of `minidist.diagnose` on the records that such ranks have at this time."""
    return sentence([_recorded(rank, own, time) for rank, own in enumerate(ranks)])


def _recorded(rank: int, parts: Sequence[Part], time: int) -> Rank:
    """A rank's line of Python, and its call if it has come to it."""
    called, last = parts[0].end, parts[-1]
    state = "entered" if last.kind in (GONE, WAITS) or time < last.end else "left"
    call = RecordedCall(state, 1, "all_reduce", "", "0", 1, called, [*range(RANKS)])
    gone = last.kind == GONE and time >= last.start
    stack = [("train.py", 21, "train_step", None)]
    calls = [call] if time >= called else []
    return Rank(rank, rank, "gone" if gone else "running", "", time, calls, stack)


def _record(ranks: Sequence[Sequence[Part]], diagnoses: list[str]) -> list[object]:
    """Each rank's note and parts, and the times of new diagnoses with their numbers."""
    said = list[tuple[int, int]]()
    for time in range(0, MOST + 1, MESSAGE):
        if (now := diagnosis(ranks, time)) not in diagnoses:
            diagnoses.append(now)
        if not said or diagnoses[said[-1][1]] != now:
            said.append((time, diagnoses.index(now)))
    lanes = [[_note(own), *(number for part in own for number in part)] for own in ranks]
    return [lanes, said]

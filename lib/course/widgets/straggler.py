"""A ring all-reduce in which one rank is late or dies: who waits for whom, and the diagnosis."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from course.timing.waiting import Activity, simulate
from course.widgets.page import Slider, choice, control
from course.widgets.timeline import Bar, Lane, milliseconds, still
from minidist.diagnose.verdict import Rank, RecordedCall, sentence
from minidist.schedule.algorithms import ring_all_reduce

RANKS, COMPUTE, MESSAGE, SLOWER = 6, 40, 10, 4  # the times are in milliseconds
MOST = SLOWER * COMPUTE + 2 * (RANKS - 1) * MESSAGE  # when the longest run ends
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
    """What a rank does for a time; `about`: its first step of the ring, or the rank it awaits."""

    kind: int
    start: int
    end: int
    about: int = 0

    @property
    def steps(self) -> int:
        """How many steps of the ring it has."""
        return (self.end - self.start) // MESSAGE


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
    """What each rank does, when one of them is late or dead."""
    starts = [COMPUTE * (SLOWER if what == SLOW and rank == late else 1) for rank in range(RANKS)]
    dies = (late, DIES) if what == DEAD else None
    ranks = simulate(ring_all_reduce(RANKS), starts, MESSAGE, dies)
    found = [[Part(COMPUTES, 0, starts[rank]), *_parts(own)] for rank, own in enumerate(ranks)]
    if dies:
        found[late].append(Part(GONE, found[late][-1].end, MOST))
    return found


def _parts(activities: Sequence[Activity]) -> list[Part]:
    """Steps of the ring that follow one another without a gap as one part."""
    found = list[Part]()
    for step, start, end, awaits in activities:
        begin, until, before = int(start), int(min(end, MOST)), found[-1] if found else None
        if awaits is not None:
            found.append(Part(WAITS, begin, until, awaits))
        elif before and before.kind == SENDS and before.about + before.steps == step:
            found[-1] = before._replace(end=until)
        else:
            found.append(Part(SENDS, begin, until, step))
    return found


def bars(parts: Sequence[Part]) -> list[Bar]:
    """A rank's lane; a wait that has room for words says for whom."""
    kinds, found = [*LEGEND], list[Bar]()
    for kind, start, end, about in parts:
        long = kind == WAITS and end - start >= ROOM
        found.append(Bar(start, end, kinds[kind], f"waits for rank {about}" if long else ""))
    return found


def _note(parts: Sequence[Part]) -> str:
    """How long a rank waits, or when it stops for good."""
    last = parts[-1]
    if last.kind in (GONE, WAITS):
        return f"{'dies' if last.kind == GONE else 'stops'} at {last.start} ms"
    waits = sum(part.end - part.start for part in parts if part.kind == WAITS)
    return f"waits {waits} ms" if waits else ""


def diagnosis(ranks: Sequence[Sequence[Part]], time: int) -> str:
    """What `minidist.diagnose` says of the records that such ranks have at this time."""
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
    """Of each rank its note and its parts; and when there is a new diagnosis, and which."""
    said = list[tuple[int, int]]()
    for time in range(0, MOST + 1, MESSAGE):
        if (now := diagnosis(ranks, time)) not in diagnoses:
            diagnoses.append(now)
        if not said or diagnoses[said[-1][1]] != now:
            said.append((time, diagnoses.index(now)))
    lanes = [[_note(own), *(number for part in own for number in part)] for own in ranks]
    return [lanes, said]

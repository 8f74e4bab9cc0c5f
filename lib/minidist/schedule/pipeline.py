"""A pipeline as data: what each rank computes, with which micro-batch, in which order.

A model is cut into stages, one after the other; of N ranks, rank s % N has stage s. An order lists
the work of every rank. `replay` proves it and says when each piece runs; from that follow its
picture, its bubble, and the sequence that `from_scratch.pipeline` runs between real ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from minidist.errors import ScheduleError, checked
from minidist.schedule import lanes
from minidist.schedule.checks import amount, whole_number


class Work(NamedTuple):
    """One stage computes with one micro-batch.

    `kind` is "F" for forward and "B" for backward; or backward comes in two pieces, "I" for the
    gradient of the stage's input, which the stage before waits for, and "W" for those of weights.
    """

    kind: str
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}({self.stage}, {self.micro})"


Order = Sequence[Sequence[Work]]  # each rank's work
TAKES = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


# ---- orders ----


def gpipe(ranks: int, micro: int) -> Order:
    """All forward passes, then all backward passes. Huang et al., *GPipe* (2019)."""
    _check_sizes(ranks, micro)
    return [[Work(kind, rank, m) for kind in "FB" for m in range(micro)] for rank in range(ranks)]


def one_f_one_b(ranks: int, micro: int) -> Order:
    """Forward until the first gradient is back, then one forward and one backward in turn.

    Narayanan et al., *PipeDream* (2019), and with a flush after each batch, as here, *Efficient
    Large-Scale Language Model Training on GPU Clusters Using Megatron-LM* (2021).
    """
    _check_sizes(ranks, micro)
    return [
        in_turns(_works("F", rank, micro), _works("B", rank, micro), ahead=ranks - 1 - rank)
        for rank in range(ranks)
    ]


def interleaved(ranks: int, micro: int, chunks: int) -> Order:
    """1F1B in which each rank has several stages, its chunks of the model.

    It works through N micro-batches with one chunk, then through the same with the next. Narayanan
    et al. (2021), section 2.2.
    """
    _check_sizes(ranks, micro)
    whole_number("chunks", chunks, 1)
    if micro % ranks:
        raise ScheduleError(
            f"{micro} micro-batches do not divide into rounds of {ranks}, one for each rank"
        )

    def works(kind: str, rank: int) -> Iterator[Work]:
        for first in range(0, micro, ranks):
            for chunk in range(chunks)[:: 1 if kind == "F" else -1]:
                for m in range(first, first + ranks):
                    yield Work(kind, chunk * ranks + rank, m)

    return [
        in_turns(
            [*works("F", rank)],
            [*works("B", rank)],
            ahead=2 * (ranks - 1 - rank) + (chunks - 1) * ranks,
        )
        for rank in range(ranks)
    ]


def zero_bubble(ranks: int, micro: int) -> Order:
    """1F1B that fills its bubble with gradients of weights, for which nobody waits: ZB-H1.

    Rank r puts those of r micro-batches off. Qi et al., *Zero Bubble Pipeline Parallelism* (2023).
    """
    _check_sizes(ranks, micro)
    order = []
    for rank in range(ranks):
        works: list[Work] = []
        for work in one_f_one_b(ranks, micro)[rank]:
            if work.kind == "F":
                works.append(work)
                continue
            works.append(Work("I", rank, work.micro))
            if work.micro >= rank:
                works.append(Work("W", rank, work.micro - rank))
        works += [Work("W", rank, m) for m in range(max(0, micro - rank), micro)]
        order.append(works)
    return order


@checked
def in_turns(forward: Sequence[Work], backward: Sequence[Work], ahead: int) -> list[Work]:
    """So many forward passes ahead, then one forward and one backward in turn."""
    ahead = min(ahead, len(forward))
    steady = chain.from_iterable(zip(forward[ahead:], backward, strict=False))
    return [*forward[:ahead], *steady, *backward[len(forward) - ahead :]]


def _works(kind: str, stage: int, micro: int) -> list[Work]:
    return [Work(kind, stage, m) for m in range(micro)]


def _check_sizes(ranks: int, micro: int) -> None:
    whole_number("ranks", ranks, 1)
    whole_number("micro", micro, 1)


# ---- what an order says ----


class Pass(NamedTuple):
    """A piece of work in time."""

    work: Work
    rank: int
    start: float
    end: float


@checked
def stages_of(order: Order) -> int:
    """The number of stages that the model is cut into."""
    if not any(order):
        raise ScheduleError("order: expected each rank's work, got none")
    return 1 + max(work.stage for works in order for work in works)


def follows(work: Work, stages: int) -> int | None:
    """The stage that waits for what this work makes, if one does."""
    to = {"F": work.stage + 1, "W": -1}.get(work.kind, work.stage - 1)
    return to if 0 <= to < stages else None


def needs(work: Work, stages: int) -> list[Work]:
    """Work that must come before; of two, one is enough: backward in one piece, or in two.

    The first stage needs nothing, the last its own forward.
    """
    kind, stage, micro = work
    if kind == "F":
        return [Work("F", stage - 1, micro)] if stage else []
    if kind == "W":
        return [Work("I", stage, micro)]
    if stage == stages - 1:
        return [Work("F", stage, micro)]
    return [Work("B", stage + 1, micro), Work("I", stage + 1, micro)]


def check(order: Order) -> None:
    """Raise ScheduleError unless each stage does all its work once, on its own rank."""
    if not isinstance(order, Sequence):
        raise TypeError(f"order: expected each rank's list of Work, got {order!r}")
    for rank, works in enumerate(order):
        if odd := [work for work in works if not isinstance(work, Work)]:
            raise TypeError(f"order: rank {rank}: expected Work, got {odd[0]!r}")
    stages, ranks = stages_of(order), len(order)
    micros = {work.micro for works in order for work in works}
    for rank, works in enumerate(order):
        seen: set[Work] = set()
        for work in works:
            if work.kind not in TAKES or work.stage % ranks != rank:
                raise ScheduleError(f"rank {rank}: {work} is no work of a stage of its own")
            before = {"W": "I", "B": "F", "I": "F"}.get(work.kind)
            if work in seen:
                raise ScheduleError(f"rank {rank} does {work} twice")
            if before and Work(before, *work[1:]) not in seen:
                raise ScheduleError(f"rank {rank} does {work} before {before}{str(work)[1:]}")
            seen.add(work)
        for stage in range(rank, stages, ranks):
            for micro in sorted(micros):
                kinds = "".join(k for k in "FBIW" if (k, stage, micro) in seen)
                if kinds not in ("FB", "FIW"):
                    missing = "F" if "F" not in kinds else "W" if "I" in kinds else "B"
                    if kinds.startswith("FB"):
                        what = f"does {Work('B', stage, micro)}, and backward once more in pieces"
                    else:
                        what = f"never does {Work(missing, stage, micro)}"
                    raise ScheduleError(f"rank {rank} {what}")


def replay(order: Order, takes: Mapping[str, float] = TAKES, hop: float = 0.0) -> list[Pass]:
    """All work in time: each rank's in its order, as soon as what it needs is there.

    Args:
        order: the work of each rank.
        takes: how long a piece of each kind takes.
        hop: how long a result is on its way from one rank to another.

    Returns:
        All work, in the order in which it ends.

    Raises:
        ScheduleError: work is missing, or ranks wait for each other; it says who waits for what.
    """
    check(order)
    amount("hop", hop)
    for kind in sorted({work.kind for of_rank in order for work in of_rank}):
        if kind not in takes:
            raise ValueError(f"takes: expected how long {kind!r} takes, got only {[*takes]}")
        amount(f"takes[{kind!r}]", takes[kind])
    stages, ranks = stages_of(order), len(order)
    works = [work for of_rank in order for work in of_rank]
    places = {work: place for place, work in enumerate(works)}
    queued = list[lanes.Work]()
    for work in works:
        rank, seconds = work.stage % ranks, takes[work.kind]
        after = [places[each] for each in needs(work, stages) if each in places]
        far = any(works[place].stage % ranks != rank for place in after)
        queued.append(lanes.Work(f"rank {rank}", work.kind, seconds, after, "", hop if far else 0))
    spans = lanes.spans(queued)
    if waits := [
        f"{queued[head].lane} waits with {works[head]} for {works[other]} of {queued[other].lane}"
        for head, other in lanes.waits(queued, spans)
    ]:
        raise ScheduleError(f"nobody can go on: {', '.join(waits)}")
    timed = zip(works, spans, strict=True)
    passes = [Pass(work, work.stage % ranks, span.start, span.end) for work, span in timed]
    return sorted(passes, key=lambda each: (each.end, each.rank))


def sequence(order: Order) -> list[Work]:
    """All ranks' work in one list, each piece after what it needs."""
    return [each.work for each in replay(order)]


class Call(NamedTuple):
    """A rank sends what `work` has made to rank `peer`, or receives it from there."""

    sends: bool
    peer: int
    work: Work

    def __str__(self) -> str:
        verb, word = ("sends", "to") if self.sends else ("receives", "from")
        return f"{verb} {self.work} {word} rank {self.peer}"


def program(order: Order, rank: int) -> list[Call]:
    """The messages of a rank, one for one in the order of its work."""
    stages, ranks, calls = stages_of(order), len(order), list[Call]()
    done = {work for works in order for work in works}
    for work in order[rank]:
        needed = [each for each in needs(work, stages) if each in done]
        calls += [Call(False, w.stage % ranks, w) for w in needed if w.stage % ranks != rank]
        to = follows(work, stages)
        calls += [Call(True, to % ranks, work)] if to is not None and to % ranks != rank else []
    return calls


def blocked(order: Order) -> str:
    """Ranks that wait for each other if a send waits for its receive; "" if all come through.

    A rank comes to each of its calls, and goes on when its peer has come to the other end.
    """
    check(order)
    calls = [(rank, call) for rank in range(len(order)) for call in program(order, rank)]
    places = {each: place for place, each in enumerate(calls)}
    queued = list[lanes.Work]()
    for rank, call in calls:
        other = places[call.peer, Call(not call.sends, rank, call.work)]
        queued.append(lanes.Work(f"rank {rank}", "comes", 0, []))
        queued.append(lanes.Work(f"rank {rank}", str(call), 0, [2 * other]))
    waits = lanes.waits(queued, lanes.spans(queued))
    return ", ".join(f"{queued[head].lane} {queued[head].kind}" for head, _ in waits)


@checked
def most_held(order: Order) -> list[int]:
    """For each rank the most micro-batches that are between forward and the end of backward.

    With several stages on a rank it counts a micro-batch once for each.
    """
    most = []
    for works in order:
        held, peak = 0, 0
        for work in works:
            held += {"F": 1, "B": -1, "W": -1}.get(work.kind, 0)
            peak = max(peak, held)
        most.append(peak)
    return most


@checked
def messages(order: Order) -> int:
    """The number of messages between ranks: activations forward, gradients backward."""
    return sum(call.sends for rank in range(len(order)) for call in program(order, rank))


@checked
def bubble(passes: Sequence[Pass]) -> float:
    """The share of the time in which ranks wait."""
    if not passes:
        raise ValueError("passes: expected those of a step, got none")
    ranks = 1 + max(each.rank for each in passes)
    busy = sum(each.end - each.start for each in passes)
    return 1 - busy / (ranks * max(each.end for each in passes))

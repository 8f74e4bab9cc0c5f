"""A pipeline as data: what each rank computes, with which micro-batch, in which order.

A model is cut into stages, one after the other. An order lists the work of every rank, and so says
where each stage is: of N ranks, stage s on rank s % N, or folded into a V. `replay` proves it and
says when each piece runs; from that follow its picture, its bubble, and the sequence that
`from_scratch.pipeline` runs between real ranks.
"""

from collections import Counter
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


class Overlapped(Work):
    """A forward that runs together with the backward listed after it, as one piece of work.

    While one of the two computes, what the other has computed travels. It equals the plain `Work`.
    """


Order = Sequence[Sequence[Work]]  # each rank's work
TAKES = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "F&B": 3.0}


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


def dual_pipe_v(ranks: int, micro: int) -> Order:
    """Two stages per rank, folded into a V, so that a forward and a backward can overlap.

    Rank r has stages r and 2N - 1 - r. Gradients of weights fill the ends, as in `zero_bubble`.
    DeepSeek-AI, *DeepSeek-V3 Technical Report* (2024), section 3.2.1: this is the half of DualPipe
    that has one copy of the weights, and is called DualPipeV in DeepSeek's repository.
    """
    _check_sizes(ranks, micro)
    if micro < 2 * ranks:
        raise ScheduleError(f"{micro} micro-batches are fewer than the {2 * ranks} stages")
    return [[*_folded(rank, ranks, micro)] for rank in range(ranks)]


def _folded(rank: int, ranks: int, micro: int) -> Iterator[Work]:
    """A rank's work, from its plan: 0 is its stage on the way down the V, 1 that on the way up."""
    below = ranks - 1 - rank  # ranks, towards the V's tip
    pairs = ["F0&B1", "F1&B0"] * (micro - 2 * ranks + rank + 1)
    if not below:
        pairs[0] = "F0 B1"  # the gradient may come late, and others wait for the forward
    ends = ["B1", "B0"] * (rank + 1)
    plan = ["F0"] * 2 * below + ["F0 F1"] * (rank + 1)
    plan += ["I1 W F1"] * below + pairs + ["B1 F1&B0"] * below
    plan += ends[: rank + 1] + [each.replace("B", "I") for each in ends[rank + 1 :]]
    plan += ["W I0"] * below + ["W"] * (rank + 1)
    stages, late = (rank, 2 * ranks - 1 - rank), list[Work]()
    done = Counter[str]()  # micro-batches, forward and backward in each stage
    for word in " ".join(plan).split():
        if word == "W":
            yield late.pop(0)
            continue
        for kind, side in map(tuple, word.split("&")):
            way = ("F" if kind == "F" else "B") + side
            work = Work(kind, stages[int(side)], done[way])
            done[way] += 1
            late += [Work("W", *work[1:])] if kind == "I" else []
            yield Overlapped(*work) if kind == "F" and "&" in word else work


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


@checked
def homes(order: Order) -> list[int]:
    """The rank of each stage, the first that works for it."""
    found = {work.stage: rank for rank in reversed(range(len(order))) for work in order[rank]}
    if missing := {*range(stages_of(order))} - {*found}:
        raise ScheduleError(f"no rank has stage {min(missing)}")
    return [found[stage] for stage in sorted(found)]


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
    home = homes(order)
    micros = {work.micro for works in order for work in works}
    for rank, works in enumerate(order):
        seen: set[Work] = set()
        for work, later in zip(works, [*works[1:], None], strict=True):
            if work.kind not in [*"FBIW"] or home[work.stage] != rank:
                raise ScheduleError(f"rank {rank}: {work} is no work of a stage of its own")
            if isinstance(work, Overlapped) and (work.kind != "F" or not later or later[0] != "B"):
                raise ScheduleError(f"rank {rank}: {work} is no forward with a backward after it")
            before = {"W": "I", "B": "F", "I": "F"}.get(work.kind)
            if work in seen:
                raise ScheduleError(f"rank {rank} does {work} twice")
            if before and Work(before, *work[1:]) not in seen:
                raise ScheduleError(f"rank {rank} does {work} before {before}{str(work)[1:]}")
            seen.add(work)
        for stage in (stage for stage, own in enumerate(home) if own == rank):
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
        takes: how long a piece of each kind takes. "F&B": an overlapping pair, which starts when
            both can and ends for both; without it they come one after the other.
        hop: how long a result is on its way from one rank to another.

    Returns:
        All work, in the order in which it ends.

    Raises:
        ScheduleError: work is missing, or ranks wait for each other; it says who waits for what.
    """
    check(order)
    amount("hop", hop)
    works = [work for of_rank in order for work in of_rank]
    for kind in sorted({work.kind for work in works} | ({*takes} & {"F&B"})):
        if kind not in takes:
            raise ValueError(f"takes: expected how long {kind!r} takes, got only {[*takes]}")
        amount(f"takes[{kind!r}]", takes[kind])
    home = homes(order)
    needed = [needs(work, len(home)) for work in works]
    lasts = [takes[work.kind] for work in works]
    places = {work: place for place, work in enumerate(works)}
    for place, work in enumerate(works if "F&B" in takes else []):
        if isinstance(work, Overlapped):
            both = slice(place, place + 2)
            needed[place] = [*chain(*needed[both])]
            lasts[both] = [takes["F&B"] * each / (sum(lasts[both]) or 1) for each in lasts[both]]
            places[work] = place + 1  # who waits for the forward, waits for both
    queued = list[lanes.Work]()
    for work, before, seconds in zip(works, needed, lasts, strict=True):
        after = [places[each] for each in before if each in places]
        rank = home[work.stage]
        far = any(home[works[place].stage] != rank for place in after)
        queued.append(lanes.Work(f"rank {rank}", work.kind, seconds, after, "", hop if far else 0))
    spans = lanes.spans(queued)
    if waits := [
        f"{queued[head].lane} waits with {works[head]} for {works[other]} of {queued[other].lane}"
        for head, other in lanes.waits(queued, spans)
    ]:
        raise ScheduleError(f"nobody can go on: {', '.join(waits)}")
    timed = zip(works, spans, strict=True)
    passes = [Pass(work, home[work.stage], span.start, span.end) for work, span in timed]
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
    home, calls = homes(order), list[Call]()
    done = {work for works in order for work in works}
    for work in order[rank]:
        needed = [each for each in needs(work, len(home)) if each in done]
        calls += [Call(False, home[w.stage], w) for w in needed if home[w.stage] != rank]
        to = follows(work, len(home))
        calls += [Call(True, home[to], work)] if to is not None and home[to] != rank else []
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
def folded_wait(ranks: int, takes: Mapping[str, float] = TAKES) -> float:
    """The time that the last rank waits in `dual_pipe_v`, in DeepSeek's formula.

    It holds where a stage's forward takes as long as its "I", and its "W" no longer.
    """
    return (ranks - 1) * (takes["F&B"] + takes["B"] - 3 * takes["W"])


@checked
def bubble(passes: Sequence[Pass]) -> float:
    """The share of the time in which ranks wait."""
    if not passes:
        raise ValueError("passes: expected those of a step, got none")
    ranks = 1 + max(each.rank for each in passes)
    busy = sum(each.end - each.start for each in passes)
    return 1 - busy / (ranks * max(each.end for each in passes))

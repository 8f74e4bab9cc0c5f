"""Judges a schedule: is it right, what does it cost, and what is there to draw?"""

from __future__ import annotations

from course.puzzles.price import moved, seconds
from course.puzzles.programs import matched
from minidist.plots.told import sentences, trace
from minidist.schedule.replay import Fault, Replay, listing, words

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from course.puzzles import Task

    Proofs = dict[int, tuple[Replay, list[str]]]

MOST = 1000  # steps
VERBS = {"steps": ("takes", " steps"), "time": ("takes", "")}
PROMISES = {
    "all_reduce": "every rank ends with the part of every rank, once, in every chunk",
    "reduce_scatter": "rank r ends with the part of every rank, once, in chunk r",
    "all_gather": "every rank ends with the chunk of every rank",
    "broadcast": "every rank ends with the tensor of rank 0",
    "all_to_all": "every rank ends with its block from every rank",
}


def judge(function: Callable[..., object], task: Task, names: Task) -> Task:
    """The report on a function that, given the number of ranks, yields steps."""
    proofs: Proofs = {}
    needed = task["marks"][0]["ranks"]
    others = sorted({ranks for mark in task["marks"] for ranks in mark["ranks"]} - {*needed})
    shown, wrong = task["show"], False
    for ranks in [*needed, *others, shown]:
        if ranks not in proofs:
            how = prove if ranks in needed else prove_beyond
            proofs[ranks] = how(function, task, names, ranks)
        if ranks in needed and proofs[ranks][1]:
            shown, wrong = ranks, True
            break
    replay, says = proofs[shown]
    if says:
        says = [f"With {shown} ranks:", *says]
    if not wrong:
        says = [f"With {several(needed)} {PROMISES[task['collective']]}.", *says]
    return {
        "right": not wrong,
        "says": says,
        "marks": [marked(mark, {} if wrong else proofs, task) for mark in task["marks"]],
        "table": None if proofs[shown][1] else table(replay, task),
        "drawn": drawn(replay),
    }


def several(ranks: Sequence[int]) -> str:
    """2 to 9 ranks; 2, 4 and 8 ranks."""
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]} ranks"
    return f"{listing(ranks)} ranks"


def prove(
    function: Callable[..., object], task: Task, names: Task, ranks: int
) -> tuple[Replay, list[str]]:
    """Replay the schedule of so many ranks: how far it came, and sentences about what is wrong."""
    replay = Replay(task["collective"], ranks, chunks_of(task, names, ranks))
    try:
        for count, messages in enumerate(steps_of(function, task, ranks)):
            if count == MOST:
                raise Fault(f"It yields more than {MOST} steps. Does its loop end?")
            replay.check(messages, task["one_port"])
            replay.step(messages)
            if task["only_right"]:
                check_neighbors(replay)
    except Fault as fault:
        return replay, [str(fault)]
    return replay, replay.wrong()


def prove_beyond(
    function: Callable[..., object], task: Task, names: Task, ranks: int
) -> tuple[Replay, list[str]]:
    """The same for ranks that only another star asks for: an error costs no more than that star."""
    try:
        return prove(function, task, names, ranks)
    except Exception as error:
        nothing = Replay(task["collective"], ranks, 1)
        return nothing, [type(error).__name__ + (f": {error}" if str(error) else "")]


def chunks_of(task: Task, names: Task, ranks: int) -> int:
    """The number of chunks: set by the task, or by the reader where it may be."""
    chunks = names.get("chunks") if task["free"] else None
    if callable(chunks):
        chunks = chunks(ranks)
    if chunks is None:
        return int(task["chunks"][str(ranks)])
    if not isinstance(chunks, int) or not 1 <= chunks <= MOST:
        raise Fault(f"chunks is {chunks!r}: it has to be a number from 1 to {MOST}.")
    return chunks


def steps_of(function: Callable[..., object], task: Task, ranks: int) -> Iterator[object]:
    """The steps that a function yields, or those in which the programs of all ranks meet."""
    name = task["function"]
    if task["judge"] == "programs":
        return matched(function, name, ranks)
    steps = function(ranks)
    if not hasattr(steps, "__iter__"):
        raise Fault(
            f"{name}({ranks}) returns {steps!r}: it has to yield steps, lists of Send(...)."
        )
    return iter(steps)


def check_neighbors(replay: Replay) -> None:
    """In a ring every message goes to the right."""
    for send in replay.sent[-1] if replay.sent else []:
        if send.dst != (send.src + 1) % replay.ranks:
            raise Fault(f"Step {replay.steps}: {words(send)}, which is not its right neighbor.")


# ---- priced ----


def measured(replay: Replay, column: Task, task: Task) -> float:
    """A number about a schedule: its time on some links, or what it moves."""
    local = replay.ranks // 2 if task["two_nodes"] else 0
    if column["metric"] == "time":
        size = task["bytes"] / replay.chunks
        return seconds(replay.sent, replay.ranks, size, column["links"], local)
    return moved(replay.sent, replay.ranks, replay.chunks, local)[column["metric"]]


def shown_as(value: float, metric: str) -> str:
    """A number with its unit: steps, tensors of G bytes, or seconds."""
    if metric == "steps":
        return str(round(value))
    if metric != "time":
        return f"{value:.3g} G"
    for factor, unit in ((1e-3, "ms"), (1e-6, "µs")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} s"


def marked(mark: Task, proofs: Proofs, task: Task) -> list[Any]:
    """A star's text, with why the reader does not have it; and whether the reader has it."""
    if not proofs:  # the verdict says why
        return [mark["says"], False]
    why = next((why for n in mark["ranks"] if (why := lacking(mark, n, proofs[n], task))), "")
    return [f"{mark['says']}: {why}" if why else mark["says"], not why]


def lacking(mark: Task, ranks: int, proof: tuple[Replay, list[str]], task: Task) -> str:
    """The reason why a star is not earned with so many ranks; nothing if it is."""
    replay, wrong = proof
    if wrong:
        return f"with {ranks} ranks: {wrong[0]}"
    for metric, pars in mark.get("limits", {}).items():
        value = measured(replay, {"metric": metric, "links": task["links"]}, task)
        par = pars[str(ranks)]
        if value > par * (1 + 1e-9):
            verb, unit = VERBS.get(metric, ("sends", ""))
            own, best = shown_as(value, metric), shown_as(par, metric)
            return f"with {ranks} ranks yours {verb} {own}{unit}, par {best}"
    return ""


def table(replay: Replay, task: Task) -> Task:
    """The prices, beside those of others."""
    columns = task["columns"]
    own = [measured(replay, column, task) for column in columns]
    rows = [["yours", *own], *task["beside"].get(str(replay.ranks), [])]
    return {
        "caption": f"{replay.ranks} ranks, {task['size']}",
        "head": ["", *(column["title"] for column in columns)],
        "rows": [
            [row[0], *(shown_as(v, column["metric"]) for v, column in zip(row[1:], columns))]  # noqa: B905
            for row in rows
        ],
    }


# ---- drawn ----


def drawn(replay: Replay) -> Task | None:
    """The stepper's data: the trace of a replay, and a sentence for each of its messages."""
    if not replay.steps or max(replay.ranks, replay.chunks) > 16:
        return None
    steps = range(replay.steps)
    says = [sentences([each for each in replay.events if each.step == step]) for step in steps]
    return {**trace(replay), "said": says}

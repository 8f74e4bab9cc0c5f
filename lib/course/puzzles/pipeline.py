"""Judges the order in which the stages of a pipeline work, with few micro-batches held."""

from __future__ import annotations

from math import inf

from course.puzzles.lanes import call, report, yielded
from minidist.schedule.lanes import Work, end, spans, waits
from minidist.schedule.replay import Fault, listing

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable

    from course.puzzles import Task
    from minidist.schedule.lanes import Lanes

    Pass = tuple[str, int, int]  # forward or backward, stage, micro-batch

KINDS = ("forward", "backward")


def judge(function: Callable[..., object], task: Task, names: Task) -> Task:
    """The report on a function that yields what one stage does, in order."""
    stages, batches = task["stages"], task["batches"]

    def work(lanes: Lanes) -> str:
        orders = []
        for stage in range(stages):
            steps = yielded(function(stage, stages, batches), task["function"])
            orders.append([call(step, KINDS, batches) for step in steps])
            _check_order(stage, orders[stage], task)
        passes = [(kind, stage, m) for stage in range(stages) for kind, m in orders[stage]]
        works = [_work(each, passes, task) for each in passes]
        found = spans(works)
        lanes.spans += [span for span in found if span.start < inf]
        stuck = [(passes[first], passes[needed]) for first, needed in waits(works, found)]
        if stuck:
            raise Fault(f"Deadlock: {', '.join([_wait(*each) for each in stuck])}.")
        return (
            f"Every micro-batch passes every stage, and none holds more than {task['limit']}; "
            f"the step takes {end(found):.4g} ms."
        )

    return report(work, [f"stage {stage}" for stage in range(stages)], task)


def _work(each: Pass, passes: list[Pass], task: Task) -> Work:
    """A pass as work on the lane of its stage, after what has to be done before."""
    kind, stage, batch = each
    if kind == "forward":
        needs = (kind, stage - 1, batch)
    elif stage < task["stages"] - 1:
        needs = (kind, stage + 1, batch)
    else:
        needs = ("forward", stage, batch)
    after = [passes.index(needs)] if needs in passes else []  # nothing before the first stage
    text = f"{'F' if kind == 'forward' else 'B'}{batch}"
    return Work(f"stage {stage}", kind, task["takes"][kind], after, text)


def _wait(first: Pass, needed: Pass) -> str:
    return f"stage {first[1]} waits for {needed[0]}({needed[2]}) of stage {needed[1]}"


def _check_order(stage: int, order: list[tuple[str, int]], task: Task) -> None:
    """Each micro-batch once in each direction, first forward, and few held in between."""
    held: list[int] = []
    for kind, batch in order:
        if order.count((kind, batch)) > 1:
            raise Fault(f"Stage {stage} does {kind}({batch}) {order.count((kind, batch))} times.")
        if kind == "backward" and batch not in held:
            raise Fault(f"Stage {stage} does backward({batch}) before forward({batch}).")
        if kind == "forward" and len(held) == task["limit"]:
            raise Fault(
                f"Stage {stage} holds micro-batches {listing(held)} when forward({batch}) comes: "
                f"there is room for {task['limit']}."
            )
        if kind == "forward":
            held.append(batch)
        else:
            held.remove(batch)
    for kind in KINDS:
        left = [batch for batch in range(task["batches"]) if (kind, batch) not in order]
        if left:
            raise Fault(f"Stage {stage} never does {kind}({left[0]}).")

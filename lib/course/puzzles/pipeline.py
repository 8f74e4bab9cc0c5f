"""Judges the order in which the stages of a pipeline work, with few micro-batches held."""

from __future__ import annotations

from course.puzzles.lanes import Lanes, call, report, yielded
from course.puzzles.schedule import Fault, listed

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable

    from course.puzzles.schedule import Task


def judge(function: Callable[..., object], task: Task, names: Task) -> Task:
    """The report on a function that yields what one stage does, in order."""
    stages, batches = task["stages"], task["batches"]

    def work(lanes: Lanes) -> str:
        orders = []
        for stage in range(stages):
            steps = yielded(function(stage, stages, batches), task["function"])
            orders.append([call(step, ("forward", "backward"), batches) for step in steps])
            _check_order(stage, orders[stage], task)
        done: dict[tuple[str, int, int], float] = {}
        at = [0] * stages
        while any(at[stage] < len(orders[stage]) for stage in range(stages)):
            moved = False
            for stage in range(stages):
                while at[stage] < len(orders[stage]):
                    kind, batch = orders[stage][at[stage]]
                    needs = _needs(kind, stage, batch, stages)
                    if needs and needs not in done:
                        break
                    ready = done[needs] if needs else 0.0
                    text = f"{'F' if kind == 'forward' else 'B'}{batch}"
                    takes = task["takes"][kind]
                    lane = f"stage {stage}"
                    done[kind, stage, batch] = lanes.add(lane, kind, ready, takes, text)
                    at[stage] += 1
                    moved = True
            if not moved:
                raise Fault(_stuck(orders, at, stages))
        return (
            f"Every micro-batch passes every stage, and none holds more than {task['limit']}; "
            f"the step takes {lanes.end:.4g} ms."
        )

    return report(work, [f"stage {stage}" for stage in range(stages)], task)


def _needs(kind: str, stage: int, batch: int, stages: int) -> tuple[str, int, int] | None:
    """What has to be done before, on another stage or this one: (kind, stage, batch)."""
    if kind == "forward":
        return ("forward", stage - 1, batch) if stage else None
    return ("backward", stage + 1, batch) if stage < stages - 1 else ("forward", stage, batch)


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
                f"Stage {stage} holds micro-batches {listed(held)} when forward({batch}) comes: "
                f"there is room for {task['limit']}."
            )
        if kind == "forward":
            held.append(batch)
        else:
            held.remove(batch)
    for kind in ("forward", "backward"):
        left = [batch for batch in range(task["batches"]) if (kind, batch) not in order]
        if left:
            raise Fault(f"Stage {stage} never does {kind}({left[0]}).")


def _stuck(orders: list[list[tuple[str, int]]], at: list[int], stages: int) -> str:
    """Who waits for what, where nobody can go on."""
    waits = []
    for stage in range(stages):
        if at[stage] < len(orders[stage]):
            kind, batch = orders[stage][at[stage]]
            other = (_needs(kind, stage, batch, stages) or ("", stage, 0))[1]
            waits.append(f"stage {stage} waits for {kind}({batch}) of stage {other}")
    return f"Deadlock: {', '.join(waits)}."

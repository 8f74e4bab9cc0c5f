"""A step that a profiler recorded on a GPU, event by event."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from course.interactive.frames import Cell, Frame, FramesStepper, Rows, drawing
from course.pages.published import named, published

LOOKS = {"held": "runs", "done": "has run"}
LEAST = 4.0  # milliseconds that a cell is wide at least, to be seen
Piece = tuple[str, float, float]  # part, start and end in milliseconds


def trace_stepper() -> FramesStepper:
    """One step of ResNet-50 under DDP on two A100s, from the record `ddp_trace`."""
    record = published("ddp_trace")
    return FramesStepper("A step of 222 ms, as rank 0's GPU saw it", [*_frames(record)], LOOKS)


def _frames(record: Mapping[str, Any]) -> Iterator[Frame]:
    step = record["steps"][0]
    calls = named(step["nccl_columns"], step["nccl"])
    phases = {name: (spans[0][0], spans[-1][1]) for name, spans in step["compute"].items()}
    nccl = [(call, call["start_ms"], call["start_ms"] + call["duration_ms"]) for call in calls]
    lanes: dict[str, list[Piece]] = {
        "compute": [(_part(name), *span) for name, span in phases.items()],
        "NCCL": [(_part(call["collective"]), start, end) for call, start, end in nccl],
    }
    yield Frame(_picture(lanes, 0, step["step_ms"]), "Two lanes of one GPU: nothing has run yet.")
    broadcasts = [each for each in nccl if each[0]["collective"] == "broadcast"]
    numbers = " and ".join(f"{call['elements']:,}" for call, *_ in broadcasts)
    says = f"Before anything is computed, rank 0 sends its buffers: {numbers} numbers."
    yield Frame(_picture(lanes, broadcasts[-1][2], step["step_ms"]), says, "forward")
    says = "Forward computes, with pauses; nothing travels."
    yield Frame(_picture(lanes, phases["forward"][1], step["step_ms"]), says, "forward")
    for number, (call, start, end) in enumerate(nccl[len(broadcasts) :], 1):
        into = start - phases["backward"][0]
        says = (
            f"{into:.0f} ms into backward bucket {number} leaves, {4e-6 * call['elements']:.1f} MB;"
            f" its kernel lasts {end - start:.1f} ms, and backward goes on beside it."
        )
        yield Frame(_picture(lanes, (start + end) / 2, step["step_ms"]), says, "backward")
    early = phases["backward"][1] - nccl[-1][2]
    says = f"Backward ends {early:.0f} ms after the last all-reduce did: nothing was waited for."
    yield Frame(_picture(lanes, phases["backward"][1], step["step_ms"]), says, "backward")
    says = "The optimizer steps on averaged gradients."
    yield Frame(_picture(lanes, step["step_ms"], step["step_ms"]), says, "step")


def _part(name: str) -> str:
    return {"all_reduce": "communication", "broadcast": "weights"}.get(name, name)


def _picture(lanes: Mapping[str, Sequence[Piece]], now: float, whole: float) -> str:
    rows: Rows = {}
    for name, pieces in lanes.items():
        cells, at = [], 0.0
        for part, start, end in pieces:
            if start > at:
                cells.append(Cell("pause", "", wide=start - at))
            look = "" if now < start else "held" if now < end else "done"
            cells.append(Cell(part, look, wide=max(LEAST, end - start)))
            at = max(start + LEAST, end)
        rows[name] = [[[*cells, Cell("pause", "", wide=max(0.1, whole - at))]]]
    described = f"{now:.0f} ms into the step"
    return drawing([described], rows, described)

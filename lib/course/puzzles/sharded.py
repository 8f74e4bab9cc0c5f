"""Judges when FSDP gathers units and frees them, under a limit of how many are in memory."""

from __future__ import annotations

from course.puzzles.lanes import call, report, yielded
from minidist.schedule.lanes import Lanes, end
from minidist.schedule.replay import Fault, listing

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable

    from course.puzzles import Task

KINDS = ("gather", "forward", "free", "backward", "reduce")


def judge(function: Callable[..., object], task: Task, names: Task) -> Task:
    """The report on a function that yields what two streams do, in the order of launching it."""

    def work(lanes: Lanes) -> str:
        step = Step(lanes, task)
        for each in yielded(function(task["units"]), task["function"]):
            kind, unit = call(each, KINDS, task["units"])
            step.launch(kind, unit)
        step.finish()
        limit, takes = task["limit"], end(lanes.spans)
        return f"Never more than {limit} units are in memory; the step takes {takes:.4g} ms."

    return report(work, ["compute", "network"], task)


class Step:
    """Launches work on two streams; a gather waits for a place in memory."""

    def __init__(self, lanes: Lanes, task: Task) -> None:
        self.lanes, self.limit, self.takes = lanes, task["limit"], task["takes"]
        self.units = task["units"]
        self.places = [0.0] * self.limit  # one time per free place: free from then on
        self.there: dict[int, float] = {}  # arrival of each gathered unit
        self.done: dict[tuple[str, int], float] = {}
        self.due = [("forward", unit) for unit in range(self.units)]
        self.due += [("backward", unit) for unit in reversed(range(self.units))]

    def launch(self, kind: str, unit: int) -> None:
        """Add one piece of work, if its turn has come."""
        which = f"{kind}({unit})"
        if kind == "gather":
            self.gather(which, unit)
        elif kind == "free":
            if unit not in self.there:
                raise Fault(f"{which}: unit {unit} is not in memory.")
            self.places.append(max(self.there.pop(unit), self.lanes.free("compute")))
        elif kind == "reduce":
            self.reduce(which, unit)
        else:
            self.compute(which, kind, unit)

    def gather(self, which: str, unit: int) -> None:
        if unit in self.there:
            raise Fault(f"{which}: unit {unit} is in memory already.")
        if not self.places:
            held = listing(sorted(self.there), "unit")
            raise Fault(f"{which}: there is room for {self.limit}, and {held} are there.")
        place = min(self.places)
        self.places.remove(place)
        takes, text = self.takes["gather"], f"g{unit}"
        self.there[unit] = self.lanes.do("network", "weights", place, takes, text)

    def compute(self, which: str, kind: str, unit: int) -> None:
        if not self.due or (kind, unit) != self.due[0]:
            due = f"{self.due[0][0]}({self.due[0][1]})" if self.due else "nothing"
            raise Fault(f"{which}: the next to compute is {due}.")
        if unit not in self.there:
            raise Fault(f"{which}: unit {unit} is not in memory; gather it before.")
        self.due.pop(0)
        text = f"{'F' if kind == 'forward' else 'B'}{unit}"
        ready, takes = self.there[unit], self.takes[kind]
        self.done[kind, unit] = self.lanes.do("compute", kind, ready, takes, text)

    def reduce(self, which: str, unit: int) -> None:
        if ("backward", unit) not in self.done:
            raise Fault(f"{which}: backward({unit}) has to come first.")
        if ("reduce", unit) in self.done:
            raise Fault(f"{which}: its gradients have been reduced already.")
        ready, takes = self.done["backward", unit], self.takes["reduce"]
        self.done["reduce", unit] = self.lanes.do("network", "gradients", ready, takes, f"r{unit}")

    def finish(self) -> None:
        """All is computed, all gradients are reduced, and memory is free."""
        if self.due:
            raise Fault(f"The step ends without {self.due[0][0]}({self.due[0][1]}).")
        left = [unit for unit in range(self.units) if ("reduce", unit) not in self.done]
        if left:
            raise Fault(f"The gradients of {listing(left, 'unit')} are never reduced.")
        if self.there:
            raise Fault(f"At the end {listing(sorted(self.there), 'unit')} should be free again.")

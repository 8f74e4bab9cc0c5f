"""A forward pass under PyTorch's FSDP as its CPU sees it: what it launches when, and who waits."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.cells import Cell, lanes
from minidist.plots.style import GREY, PHASE
from minidist.schedule.lanes import Span, Work, end, spans

UNITS = 4
CPU, GPU, LINK = "CPU", "compute", "network"
GATHER, LAUNCH, FORWARD, TRAVEL = 0.25, 0.75, 2.5, 1.5  # to call a gather, a forward; to do them
WAYS = {  # title → whether each block makes the CPU wait, and whether it gathers the next one first
    "The CPU runs ahead": (False, False),
    "Each block ends with an .item()": (True, False),
    "The same, with set_modules_to_forward_prefetch": (True, True),
}
LOOKS = {
    "launches": {"facecolor": GREY, "alpha": 0.45, "linewidth": 0.5},
    "forward": {"facecolor": PHASE["forward"], "alpha": 0.5, "linewidth": 0.5},
    "all-gather": {"facecolor": PHASE["all-gather"], "alpha": 0.5, "linewidth": 0.5},
}


def forward_works(synchronizes: bool, prefetches: bool) -> list[Work]:
    """A forward pass of equal units, on three lanes; times are of no unit.

    The CPU calls a unit's gather and then its forward, each of which takes it a moment, and goes
    on. A gather starts once it is called and the unit before the last has computed, because no
    more than two are in memory.

    Args:
        synchronizes: whether the CPU waits at the end of each unit for the GPU's result.
        prefetches: whether it calls the next unit's gather before this one's forward.
    """
    works, there, computed = list[Work](), dict[int, int](), list[int]()

    def add(*work: object) -> int:
        works.append(Work(*work))  # type: ignore[arg-type]
        return len(works) - 1

    for unit in range(UNITS):
        waits = computed[-1:] if synchronizes else []
        for wanted in range(unit, min(unit + 1 + prefetches, UNITS)):
            if wanted not in there:
                call = add(CPU, "launches", GATHER, waits)
                room = [computed[wanted - 2]] if 2 <= wanted <= len(computed) + 1 else []
                there[wanted] = add(LINK, "all-gather", TRAVEL, [call, *room], f"A{wanted + 1}")
        call = add(CPU, "launches", LAUNCH, waits, str(unit + 1))
        computed.append(add(GPU, "forward", FORWARD, [call, there[unit]], f"F{unit + 1}"))
    return works


def run_ahead() -> Figure:
    """A panel for each of `WAYS`: what CPU, GPU and network do."""
    found = {title: spans(forward_works(*how)) for title, how in WAYS.items()}
    panels = {title: _rows(each) for title, each in found.items()}
    figure = lanes(panels, (3.75, 3.5))
    figure.axes[0].set_xlim(0, 1.02 * max(map(end, found.values())))
    style.legend_below(figure, 3, LOOKS)
    return figure


def _rows(found: list[Span]) -> dict[str, list[Cell]]:
    rows: dict[str, list[Cell]] = {name: [] for name in (CPU, GPU, LINK)}
    for each in found:
        look = LOOKS[each.kind]
        face = look["facecolor"], look["alpha"]
        rows[each.lane].append(Cell(each.text, face, each.end - each.start, each.start))  # type: ignore[arg-type]
    return rows


def ran_ahead(cases: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Panels of a forward pass as recorded, in milliseconds: layers on the CPU and on the GPU.

    `cases`: title → the `layers` of a row of the record `gpu_ahead`. Of a layer the CPU's box
    begins where it asks for the parameters and ends where it launches the first kernel.
    """
    panels = {}
    for title, layers in cases.items():
        on_cpu = zip(layers["entered"], layers["launched"], strict=True)
        on_gpu = zip(layers["started"], layers["ended"], strict=True)
        panels[title] = {
            CPU: _numbered(on_cpu, "launches"),
            GPU: _numbered(on_gpu, "forward"),
        }
    figure = lanes(panels, (3.75, 2.9), x_label="milliseconds", numbers=True)
    style.legend_below(figure, 2, {name: LOOKS[name] for name in ("launches", "forward")})
    return figure


def _numbered(times: Iterable[tuple[float, float]], kind: str) -> list[Cell]:
    look = LOOKS[kind]
    face = look["facecolor"], look["alpha"]
    return [
        Cell(str(number), face, end - start, start)  # type: ignore[arg-type]
        for number, (start, end) in enumerate(times, 1)
    ]

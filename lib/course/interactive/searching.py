"""The calculator that searches: all grids for a step of a model on some GPUs, and the best of them.

`static/searches.js` draws; what it starts with, and a table where no script runs, is found here.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

from course.interactive.in_page import searched, usable
from course.interactive.page import Control, Slider, choice, control, scaled, seconds_text
from course.interactive.sliders import (
    AUTOCAST_ADAM,
    EACH,
    GPU,
    GPUS,
    MODELS,
    NAMES,
    POLICIES,
    powers,
    rank_stops,
)
from minidist.formulas import inputs
from minidist.memory.state import bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import SEQUENCE
from minidist.planner.planner import ROOM
from minidist.planner.search import DEGREES, SEEN
from minidist.planner.search import NAMES as SPENT

# As `models.mixture` takes it, with latent attention as plain attention of as many parameters.
MIXTURE = (61, 7168, 2048, 100, 2, 129_280, 256, 8, 2048, 128)
JOBS = {**MODELS, "like DeepSeek-V3, 256 experts": MIXTURE}
ORDERS = {  # of a pipeline's work; stages may be interleaved under 1F1B
    "1F1B, zero bubble, DualPipe": [*inputs.ORDERS],
    "1F1B, zero bubble": ["1f1b", "zero_bubble"],
    "1F1B alone": ["1f1b"],
}
SHOWN = {"1f1b": "1F1B", "zero_bubble": "zero bubble", "dualpipe": "DualPipe"}
BYTES = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]


def search_slider() -> Slider:
    """The fastest grids of all, where the seconds of one of them go, and why others are slower."""
    controls = [
        Control("model", "Model", [*JOBS.values()], [*JOBS], MODELS["Llama 3.1 405B"], choose=True),
        control("ranks", "GPUs", powers(3, 14), 16_384),
        GPU,
        control("samples", "Sequences in a step", [n for n in rank_stops(16_384) if n >= 8], 2048),
        control("tokens", "Tokens of a sequence", powers(11, 17), SEQUENCE),
        choice("orders", "Orders of a pipeline", ORDERS, next(iter(ORDERS))),
    ]
    start = {each.name: each.start for each in controls}
    found = searched(
        start["model"], start["tokens"], H100, bytes_each(*POLICIES[AUTOCAST_ADAM]),
        start["ranks"], start["samples"], usable(H100.memory, ROOM), ORDERS[start["orders"]],
    )  # fmt: skip
    data = {
        "gpus": GPUS, "each": EACH[AUTOCAST_ADAM], "room": ROOM, "names": NAMES, "shown": SHOWN,
        "orders": ORDERS, "spent": SPENT, "seen": SEEN, "first": found,
    }  # fmt: skip
    title = "My model, my GPUs, my batch: which grid?"
    return Slider("search", title, controls, data, still(found))


def still(found: Mapping[str, Any]) -> str:
    """The table as it is without a script."""
    rows = []
    for place, each in enumerate(found["best"]):
        texts = [
            seconds_text(each["seconds"]),
            f"{each['mfu']:.0%}",
            scaled(each["peak"], "B", BYTES),
        ]
        ways, how = degrees_text(each["grid"]), (rest_text(each["grid"]), binds_text(each))
        grid = escape(ways) + "".join(f"<small>{escape(text)}</small>" for text in how)
        cells = [str(place + 1), grid, *texts]
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    columns = ("#", "grid, and what binds it", "step", "MFU", "peak")
    heads = "".join(f'<th scope="col">{head}</th>' for head in columns)
    caption = f"The fastest of {found['tried']:,} grids, each with other degrees:"
    return (
        f'<div class="still"><table class="found"><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>"
        f"{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"
        "<p>Here is a calculator where scripts may run.</p></div>"
    )


def degrees_text(grid: Mapping[str, Any]) -> str:
    """Degrees above 1."""
    return ", ".join(f"{name} {grid[name]:,}" for name in DEGREES if grid[name] > 1)


def rest_text(grid: Mapping[str, Any]) -> str:
    """All else of a grid."""
    stages = f", {grid['interleaved']} stages per GPU" if grid["interleaved"] > 1 else ""
    near = " inside nodes" if grid["nearer"] == "pipeline" else ""
    works = f"{SHOWN[grid['order']]}{near}{stages}; " if grid["pipeline"] > 1 else ""
    rest = f"micro-batch {grid['batch']}; recompute {grid['recompute']}"
    return f"{NAMES[grid['strategy']]}; {works}{rest}"


def binds_text(found: Mapping[str, Any]) -> str:
    """What keeps a step from being shorter, as `planner.search.Found` has it."""
    shares = {name: takes / found["seconds"] for name, takes in found["spent"].items()}
    bound, compute = found["binds"], f"compute {shares['compute']:.0%}"
    if bound["needs"]:
        needs, how = scaled(bound["needs"], "B", BYTES), NAMES.get(bound["how"], bound["how"])
        return f"{compute}; memory: would need {needs} with {how}"
    share = shares[bound["part"]]
    return f"{compute}, {SPENT[bound['part']]} {share:.0%}" if share > SEEN else compute

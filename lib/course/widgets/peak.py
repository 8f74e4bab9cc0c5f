"""The most memory that one GPU needs in a training step, activations included."""

from collections.abc import Sequence

from course.widgets.memory import AUTOCAST_ADAM, POLICIES, count_text, each
from course.widgets.page import Control, Slider, choice, control, stops
from minidist.planner.hardware import ACCELERATORS, GIB, H100
from minidist.planner.jobs import SHAPES, sized
from minidist.planner.planner import ROOM

SHARES = {"none": 0.0, "every second block": 0.5, "every block": 1.0}  # of blocks with a checkpoint


def sizes(start: str) -> Control:
    """A slider over models: the jobs in their shapes, and GPTs of other sizes."""
    jobs: dict[int, Sequence[object]] = {sized(name).parameters: SHAPES[name] for name in SHAPES}
    found = jobs | {count: [count] for count in (0, *map(int, stops(8, 13, (1, 2, 5))))}
    texts = [f"{count_text(count)}{', Llama' * (count in jobs)}" for count in sorted(found)]
    values = [found[count] for count in sorted(found)]
    return Control("model", "Parameters", values, texts, SHAPES[start])


def peak_slider() -> Slider:
    """Bars of state and activations at both ends of backward, against the memory of a GPU."""
    counts, lengths = ([1 << bit for bit in range(low, high)] for low, high in ((0, 11), (7, 21)))
    memories = {24 * GIB: "24 GB"} | {
        gpu.memory: f"{gpu.name.split()[0]}, {gpu.memory / GIB:.0f} GB"
        for gpu in ACCELERATORS.values()
    }
    controls = [
        sizes("small"),
        control("batch", "Sequences", counts, 1),
        control("tokens", "Tokens of a sequence", lengths, 2048),
        choice("policy", "Dtypes and optimizer", POLICIES, AUTOCAST_ADAM),
        choice("checkpoints", "Checkpoints", SHARES, "none"),
        Control("memory", "GPU", [*memories], [*memories.values()], H100.memory, choose=True),
    ]
    title = "What one GPU holds when backward begins, and in the update"
    data = {"room": ROOM, "each": each(), "shares": SHARES, "gpu": H100._asdict()}
    return Slider("peak", title, controls, data)

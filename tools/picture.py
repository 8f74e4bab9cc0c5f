"""Make the README's picture: the ring over four ranks, drawn from the simulator's events.

Once for pages by day and once for those at night, which the README chooses by the reader's scheme.
"""

import io
from argparse import ArgumentParser
from pathlib import Path

import matplotlib

from minidist import plots
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.traffic import replay

GITHUB = Path(__file__).parent.parent / ".github"
PICTURES = {"light": GITHUB / "ring.svg", "dark": GITHUB / "ring-dark.svg"}
PAUSE, ROUNDS = 1.2, 3  # seconds between two steps; after so many rounds all of them stay
ALL = 3  # pauses for which a round begins with all panels, so that a glance sees the whole
NIGHT = "svg {filter: invert(0.9) hue-rotate(180deg)}\n"


def svg(mode: str) -> str:
    """The picture, the same bytes on every run: no date, no random ids, letters as shapes."""
    matplotlib.use("svg")
    ring = replay(ring_all_reduce(4))
    with matplotlib.rc_context({"svg.hashsalt": "minidist", "svg.fonttype": "path"}):
        figure = plots.trace(ring)
        text = io.StringIO()
        figure.savefig(text, format="svg", facecolor="none", metadata={"Date": None})
    style = (NIGHT if mode == "dark" else "") + motion(ring.steps)
    return text.getvalue().replace("</style>", f"\n{style}</style>", 1)


def motion(steps: int) -> str:
    """CSS that lights the panels up one after another, unless the reader prefers less motion."""
    shown = ALL + steps + 1
    begins, length = f"{100 * ALL / shown:.1f}%", f"{shown * PAUSE:.1f}s"
    rules = [
        f"#axes_{step + 1} {{animation: step{step} {length} step-end {ROUNDS}}}\n"
        f"@keyframes step{step} {{0% {{opacity: 1}} {begins} {{opacity: 0.1}} "
        f"{100 * (ALL + step) / shown:.1f}% {{opacity: 1}}}}\n"
        for step in range(1, steps + 1)
    ]
    return f"@media (prefers-reduced-motion: no-preference) {{\n{''.join(rules)}}}\n"


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    for mode, file in PICTURES.items():
        aside = file.with_suffix(".new")
        aside.write_text(svg(mode))
        aside.replace(file)
        print(f"wrote {file}")

"""Make the README's picture: the ring over four ranks, drawn from the simulator's events."""

import io
from pathlib import Path

import matplotlib

from minidist import plots
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.simulate import replay

PICTURE = Path(__file__).parent.parent / ".github" / "ring.svg"


def svg() -> str:
    """The picture, the same bytes on every run: no date, no random ids, letters as shapes."""
    matplotlib.use("svg")
    with matplotlib.rc_context({"svg.hashsalt": "minidist", "svg.fonttype": "path"}):
        figure = plots.trace(replay(ring_all_reduce(4)))
        text = io.StringIO()
        figure.savefig(text, format="svg", facecolor="white", metadata={"Date": None})
    return text.getvalue()


if __name__ == "__main__":
    aside = PICTURE.with_suffix(".new")
    aside.write_text(svg())
    aside.replace(PICTURE)
    print(f"wrote {PICTURE}")

"""A picture of a schedule that the reader plays step by step, in the book and in a notebook.

Python writes the trace and every sentence about it; `static/stepper.js` makes the picture from
them. Where no script runs, the sentences are still there to read, as a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby

from minidist.schedule.simulate import Event, Replay

BIGGEST = 32  # ranks, and chunks: beyond it nobody can read the cells

HTML = """\
<figure class="minidist-stepper">
<figcaption><strong>{name}</strong> {size}</figcaption>
<script type="application/json">{trace}</script>
<details open>
<summary>All steps as a table</summary>
<table>
<thead><tr><th scope="col">Step</th><th scope="col">Messages</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</details>
</figure>
{assets}"""


class Stepper:
    """What `stepper` returns: a notebook shows it as the picture, a terminal as one line."""

    def __init__(self, replay: Replay) -> None:
        if max(replay.ranks, replay.chunks) > BIGGEST:
            raise ValueError(
                f"{replay.name} has {replay.ranks} ranks and {replay.chunks} chunks; "
                f"a stepper can show {BIGGEST} of each: draw a smaller one"
            )
        self.replay = replay

    def __repr__(self) -> str:
        end = f"{self.replay.right()} of {self.replay.wanted} chunks right at the end"
        return f"{self.replay.name}: {_size(self.replay)}, {end}"

    def _repr_html_(self) -> str:
        return HTML.format(
            name=escape(self.replay.name),
            size=_size(self.replay),
            # Without a "<", so that no name can end the script element that holds it.
            trace=json.dumps(asdict(self.replay), separators=(",", ":")).replace("<", "\\u003c"),
            rows="\n".join(_row(self.replay, number) for number in range(self.replay.steps)),
            # The book serves both files to all its pages; a notebook has nobody to serve them.
            assets="" if os.environ.get("MINIDIST_BOOK") else assets(),
        )


def stepper(replay: Replay) -> Stepper:
    """Show a replayed schedule as a picture to step through.

    Example:
        >>> stepper(replay(ring_all_reduce(4)))
        ring all-reduce: 4 ranks, 4 chunks, 6 steps, 16 of 16 chunks right at the end
    """
    return Stepper(replay)


def sentences(step: Iterable[Event]) -> list[str]:
    """Say each message of one step; chunks of which the same can be said share a sentence."""
    alike = groupby(step, key=lambda e: (e.src, e.dst, e.reduce, e.carried, e.result))
    return [_sentence(list(events)) for _, events in alike]


def _sentence(events: list[Event]) -> str:
    event, one = events[0], len(events) == 1
    chunks = ("chunk " if one else "chunks ") + ", ".join(str(e.chunk) for e in events)
    does = f"adds {'it' if one else 'them'}" if event.reduce else "overwrites its own"
    carried, result = ("+".join(map(str, who)) for who in (event.carried, event.result))
    return (
        f"rank {event.src} sends {chunks} ({carried}) to rank {event.dst}, which {does}: {result}"
    )


def _size(replay: Replay) -> str:
    counts = {"rank": replay.ranks, "chunk": replay.chunks, "step": replay.steps}
    return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items())


def _row(replay: Replay, number: int) -> str:
    step = (event for event in replay.events if event.step == number)
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(step))
    return f'<tr><th scope="row">{number + 1}</th><td><ul>{items}</ul></td></tr>'


@cache
def assets() -> str:
    """The style and the script that every picture carries."""
    static = files("minidist.plots") / "static"
    css, js = ((static / f"stepper.{end}").read_text("utf-8") for end in ("css", "js"))
    return f"<style>\n{css}</style>\n<script>\n{js}</script>\n"

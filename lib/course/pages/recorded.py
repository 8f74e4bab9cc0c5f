"""Records of the benchmarks, as pages show them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from IPython.display import Markdown

from course.pages.table import table

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def recorded(name: str) -> dict[str, Any]:
    """The record NAME: its command, machine, date and rows. Prints where and when it was made."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    gpus = [gpu["name"] for row in found["rows"] for gpu in row.get("gpus", [])]
    print("recorded on", ", ".join([*gpus, found["machine"], found["date"]]))
    return found


def small_job() -> list[dict[str, Any]]:
    """The cost of the book's small job on a GPU, a row for each way; prints as `recorded`."""
    rows = recorded("gpu")["rows"]
    return [row for row in rows if (row["section"], row.get("what")) == ("small job", "memory")]


def host_ahead() -> dict[str, dict[str, Any]]:
    """Title → row of the record of FSDP2's forward on one GPU; prints as `recorded`."""
    titles = {
        "4,096 tokens": "as it is",
        "The same, and an .item() in each layer": "item in each layer",
        "256 tokens": "short",
        "4,096 tokens, as rank 0 of 8": "as it is, gathers from nobody",
    }
    rows = {row["case"]: row for row in recorded("gpu_ahead")["rows"] if "layers" in row}
    return {title: rows[case] for title, case in titles.items()}


def by_size(ratios: Mapping[tuple[str, int], float], columns: Sequence[str]) -> Markdown:
    """A table of what was measured in each (column, bytes of the tensor)."""
    sizes = sorted({size for _, size in ratios})
    rows = ([_size(size), *(ratios[column, size] for column in columns)] for size in sizes)
    return table(["tensor", *columns], rows)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:g} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:g} KiB"


def split_layers() -> list[dict[str, Any]]:
    """The rows on parts of a layer; prints as `recorded`."""
    return [row for row in recorded("gpu")["rows"] if row["section"] == "split layers"]

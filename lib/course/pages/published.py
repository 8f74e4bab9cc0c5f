"""Measurements on GPUs that others have published, as pages show them.

A record is a file of `benchmarks/published`: numbers from public repositories, threads and papers,
none of them measured by us. It says what it holds, in which units, on which machine, where it was
published, under which licence, how it was extracted and what to keep in mind. Where a licence is
not stated the file has numbers only.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from IPython.display import Markdown

from course.pages.table import folded, table

PUBLISHED = Path(__file__).parents[3] / "benchmarks" / "published"


def published(name: str) -> dict[str, Any]:
    """The record NAME; it prints nothing."""
    path = PUBLISHED / f"{name}.json"
    if not path.exists():
        names = ", ".join(sorted(each.stem for each in PUBLISHED.glob("*.json")))
        where = f"benchmarks/published/{path.name}"
        raise FileNotFoundError(f"{where} is missing: expected one of {names}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def named(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of a record, each as column → value."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def parts(record: dict[str, Any]) -> list[dict[str, str]]:
    """The sources of a record, each with its machine and software."""
    of = {key: record.get(key, "") for key in ("machine", "software")}
    return [of | each for each in record.get("sources", {}).values()] or [of | record["source"]]


def sources() -> Markdown:
    """All records, and each measured curve, with their machines and sources, folded."""
    rows: list[list[str]] = []
    for path in sorted(PUBLISHED.glob("*.json")):
        record = published(path.stem)
        for each in record.get("curves", []):
            nccl = f", NCCL {each['nccl']}" if each["nccl"] else ""
            machine = f"{each['network']}; {each['tool']}{nccl}"
            link = f"[{each['id']}]({each['link']}), {each['date']}"
            rows.append([f"All-reduce: {each['name']}", machine, link])
        what, found = record["what"].split(":")[0].rstrip("."), parts(record)
        if "sources" in record:
            links = ", ".join(f"[{key}]({of['link']})" for key, of in record["sources"].items())
            rows.append([what, f"those of {len(found)} sources: see the record", links])
        for source in [] if {"curves", "sources"} & {*record} else found:
            machine = f"{source['machine']}; {source['software']}"
            rows.append([what, machine, f"[{source['name']}]({source['link']}), {source['date']}"])
    inner = table(["what", "machine and versions", "source"], rows)
    return folded(f"All {len(rows)} records", inner)


def curve(name: str) -> dict[str, Any]:
    """One measured curve of the record `all_reduce_curves`, by its id, such as "h100-2x8-ib"."""
    curves: dict[str, dict[str, Any]]
    curves = {each["id"]: each for each in published("all_reduce_curves")["curves"]}
    if name not in curves:
        raise ValueError(f"curve: expected one of {', '.join(curves)}, got {name!r}")
    return curves[name]

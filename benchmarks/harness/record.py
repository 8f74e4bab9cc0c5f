"""What was measured, with all that is needed to measure it again."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.pages.machine import describe

RESULTS = Path(__file__).parents[1] / "results"

Row = dict[str, Any]


def record(name: str, rows: list[Row], command: str) -> Path:
    """Write results/NAME.json atomically and return its path."""
    found = {
        "command": command,
        "machine": describe(),
        "date": datetime.now(UTC).date().isoformat(),
        "rows": rows,
    }
    path = RESULTS / f"{name}.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    temporary.replace(path)
    return path


def earlier(name: str) -> Row:
    """The record that there is, or nothing."""
    path = RESULTS / f"{name}.json"
    found: Row = json.loads(path.read_text()) if path.exists() else {}
    return found


def worst_of_ranks(rows: tuple[Row, ...]) -> Row:
    """One row for those of all ranks: true if it is on every rank; of numbers the largest."""
    merged = dict(rows[0])
    for key, value in merged.items():
        if isinstance(value, bool):
            merged[key] = all(row[key] for row in rows)
        elif isinstance(value, int | float):
            numbers = [row[key] for row in rows]
            merged[key] = next((n for n in numbers if n != n), max(numbers))  # NaN is the worst
    return merged
